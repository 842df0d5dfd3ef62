package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.postgresql.ds.PGSimpleDataSource;

@Timeout(60)
class LeaseTest extends OnServer {
    private Completion done() {
        return new Completion(Response.of(201, "{\"id\": 1}"), this::effect);
    }

    @Test
    void theAnswerCommitsWithItsWrites() throws Exception {
        Result first = once.lease(Call.of(key), lease -> {
            assertFalse(lease.isLost());
            assertTrue(lease.operation().fence() > 0);
            assertEquals(Outcome.IN_PROGRESS, once.lease(Call.of(key), other -> done()).outcome());
            return done();
        });
        Result second = once.lease(Call.of(key), lease -> done());
        assertFalse(first.replayed());
        assertTrue(second.replayed());
        assertEquals(201, second.response().code());
        assertEquals(1, effects());
        assertTrue(once.transaction(Call.of(key), (connection, operation) -> Response.EMPTY).replayed());
    }

    @Test
    void aLostAnswerToTheEndIsTheStoredAnswer() throws Exception {
        Result result = once.lease(Call.of(key), lease -> {
            proxy.order("arm", "lose");
            return done();
        });
        assertTrue(result.replayed());
        assertFalse(events.contains(Event.Type.LEASE_LOST));
        assertEquals(1, effects());
    }

    @Test
    void aRefusalOfTheWorkOrOfItsWritesIsStored() throws Exception {
        Declined refusal = new Declined(402, null);
        Result byWork = once.lease(Call.of(key), lease -> {
            throw refusal;
        });
        assertEquals(402, byWork.response().code());
        Result byWrites = once.lease(Call.of(key + "x"), lease -> new Completion(Response.EMPTY, connection -> {
            effect(connection);
            throw refusal;
        }));
        assertEquals(Outcome.FAILED, byWrites.outcome());
        assertTrue(once.lease(Call.of(key + "x"), lease -> done()).replayed());
        assertEquals(0, effects());
        assertEquals(2, Collections.frequency(events, Event.Type.DECLINED));
    }

    private static void effect(Connection connection, String own) throws SQLException {
        execute(connection, "INSERT INTO effect VALUES ('" + own + "')");
    }

    private int effects(String own) throws SQLException {
        return Integer.parseInt(one("SELECT count(*) FROM effect WHERE key = '" + own + "'"));
    }

    /** It would be done, and not recorded, so that another attempt repeats it. */
    @Test
    void whoInterruptsTheThreadOfWorkThatIsDoneDoesNotKeepItFromItsEnd() throws Exception {
        for (String end : new String[] {"answer", "declined", "not done", "writes"}) {
            var held = new ArrayList<Connection>();
            int[] runs = new int[1];
            LeasedWork<SQLException> work = lease -> {
                if (!end.equals("writes")) {
                    for (int i = 0; i < pool.getMaximumPoolSize(); i++) {
                        held.add(pool.getConnection()); // so that the end waits for one
                    }
                    Thread.currentThread().interrupt();
                }
                CompletableFuture.runAsync(() -> held.forEach(LeaseTest::close), CompletableFuture.delayedExecutor(200, TimeUnit.MILLISECONDS));
                return switch (end) {
                    case "declined" -> throw new Declined(402, null);
                    case "not done" -> throw new IdempotencyException.NotDone(null);
                    case "writes" -> new Completion(done().response(), connection -> {
                        effect(connection, key);
                        if (++runs[0] == 1) {
                            Thread.currentThread().interrupt();
                            throw new SQLException("as the socket of a virtual thread is closed", "08006");
                        }
                    });
                    default -> done();
                };
            };
            Call call = Call.of(key + end);
            if (end.equals("not done")) {
                assertThrows(IdempotencyException.NotDone.class, () -> once.lease(call, work));
            } else {
                once.lease(call, work);
            }
            assertTrue(Thread.interrupted(), end);
            Operation stored = once.lookup(call);
            assertEquals(switch (end) {
                case "declined" -> Outcome.FAILED;
                case "not done" -> null;
                default -> Outcome.COMPLETED;
            }, stored == null ? null : stored.outcome(), end);
        }
        assertEquals(2, effects());
    }

    private static void close(Connection connection) {
        try {
            connection.close();
        } catch (SQLException lost) {
            throw new IllegalStateException(lost);
        }
    }

    private void runOut(String own) throws SQLException {
        sql("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key = '" + own + "'");
    }

    private void abandon(String own) {
        assertThrows(IOException.class, () -> once.lease(Call.of(own), lease -> {
            throw new IOException("died");
        }));
    }

