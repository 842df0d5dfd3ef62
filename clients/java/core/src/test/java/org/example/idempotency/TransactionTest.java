package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.postgresql.ds.PGSimpleDataSource;

@Timeout(60)
class TransactionTest extends OnServer {
    @Test
    void aRetryGetsTheFirstAnswer() throws Exception {
        byte[] body = {0, (byte) 255, 10};
        var answer = new Response(201, Map.of("X-\"é", "1"), "{\"id\": 1}", body, Duration.ofDays(2));
        Result first = once.transaction(Call.of(key).withRequest("{\"a\": 1}"), (connection, operation) -> {
            assertEquals(1, operation.attempt());
            effect(connection);
            return answer;
        });
        Result second = once.transaction(Call.of(key).withRequest("{ \"a\":1 }"), (connection, operation) -> work(connection));
        assertFalse(first.replayed());
        assertTrue(second.replayed());
        assertEquals(Outcome.COMPLETED, second.outcome());
        assertEquals(201, second.response().code());
        assertEquals(answer.headers(), second.response().headers());
        assertEquals("{\"id\": 1}", second.response().payload());
        assertArrayEquals(body, second.orThrow().body());
        assertNull(first.record());
        assertEquals(64, second.record().length());
        assertEquals(1, effects());
        Operation stored = once.lookup(Call.of(key));
        assertEquals(Duration.ofDays(2),
                Duration.between(stored.createdAt(), stored.expiresAt()).truncatedTo(java.time.temporal.ChronoUnit.DAYS));
        assertNull(once.lookup(Call.of(key + "x")));
        assertEquals(List.of(Event.Type.ACQUIRED, Event.Type.REPLAYED), events);
    }

    @Test
    void anotherRequestIsRefused() throws Exception {
        once.transaction(Call.of(key).withRequest("1"), (connection, operation) -> work(connection));
        assertThrows(IdempotencyException.KeyReused.class,
                () -> once.transaction(Call.of(key).withRequest("2"), (connection, operation) -> work(connection)));
        assertThrows(IdempotencyException.KeyReused.class,
                () -> once.transaction(Call.of(key).withRequestHash(new byte[32]), (connection, operation) -> work(connection)));
        assertEquals(Event.Type.MISMATCH, events.get(1));
        once.transaction(Call.of(key).withScope("other").withRequest("2"), (connection, operation) -> work(connection));
        assertEquals(2, effects());
    }

    @Test
    void aRefusalIsStoredAndItsWritesAreGone() throws Exception {
        AtomicInteger runs = new AtomicInteger();
        for (int i = 0; i < 2; i++) {
            Result result = once.transaction(Call.of(key), (connection, operation) -> {
                runs.incrementAndGet();
                effect(connection);
                throw new Declined(402, "{\"reason\": \"declined\"}");
            });
            assertEquals(Outcome.FAILED, result.outcome());
            assertEquals(i == 1, result.replayed());
            assertNull(result.retryAfter());
            Declined refusal = assertThrows(Declined.class, result::orThrow);
            assertEquals(402, refusal.response().code());
            assertEquals("declined with code 402", refusal.getMessage());
        }
        assertEquals(1, runs.get());
        assertEquals(0, effects());
        assertEquals(List.of(Event.Type.ACQUIRED, Event.Type.ACQUIRED, Event.Type.DECLINED, Event.Type.REPLAYED), events);
    }

