package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class LeaseTest extends OnServer {
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
                CompletableFuture.runAsync(() -> held.forEach(LeaseTest::close),
                        CompletableFuture.delayedExecutor(200, TimeUnit.MILLISECONDS));
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
            assertThrows(IdempotencyException.TooLarge.class,
                    () -> once.progress(lease.operation(), '"' + "x".repeat(2_000_000) + '"'));
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