    private static final String LARGE = '"' + "x".repeat(2_000_000) + '"';

    private static Map<String, Response> unstorable() {
        Map<String, Response> all = new HashMap<>(Map.of("broken", Response.json("{"), "NUL", Response.json("\"a\\u0000b\""),
                "half", Response.json("\"\ud800\""), "large", Response.json(LARGE)));
        all.put("none", null);
        for (Duration wrong : List.of(Duration.ofNanos(999), Duration.ofDays(36_501), Duration.ofSeconds(Long.MAX_VALUE))) {
            all.put(wrong + "", new Response(200, null, null, null, wrong));
        }
        all.put("header", new Response(200, Collections.singletonMap("a", null), null, null, null));
        return all;
    }

    @Test
    void workWhoseAnswerCannotBeStoredIsDoneAndNotRepeated() throws Exception {
        for (Map.Entry<String, Response> answer : unstorable().entrySet()) {
            for (String end : new String[] {"answer", "writes", "declined", "declining writes"}) {
                if (answer.getValue() == null && end.startsWith("declin")) {
                    continue; // a Declined has a response
                }
                String own = key + answer.getKey() + end;
                int[] runs = new int[1];
                Completion.Writes declining = connection -> {
                    effect(connection, own);
                    throw new Declined(answer.getValue(), null);
                };
                LeasedWork<Exception> work = lease -> {
                    runs[0]++;
                    return switch (end) {
                        case "declined" -> throw new Declined(answer.getValue(), null);
                        case "declining writes" -> new Completion(done().response(), declining);
                        default -> new Completion(answer.getValue(), end.equals("writes") ? connection -> effect(connection, own) : null);
                    };
                };
                RuntimeException first = assertThrows(RuntimeException.class, () -> once.lease(Call.of(own), work), own);
                assertFalse(first instanceof IdempotencyException.Unstorable, own);
                assertEquals(answer.getKey().equals("large"), first instanceof IdempotencyException.TooLarge);
                for (int repeat = 0; repeat < 2; repeat++) {
                    assertEquals("the work was done, and its answer could not be stored",
                            assertThrows(IdempotencyException.Unstorable.class, () -> once.lease(Call.of(own), work), own).getMessage());
                }
                assertEquals(List.of(1, end.equals("writes") ? 1 : 0, 500), List.of(runs[0], effects(own), once.lookup(Call.of(own)).response().code()));
            }
            Call call = Call.of(key + answer.getKey());
            assertThrows(RuntimeException.class, () -> once.transaction(call, (connection, operation) -> {
                effect(connection, call.key());
                throw new Declined(answer.getValue(), null);
            }));
            assertNull(once.lookup(call));
            assertEquals(0, effects(call.key()));
        }
        assertThrows(NullPointerException.class, () -> once.lease(Call.of(key), lease -> null));
        assertThrows(IdempotencyException.Unstorable.class, () -> once.lease(Call.of(key), lease -> done()));
    }

    /** Also where it is computed by work that is done. */
    @Test
    void aTimeThatIsOutOfRangeIsNamedWhenItIsStored() {
        for (Duration wrong : List.of(Duration.ofDays(36_500).plusNanos(1), Duration.ofSeconds(Long.MAX_VALUE))) {
            isRefused("retention", () -> new Response(0, null, null, null, wrong));
            isRefused("retention", () -> {
                throw new Declined(new Response(0, null, null, null, wrong), null);
            });
            isRefused("retryAfter", () -> {
                throw new Declined(Response.EMPTY, wrong);
            });
        }
    }

    private void isRefused(String name, Supplier<Response> end) {
        Call call = Call.of(key + end.hashCode());
        for (Executable operation : List.<Executable>of(() -> once.transaction(call, (connection, o) -> end.get()),
                () -> once.lease(call, lease -> Completion.of(end.get())))) {
            String message = assertThrows(IllegalArgumentException.class, operation).getMessage();
            assertTrue(message.startsWith(name), message);
        }
        assertThrows(IdempotencyException.Unstorable.class, () -> once.lease(call, lease -> done()));
    }