    /** Between the rollback of the work and the transaction of the refusal. */
    @ParameterizedTest
    @EnumSource(names = {"COMPLETED", "FAILED", "IN_PROGRESS"})
    void aRefusalThatARetryHasOvertakenIsItsAnswer(Outcome what) throws Exception {
        AtomicInteger transactions = new AtomicInteger();
        var overtaken = new Idempotency(new Transactions() {
            @Override
            public <T> T run(int isolation, Body<T> body) throws Exception {
                if (transactions.incrementAndGet() == 2) {
                    var retry = new FutureTask<Void>(() -> {
                        sql("BEGIN", "SELECT idem_begin('" + key + "')", switch (what) {
                            case COMPLETED -> "SELECT idem_complete('" + key + "'), pg_sleep(0.5)"; // which is waited for
                            case FAILED -> "SELECT idem_fail('" + key + "')";
                            default -> "SELECT idem_release('" + key + "')";
                        }, "COMMIT");
                        return null;
                    });
                    new Thread(retry).start();
                    while (!retry.isDone() && number("count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND substr(query, 23, 36)") == 0) {
                        Thread.onSpinWait();
                    }
                    if (what == Outcome.IN_PROGRESS) {
                        sql("SELECT idem_begin('" + key + "', lease => '1 minute')");
                    }
                }
                return Transactions.of(pool).run(isolation, body);
            }

            @Override
            public DataSource dataSource() {
                return pool;
            }
        }, once.options());
        Result result = overtaken.transaction(Call.of(key), (connection, operation) -> {
            throw new Declined(402, null);
        });
        assertEquals(what, result.outcome());
        assertEquals(0, result.response().code());
        assertFalse(events.contains(Event.Type.DECLINED));
    }

    @Test
    void aRefusalForAWhileIsTriedAgain() throws Exception {
        once.transaction(Call.of(key), (connection, operation) -> {
            throw new Declined(Response.of(429, null), Duration.ofSeconds(-1));
        });
        Result refused = once.transaction(Call.of(key), (connection, operation) -> {
            throw new Declined(Response.of(429, null), Duration.ofHours(1));
        });
        assertEquals(Duration.ofHours(1), refused.retryAfter());
        Result again = once.transaction(Call.of(key), (connection, operation) -> work(connection));
        assertTrue(again.replayed());
        assertTrue(again.retryAfter().compareTo(Duration.ofMinutes(50)) > 0);
        sql("SELECT idem_forget('" + key + "')");
        Result third = once.transaction(Call.of(key), (connection, operation) -> work(connection));
        assertFalse(third.replayed());
    }