    /** Its writes commit with the record, and where they say so themselves they do not. It is the word for one operation, not for one around it. */
    @Test
    void workThatHasNoAnswerIsDoneAndNotRepeated() throws Exception {
        var wrong = new IllegalStateException("planned");
        Completion.Writes effect = connection -> effect(connection, key);
        for (Completion.Writes writes : new Completion.Writes[] {null, effect, connection -> {
            effect.run(connection);
            throw new IdempotencyException.NoAnswer(wrong, Duration.ofDays(90), effect);
        }}) {
            String own = key + System.nanoTime();
            int before = effects(key);
            LeasedWork<Exception> work = lease -> {
                throw new IdempotencyException.NoAnswer(wrong, Duration.ofDays(90), writes);
            };
            assertSame(wrong, assertThrows(RuntimeException.class, () -> once.lease(Call.of(own), work)));
            assertThrows(IdempotencyException.Unstorable.class, () -> once.lease(Call.of(own), work));
            Operation stored = once.lookup(Call.of(own));
            assertEquals(90, Duration.between(stored.createdAt(), stored.expiresAt()).toDays());
            assertEquals(writes == effect ? 1 : 0, effects(key) - before);
        }
    }

    @Test
    void whatCannotBeStoredIsKeptAwayForAsLongAsItAskedFor() {
        Response answer = new Response(0, null, LARGE, null, Duration.ofDays(90));
        LeasedWork<RuntimeException> declines = lease -> {
            throw new Declined(answer, null);
        };
        for (LeasedWork<RuntimeException> work : List.<LeasedWork<RuntimeException>>of(lease -> Completion.of(answer), declines)) {
            Call call = Call.of(key + work.hashCode());
            assertThrows(IdempotencyException.TooLarge.class, () -> once.lease(call, work));
            Operation stored = once.lookup(call);
            assertEquals(90, Duration.between(stored.createdAt(), stored.expiresAt()).toDays());
        }
    }

    @Test
    void anAnswerWithTheCode500IsOne() {
        for (Response answer : List.of(Response.of(500, "1"), new Response(500, null, null, new byte[0], null),
                new Response(500, Map.of(), null, null, null), Response.of(501, null))) {
            String own = key + answer.code() + answer.payload() + answer.headers();
            once.lease(Call.of(own), lease -> Completion.of(answer));
            assertEquals(answer.code(), once.lease(Call.of(own), lease -> done()).response().code());
        }
    }

    @Test
    void whatTheFinderHasFoundAndCannotBeStoredItIsAskedForAgain() throws Exception {
        abandon(key);
        for (String found : List.of("{", LARGE)) {
            runOut(key);
            assertThrows(IdempotencyException.class,
                    () -> once.lease(Call.of(key), lease -> done(), operation -> new Reconciled.Done(Response.json(found))));
        }
        runOut(key);
        assertEquals("1", once.lease(Call.of(key), lease -> done(), operation -> new Reconciled.Done(Response.json("1"))).response().payload());
        assertEquals(0, effects());
    }

    @Test
    void anAnswerThatCannotBeStoredAndOtherEnds() throws Exception {
        for (boolean isEnded : new boolean[] {true, false}) {
            String own = key + isEnded;
            LeasedWork<Exception> late = lease -> {
                runOut(own);
                if (isEnded) {
                    once.lease(Call.of(own), other -> Completion.of(Response.of(202, null)));
                } else {
                    abandon(own);
                }
                return Completion.of(Response.json(LARGE));
            };
            if (isEnded) {
                assertEquals(202, once.lease(Call.of(own), late).response().code());
            } else {
                assertThrows(IdempotencyException.class, () -> once.lease(Call.of(own), late));
            }
        }
        Declined refusal = new Declined(402, null);
        assertEquals(Outcome.FAILED, once.lease(Call.of(key + "d"), lease -> new Completion(Response.json(LARGE), c -> {
            throw refusal;
        })).outcome());
        int[] calls = new int[1];
        for (Response answer : List.of(Response.EMPTY, Response.json(null))) {
            assertThrows(IdempotencyException.Other.class, () -> once.<Exception>lease(Call.of(key + ++calls[0]), lease -> new Completion(answer, c -> {
                calls[0]++;
                c.createStatement().execute("SELECT 'x'::int");
            })));
        }
        assertEquals(4, calls[0]);
    }

    @Test
    void whatWasNotDoneIsFreeAtOnce() throws Exception {
        var reason = new IdempotencyException.NotDone(null);
        assertSame(reason, assertThrows(IdempotencyException.NotDone.class, () -> once.lease(Call.of(key), lease -> {
            throw reason;
        })));
        assertThrows(IdempotencyException.NotDone.class, () -> once.lease(Call.of(key), lease -> new Completion(Response.EMPTY, c -> {
            effect(c);
            throw reason;
        })));
        assertFalse(once.lease(Call.of(key), lease -> done()).takenOver());
        assertEquals(1, effects());
    }

    @Test
    void afterAnErrorTheLeaseRunsOutAndTheNextAttemptFindsOut() throws Exception {
        Call call = Call.of(key).withLease(Duration.ofSeconds(1));
        IOException broken = new IOException();
        assertSame(broken, assertThrows(IOException.class, () -> once.lease(call, lease -> {
            throw broken;
        })));
        Call patient = Call.of(key).withWait(Duration.ofSeconds(20));
        var unknown = assertThrows(IdempotencyException.Unknown.class,
                () -> once.lease(patient, lease -> done(), operation -> new Reconciled.Unknown(Duration.ofSeconds(7))));
        assertEquals(Duration.ofSeconds(7), unknown.retryAfter());
        assertSame(broken, assertThrows(IdempotencyException.Unknown.class, () -> once.lease(patient, lease -> done(), operation -> {
            throw broken;
        })).getCause());
        assertEquals(Duration.ofSeconds(1), assertThrows(IdempotencyException.Unknown.class,
                () -> once.lease(patient, lease -> done(), operation -> null)).retryAfter());
        Result result = once.lease(patient, lease -> done(), operation -> {
            assertTrue(operation.takenOver());
            return new Reconciled.Done(Response.of(200, "\"found\""));
        });
        assertEquals("\"found\"", result.response().payload());
        assertEquals(0, effects());
        assertTrue(events.contains(Event.Type.TAKEN_OVER));

        assertThrows(IOException.class, () -> once.lease(call.withScope("s"), lease -> {
            throw broken;
        }));
        assertTrue(once.lease(patient.withScope("s"), lease -> done(), operation -> new Reconciled.NotDone()).takenOver());
        assertEquals(1, effects());
    }

    @Test
    void afterWorkThatDoesNotKnowTheNextAttemptFindsOut() {
        Call call = Call.of(key).withLease(Duration.ofSeconds(1));
        var reason = new IdempotencyException.Unknown(Duration.ZERO, null);
        assertSame(reason, assertThrows(IdempotencyException.Unknown.class, () -> once.lease(call, lease -> {
            throw reason;
        })));
        assertTrue(once.lease(call.withWait(Duration.ofSeconds(20)), lease -> done()).takenOver());
    }