    @Test
    void anErrorOfTheWorkIsThrownAsItIsAndNothingIsStored() throws Exception {
        IOException broken = new IOException("broken");
        assertSame(broken, assertThrows(IOException.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
            effect(connection);
            throw broken;
        })));
        Error error = new AssertionError();
        assertSame(error, assertThrows(AssertionError.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
            effect(connection);
            throw error;
        })));
        assertEquals(0, effects());
        assertFalse(once.transaction(Call.of(key), (connection, operation) -> work(connection)).replayed());
    }

    @Test
    void theWorkCannotEndTheTransaction() throws Exception {
        once.transaction(Call.of(key), (connection, operation) -> {
            effect(connection);
            assertEquals("2D000", assertThrows(SQLException.class, connection::commit).getSQLState());
            assertThrows(SQLException.class, connection::rollback);
            assertThrows(SQLException.class, connection::close);
            assertThrows(SQLException.class, () -> connection.setAutoCommit(true));
            assertThrows(SQLException.class, () -> connection.abort(Runnable::run));
            connection.rollback(connection.setSavepoint());
            return Response.EMPTY;
        });
        assertEquals(1, effects());
        assertThrows(IdempotencyException.NotOwned.class, () -> once.transaction(Call.of(key + "x"), (connection, operation) -> {
            execute(connection, "SELECT idem_complete('" + key + "x')");
            return Response.EMPTY;
        }));
    }

    @Test
    void aSwallowedFailureIsNotStored() throws Exception {
        assertThrows(IdempotencyException.RolledBack.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
            effect(connection);
            assertThrows(SQLException.class, () -> execute(connection, "SELECT 1/0"));
            return Response.EMPTY;
        }));
        assertEquals(0, effects());
        assertNull(once.lookup(Call.of(key)));
    }

    @Test
    void conflictsAreRepeatedAsOftenAsTheOptionsSay() throws Exception {
        var quick = new Idempotency(Transactions.of(pool),
                once.options().withRetry(3, Duration.ofMillis(1), Duration.ofMillis(2)));
        AtomicInteger runs = new AtomicInteger();
        Work<SQLException> work = (connection, operation) -> {
            effect(connection);
            if (runs.incrementAndGet() != 3) {
                execute(connection, "DO $$BEGIN RAISE 'conflict' USING ERRCODE = '40001'; END$$");
            }
            return Response.EMPTY;
        };
        assertEquals(Outcome.COMPLETED,
                quick.transaction(Call.of(key).withIsolation(Connection.TRANSACTION_SERIALIZABLE), work).outcome());
        assertEquals(1, effects());
        assertEquals(2, events.stream().filter(Event.Type.RETRIED::equals).count());
        runs.set(3);
        SQLException last = assertThrows(SQLException.class, () -> quick.transaction(Call.of(key + "x"), work));
        assertEquals("40001", last.getSQLState());
        assertEquals(6, runs.get());
    }

    @Test
    void whoseAttemptsAreLostTooOftenFailsForGood() throws Exception {
        Work<SQLException> breaks = (connection, operation) -> {
            execute(connection, "SELECT 1/0");
            return Response.EMPTY;
        };
        Call limited = Call.of(key).withMaxLostAttempts(2);
        for (int i = 0; i < 2; i++) {
            assertEquals("22012", assertThrows(SQLException.class, () -> once.transaction(limited, breaks)).getSQLState());
        }
        assertThrows(SQLException.class, () -> once.transaction(Call.of(key).withMaxLostAttempts(-1), breaks));
        assertThrows(SQLException.class, () -> once.transaction(Call.of(key), breaks));
        Result result = once.transaction(limited, breaks);
        assertEquals(Outcome.FAILED, result.outcome());
        assertEquals("{\"reason\": \"attempts lost\", \"lost_attempts\": 4}", result.response().payload());
        assertEquals(result.response().payload(), once.lookup(Call.of(key)).response().payload());
        assertEquals("0", one("SHOW idempotency.max_lost_attempts"));
    }

    @Test
    void theLimitOfLostAttemptsHoldsForALeaseToo() {
        Call limited = Call.of(key).withMaxLostAttempts(1);
        assertThrows(SQLException.class, () -> once.transaction(limited, (connection, operation) -> {
            throw new SQLException("down");
        }));
        assertEquals(Outcome.FAILED, once.lease(limited, lease -> Completion.of(Response.EMPTY)).outcome());
    }

    @Test
    void aRefusalIsNoLostAttempt() throws Exception {
        Call limited = Call.of(key).withMaxLostAttempts(1);
        assertThrows(IdempotencyException.NotDone.class, () -> once.transaction(limited, (connection, operation) -> {
            effect(connection);
            throw new IdempotencyException.NotDone(null);
        }));
        Result refused = once.transaction(limited, (connection, operation) -> {
            assertThrows(SQLException.class, () -> execute(connection, "SELECT 1/0"));
            throw new Declined(402, null);
        });
        assertEquals(402, refused.response().code());
        assertEquals(0, effects());
    }

    @ParameterizedTest
    @ValueSource(strings = {"SELECT 1", "SELECT 1/0", "SELECT pg_terminate_backend(pg_backend_pid())"})
    void notDoneIsThrownAgainWhateverBecameOfTheConnection(String spoil) throws Exception {
        var notDone = new IdempotencyException.NotDone(new SQLException("why", "40001"));
        AtomicInteger runs = new AtomicInteger();
        assertSame(notDone, assertThrows(IdempotencyException.NotDone.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
            runs.incrementAndGet();
            effect(connection);
            try {
                execute(connection, spoil);
            } catch (SQLException spoilt) {
                throw notDone;
            }
            throw notDone;
        })));
        assertEquals(1, runs.get());
        assertEquals(0, effects());
    }

    @Test
    void aCancellationIsNotRepeatedWhateverItsCauseIs() {
        var cancelled = new CancellationException("nobody waits");
        cancelled.initCause(new SQLException("why", "40001"));
        AtomicInteger runs = new AtomicInteger();
        assertSame(cancelled, assertThrows(CancellationException.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
            runs.incrementAndGet();
            throw cancelled;
        })));
        assertEquals(1, runs.get());
    }

    @Test
    void whatIsRunningIsInProgressOrWaitedFor() throws Exception {
        CountDownLatch started = new CountDownLatch(1);
        CountDownLatch goOn = new CountDownLatch(1);
        var first = CompletableFuture.supplyAsync(() -> once.transaction(Call.of(key), (connection, operation) -> {
            started.countDown();
            try {
                assertTrue(goOn.await(20, TimeUnit.SECONDS));
                return work(connection);
            } catch (InterruptedException | SQLException error) {
                throw new IllegalStateException(error);
            }
        }));
        assertTrue(started.await(20, TimeUnit.SECONDS));
        Result busy = once.transaction(Call.of(key), (connection, operation) -> work(connection));
        assertEquals(Outcome.IN_PROGRESS, busy.outcome());
        assertThrows(IdempotencyException.InProgress.class, busy::orThrow);
        assertEquals(1, events.stream().filter(Event.Type.IN_PROGRESS::equals).count());
        var waiting = CompletableFuture.supplyAsync(() -> {
            try {
                return once.transaction(Call.of(key).withWait(Duration.ofSeconds(20)),
                        (connection, operation) -> work(connection));
            } catch (SQLException error) {
                throw new IllegalStateException(error);
            }
        });
        goOn.countDown();
        assertFalse(first.get().replayed());
        assertTrue(waiting.get().replayed());
        assertEquals(1, effects());
    }

    /** The thread stays interrupted, for whoever called. */
    @Test
    void anInterruptEndsAWait() throws Exception {
        var plain = new PGSimpleDataSource();
        plain.setUrl(proxy.url());
        var patient = new Idempotency(Transactions.of(plain),
                Options.DEFAULT.withRetry(9, Duration.ofDays(1), Duration.ofDays(1)));
        sql("SELECT idem_begin('" + key + "', lease => '1 minute')");
        Thread.currentThread().interrupt();
        Result busy = patient.transaction(Call.of(key).withWait(Duration.ofDays(1)), (connection, operation) -> work(connection));
        assertEquals(Outcome.IN_PROGRESS, busy.outcome());
        assertTrue(Thread.currentThread().isInterrupted());
        AtomicInteger runs = new AtomicInteger();
        assertThrows(SQLException.class, () -> patient.transaction(Call.of(key + "x"), (connection, operation) -> {
            runs.incrementAndGet();
            throw new SQLException("conflict", "40001");
        }));
        assertTrue(Thread.interrupted());
        assertEquals(1, runs.get());
    }

    @Test
    void whatIsMissingIsSaidWithWhatToDo() throws Exception {
        var elsewhere = new Idempotency(Transactions.of(pool), Options.DEFAULT.withSchema("no\"where"));
        var missing = assertThrows(IdempotencyException.NotReady.class,
                () -> elsewhere.transaction(Call.of(key), (connection, operation) -> Response.EMPTY));
        assertTrue(missing.getMessage().contains("the schema of the options does not exist"), missing.getMessage());
        assertEquals("3F000", IdempotencyException.sqlState(missing));
        var without = new Idempotency(Transactions.of(pool), Options.DEFAULT.withSchema("pg_catalog"));
        String advice = assertThrows(IdempotencyException.NotReady.class,
                () -> without.transaction(Call.of(key), (connection, operation) -> Response.EMPTY)).getMessage();
        assertTrue(advice.contains("CREATE EXTENSION idempotency") && advice.contains("idem_grant"), advice);
        assertThrows(IdempotencyException.BadArgument.class, () -> once.transaction(Call.of(""), (c, o) -> Response.EMPTY));
        assertThrows(IdempotencyException.BadArgument.class,
                () -> once.transaction(Call.of(key).withRequest("{"), (c, o) -> Response.EMPTY));
    }

    @Test
    void halfOfACharacterIsRefused() throws Exception {
        String half = key + "\ud800";
        for (var failing : List.<Executable>of(
                () -> once.transaction(Call.of(half), (connection, operation) -> work(connection)),
                () -> once.transaction(Call.of(key).withScope(half), (connection, operation) -> work(connection)),
                () -> once.transaction(Call.of(key).withRequest('"' + half + '"'), (connection, operation) -> work(connection)),
                () -> once.transaction(Call.of(key), (connection, operation) -> Response.json('"' + half + '"')),
                () -> once.batch(null, batch -> batch.beginMany(List.of(half), null)),
                () -> once.batch(half, batch -> batch.beginMany(List.of(key), null)))) {
            assertEquals("22021", IdempotencyException.sqlState(assertThrows(IdempotencyException.class, failing)));
        }
        assertEquals(0, effects());
        assertFalse(once.transaction(Call.of(key).withRequest("\"\ud83d\ude00\""), (connection, operation) -> work(connection))
                .replayed());
    }

    /** Asked again at once, it would leave a session on the server each time. */
    @Test
    @Timeout(20)
    void aBeginThatTakesTooLongIsAnAttempt() throws Exception {
        var hasty = new PGSimpleDataSource();
        hasty.setUrl(proxy.url() + "&socketTimeout=1");
        var client = new Idempotency(Transactions.of(hasty), once.options().withRetry(2, Duration.ZERO, Duration.ZERO));
        try (Connection blocking = pool.getConnection()) {
            blocking.setAutoCommit(false);
            execute(blocking, "LOCK TABLE idempotency_store");
            assertThrows(IdempotencyException.ConnectionLost.class,
                    () -> client.transaction(Call.of(key), (c, operation) -> work(c)));
            blocking.rollback();
        }
        assertEquals(List.of(Event.Type.RETRIED), events);
    }

    @Test
    void noExceptionQuotesARequestOrAResponse() {
        String secret = "{\"card\": \"4111\", \"bad\": \"\\u0000\"}";
        for (var failing : List.<Executable>of(
                () -> once.transaction(Call.of(key).withRequest(secret), (connection, operation) -> Response.EMPTY),
                () -> once.transaction(Call.of(key), (connection, operation) -> Response.json(secret)),
                () -> once.lease(Call.of(key + "x"), lease -> Completion.of(Response.json(secret))),
                () -> once.batch(null, batch -> batch.beginMany(List.of(key), List.of(secret))),
                () -> once.batch(null, batch -> batch.completeMany(List.of(key), List.of(secret))))) {
            var error = assertThrows(IdempotencyException.class, failing);
            var trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            assertFalse(trace.toString().contains("4111"), trace::toString);
            assertEquals("22P05", IdempotencyException.sqlState(error));
        }
    }

    @Test
    void theRetentionOfTheOptionsIsTheUsualOne() throws Exception {
        var client = new Idempotency(Transactions.of(pool), Options.DEFAULT.withRetention(Duration.ofDays(3)));
        client.transaction(Call.of(key), (connection, operation) -> Response.EMPTY);
        client.transaction(Call.of(key + "x").withRetention(Duration.ofDays(5)), (connection, operation) -> Response.EMPTY);
        Operation usual = once.lookup(Call.of(key));
        Operation own = once.lookup(Call.of(key + "x"));
        assertEquals(3, Duration.between(usual.createdAt(), usual.expiresAt()).toDays());
        assertEquals(5, Duration.between(own.createdAt(), own.expiresAt()).toDays());
        sql("UPDATE idempotency_store SET expires_at = 'infinity' WHERE idempotency_key = '" + key + "'");
        assertNull(once.lookup(Call.of(key)).expiresAt());
    }

    @Test
    void whatTheCommitRefusesIsNotStored() throws Exception {
        sql("CREATE TABLE IF NOT EXISTS self (id int PRIMARY KEY,"
                + " other int REFERENCES self DEFERRABLE INITIALLY DEFERRED)");
        for (int i = 0; i < 2; i++) {
            var refused = assertThrows(IdempotencyException.Other.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
                effect(connection);
                execute(connection, "INSERT INTO self VALUES (1, 2)");
                return Response.EMPTY;
            }));
            assertEquals("23503", IdempotencyException.sqlState(refused));
        }
        assertEquals(0, effects());
        assertNull(once.lookup(Call.of(key)));
    }
}