    @Test
    void thePolicysLeaseIsKeptAlive() throws Exception {
        sql("SELECT idem_set_policy('short', max_lease => '5 seconds')");
        Result result = once.lease(Call.of(key).withScope("short"), lease -> {
            Thread.sleep(6000);
            assertTrue(isLeased());
            assertFalse(lease.isLost());
            return done();
        });
        assertFalse(result.replayed());
        assertEquals(1, effects());
        assertFalse(events.contains(Event.Type.LEASE_LOST));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aNetworkThatHangsOrAPoolThatHasNothingLosesTheLeaseInTime(boolean isPool) throws Exception {
        pool.setMaximumPoolSize(1);
        long start = System.nanoTime();
        var lost = assertThrows(IdempotencyException.LeaseLost.class,
                () -> once.lease(Call.of(key).withLease(Duration.ofSeconds(1)), lease -> {
                    if (isPool) {
                        pool.getConnection();
                    } else {
                        proxy.order("hang");
                    }
                    new CountDownLatch(1).await();
                    return done();
                }));
        Duration took = Duration.ofNanos(System.nanoTime() - start);
        assertTrue(took.compareTo(Duration.ofSeconds(5)) < 0, took::toString);
        assertTrue(lost.getCause() instanceof InterruptedException);
        assertFalse(Thread.currentThread().isInterrupted());
        assertTrue(events.contains(Event.Type.LEASE_LOST));
    }

    @Test
    void aListenerThatFailsEndsNothing() throws Exception {
        var told = new Idempotency(Transactions.of(pool), Options.DEFAULT.withListener(event -> {
            throw new IllegalStateException("a listener");
        }));
        assertFalse(told.lease(Call.of(key), lease -> done()).replayed());
        assertTrue(told.transaction(Call.of(key), (connection, operation) -> Response.EMPTY).replayed());
        assertEquals(1, effects());
    }

    @Test
    void nobodyFindsOutWhatTheFirstAttemptDid() throws Exception {
        assertFalse(once.lease(Call.of(key), lease -> done(), operation -> {
            throw new AssertionError("there was no attempt before");
        }).takenOver());
    }

    @Test
    void whatTheDatabaseRefusesToTheWritesIsNotStored() throws Exception {
        var refused = assertThrows(IdempotencyException.Other.class, () -> once.lease(Call.of(key), lease -> new Completion(Response.EMPTY, c -> {
            effect(c);
            execute(c, "INSERT INTO effect VALUES (NULL)");
        })));
        assertEquals("23502", IdempotencyException.sqlState(refused));
        assertEquals(0, effects());
        assertTrue(isLeased());
    }

    @Test
    void writesThatEndTheirTransactionGiveNoAnswerButOneThatIsStored() {
        for (List<String> ending : List.of(List.of("ROLLBACK"), List.of("ROLLBACK", "BEGIN"), List.of("COMMIT"))) {
            Call call = Call.of(key + ending);
            LeasedWork<RuntimeException> work = lease -> new Completion(Response.json("1"), c -> {
                for (String statement : ending) {
                    execute(c, statement);
                }
                execute(c, "SELECT 1");
            });
            if (ending.contains("COMMIT")) {
                assertEquals("1", once.lease(call, work).response().payload());
            } else {
                assertThrows(IdempotencyException.NotOwned.class, () -> once.lease(call, work));
                assertEquals(Outcome.IN_PROGRESS, once.lookup(call).outcome());
            }
        }
        assertFalse(events.contains(Event.Type.LEASE_LOST));
    }

    @Test
    void whatCannotBeReleasedIsSaidBesideTheReason() {
        var reason = new IdempotencyException.NotDone(null);
        assertSame(reason, assertThrows(IdempotencyException.NotDone.class, () -> once.lease(Call.of(key), lease -> {
            pool.close();
            throw reason;
        })));
        assertEquals(1, reason.getSuppressed().length);
    }

    /** Of each answer that another attempt gave meanwhile, and of work that ends as if nothing were, or heeds the interrupt. */
    @ParameterizedTest
    @CsvSource(delimiter = '!', value = {"idem_complete(o, '1') ! done", "idem_fail(o, '1') ! declined", "idem_extend(o, '1 minute') ! done",
        "idem_release(o) ! done", "idem_complete(o, '1') ! interrupted", "idem_fail(o, '1') ! not done",
        "idem_extend(o, '1 minute') ! interrupted", "idem_release(o) ! not done", "idem_complete(o, '1') ! declined late"})
    void whoWasTakenOverGetsTheAnswerOfTheOtherIfThereIsOne(String end, String how) throws Exception {
        LeasedWork<Exception> overtaken = lease -> {
            sql("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key = '" + key + "'",
                    "SELECT " + end + " FROM idem_begin('" + key + "', lease => '1 minute') o");
            try {
                if (!how.equals("done") && !how.equals("declined")) {
                    new CountDownLatch(1).await();
                }
            } catch (InterruptedException loss) {
                if (how.equals("interrupted")) {
                    throw loss;
                } else if (how.equals("not done")) {
                    throw new IdempotencyException.NotDone(loss);
                }
            }
            if (how.startsWith("declined")) {
                throw new Declined(402, null);
            }
            return done();
        };
        Call call = Call.of(key).withLease(Duration.ofSeconds(1));
        if (end.endsWith("'1')")) {
            Result other = once.lease(call, overtaken);
            assertEquals("1", other.response().payload());
            assertTrue(other.replayed());
            assertTrue(events.contains(Event.Type.REPLAYED));
        } else {
            var lost = assertThrows(IdempotencyException.LeaseLost.class, () -> once.lease(call, overtaken));
            assertTrue(how.equals("done") ? "ID409".equals(IdempotencyException.sqlState(lost))
                    : IdempotencyException.has(InterruptedException.class, lost), lost::toString);
        }
        assertFalse(Thread.interrupted());
        assertFalse(events.contains(Event.Type.DECLINED));
        assertEquals(1, Collections.frequency(events, Event.Type.LEASE_LOST));
        assertEquals(0, effects());
    }

    /** The record has gone since, by its expiry or by idem_forget. */
    @Test
    void aLostLeaseGetsNoAnswerOfAnotherOperationWithItsKey() {
        assertThrows(IdempotencyException.LeaseLost.class, () -> once.lease(Call.of(key).withRequest("\"mine\""), lease -> {
            sql("DELETE FROM idempotency_store WHERE idempotency_key = '" + key + "'");
            once.lease(Call.of(key).withRequest("\"another\""), other -> done());
            return done();
        }));
    }

    /** The pool had no connection for so long. */
    @Test
    void noWorkBeginsAfterTheLease() {
        var slow = (DataSource) java.lang.reflect.Proxy.newProxyInstance(DataSource.class.getClassLoader(), new Class<?>[] {DataSource.class},
                (self, method, arguments) -> {
                    LockSupport.parkNanos(Duration.ofMillis(600).toNanos());
                    return method.invoke(pool, arguments);
                });
        var client = new Idempotency(Transactions.of(slow), once.options());
        assertThrows(IdempotencyException.LeaseLost.class, () -> client.lease(Call.of(key).withLease(Duration.ofMillis(500)), lease -> {
            throw new AssertionError("the work has begun");
        }));
        assertNull(once.lookup(Call.of(key)));
    }

    @Test
    void aLeaseThatIsOverBeforeItsBeginIsAnsweredIsLostAndNoConnectionIs() throws Exception {
        var client = new Idempotency(Transactions.of(pool), once.options().withLease(Duration.ofNanos(1000)));
        assertThrows(IdempotencyException.LeaseLost.class, () -> client.lease(Call.of(key), lease -> {
            throw new AssertionError("the work has begun");
        }));
        assertNull(client.lookup(Call.of(key)));
        once.lease(Call.of(key), lease -> {
            client.progress(lease.operation(), "1");
            return done();
        });
    }

    /** The work does not heed the interrupt, which ends with it. */
    @Test
    void aLossIsToldOnceAndBeforeTheLeaseIsOver() throws Exception {
        long start = System.nanoTime();
        assertThrows(IdempotencyException.LeaseLost.class, () -> once.lease(Call.of(key).withLease(Duration.ofSeconds(6)), lease -> {
            sql("SELECT idem_release('" + key + "', fence => " + lease.operation().fence() + ")");
            while (System.nanoTime() - start < Duration.ofSeconds(4).toNanos()) { // the next beat would come within
                LockSupport.parkNanos(10_000_000);
            }
            assertTrue(lease.isLost());
            return done();
        }));
        assertFalse(Thread.interrupted());
        assertEquals(1, Collections.frequency(events, Event.Type.LEASE_LOST));
        assertEquals(0, effects());
    }

    @Test
    void anInterruptOfTheWorksOwnStaysAndNoneComesBehindIt() throws Exception {
        var plain = new PGSimpleDataSource(); // a pool would not wait for a connection
        plain.setUrl(proxy.url());
        var client = new Idempotency(Transactions.of(plain), once.options());
        client.lease(Call.of(key).withLease(Duration.ofSeconds(1)), lease -> {
            Thread.currentThread().interrupt();
            return done();
        });
        assertTrue(Thread.interrupted());
        Thread.sleep(700); // a beat would come after a third of a second, and lose
        assertFalse(events.contains(Event.Type.LEASE_LOST));
    }

    @Test
    void aBeatThatIsUnderWayWhenTheWorkEndsLosesNothing() throws Exception {
        IOException broken = new IOException();
        assertSame(broken, assertThrows(IOException.class, () -> once.lease(Call.of(key).withLease(Duration.ofSeconds(1)), lease -> {
            proxy.order("hang");
            Thread.sleep(500); // the first beat has come
            throw broken;
        })));
        Thread.sleep(700); // its time is over
        assertFalse(events.contains(Event.Type.LEASE_LOST));
    }

    @Test
    void aNoteGoesToTheNextOwnerOnly() throws Exception {
        Operation[] first = new Operation[1];
        assertThrows(IOException.class, () -> once.lease(Call.of(key), lease -> {
            first[0] = lease.operation();
            assertNull(first[0].response().payload());
            once.progress(first[0], "0");
            once.progress(first[0], "{\"charged\": 1}");
            throw new IOException("reset");
        }));
        sql("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key = '" + key + "'");
        Result result = once.lease(Call.of(key), lease -> {
            assertEquals("{\"charged\": 1}", lease.operation().response().payload());
            assertThrows(IdempotencyException.LeaseLost.class, () -> once.progress(first[0], "1"));
            assertThrows(IllegalArgumentException.class, () -> once.progress(lease.operation(), null));
            assertThrows(IdempotencyException.TooLarge.class, () -> once.progress(lease.operation(), '"' + "x".repeat(2_000_000) + '"'));
            once.progress(lease.operation(), "null");
            return done();
        }, operation -> {
            assertEquals("{\"charged\": 1}", operation.response().payload());
            return new Reconciled.NotDone();
        });
        assertTrue(result.takenOver());
        assertEquals("{\"id\": 1}", once.lookup(Call.of(key)).response().payload());
    }
}
