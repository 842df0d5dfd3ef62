package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Connections that are lost, and what pools give. */
@Timeout(60)
class ConnectionTest extends OnServer {
    @ParameterizedTest
    @ValueSource(strings = {"before idem_begin", "after idem_begin", "before INSERT INTO effect", "after INSERT INTO effect",
        "before idem_complete", "after idem_complete", "before commit", "after commit"})
    void aLostConnectionLeavesOneEffect(String where) throws Exception {
        String[] fault = where.split(" ", 2);
        proxy.order("arm", fault[0], fault[1]);
        Result result = once.transaction(Call.of(key), (connection, operation) -> work(connection));
        assertEquals(Outcome.COMPLETED, result.outcome());
        assertEquals(where.equals("after idem_complete") || where.equals("after commit"), result.replayed()); // they are one trip
        assertEquals(1, effects());
        assertTrue(proxy.order("state").startsWith("{\"hits\": 1,"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"transaction", "isolation", "lease"})
    void aSessionThatWasIdleForTooLongIsNoAttempt(String what) throws Exception {
        var impatient = new Idempotency(Transactions.of(pool),
                Options.DEFAULT.withRetry(1, Duration.ofMillis(1), Duration.ofMillis(1)));
        try (Connection watching = pool.getConnection()) {
            impatient.transaction(Call.of(key + "idle"), (connection, operation) -> {
                execute(connection, "SET application_name = '" + key + "'");
                execute(connection, "SET idle_session_timeout = 1");
                return Response.EMPTY;
            });
            execute(watching, "DO $$BEGIN WHILE EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '" + key
                    + "') LOOP PERFORM pg_stat_clear_snapshot(); END LOOP; END$$");
            Call call = Call.of(key).withIsolation(what.equals("isolation") ? Connection.TRANSACTION_SERIALIZABLE : 0);
            Result result = what.equals("lease")
                    ? impatient.lease(call, lease -> new Completion(Response.EMPTY, this::effect))
                    : impatient.transaction(call, (connection, operation) -> work(connection));
            assertEquals(Outcome.COMPLETED, result.outcome());
        }
        assertEquals(1, effects());
    }

    @ParameterizedTest
    @ValueSource(strings = {"08006", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
    void anEndOfTheConnectionIsRepeated(String state) throws Exception {
        AtomicInteger runs = new AtomicInteger();
        once.transaction(Call.of(key), (connection, operation) -> {
            if (runs.incrementAndGet() == 1) {
                execute(connection, "DO $$BEGIN RAISE SQLSTATE '" + state + "'; END$$");
            }
            return work(connection);
        });
        assertEquals(2, runs.get());
        assertEquals(1, effects());
    }

    /** HikariCP ends a connection after 0A000. */
    @Test
    void anErrorAfterWhichThePoolEndsTheConnectionIsThrownAsItIs() throws Exception {
        AtomicInteger runs = new AtomicInteger();
        assertEquals("0A000", assertThrows(SQLException.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
            runs.incrementAndGet();
            execute(connection, "DO $$BEGIN RAISE SQLSTATE '0A000'; END$$");
            return work(connection);
        })).getSQLState());
        assertEquals(1, runs.get());
    }

    /** Until then it owns the operation. */
    @Test
    void theSessionOfALostConnectionIsWaitedFor() throws Exception {
        AtomicInteger runs = new AtomicInteger();
        Result result = once.transaction(Call.of(key), (connection, operation) -> {
            if (runs.incrementAndGet() == 1) {
                connection.setNetworkTimeout(Runnable::run, 100);
                execute(connection, "SELECT pg_sleep(1)");
            }
            return work(connection);
        });
        assertEquals(Outcome.COMPLETED, result.outcome());
        assertEquals(1, effects());
    }

    /** What cannot be rolled back was lost, whatever the work makes of it. */
    @Test
    void aLostConnectionThatTheWorkHidesIsRepeated() throws Exception {
        AtomicInteger runs = new AtomicInteger();
        once.transaction(Call.of(key), (connection, operation) -> {
            if (runs.incrementAndGet() == 1) {
                assertThrows(SQLException.class, () -> execute(connection, "SELECT pg_terminate_backend(pg_backend_pid())"));
                throw new IllegalStateException("the work's own");
            }
            return work(connection);
        });
        assertEquals(2, runs.get());
        assertEquals(1, effects());
    }

    @Test
    void aPoolThatResetsNothingGetsItsConnectionBackAsItWas() throws Exception {
        try (Connection kept = pool.getConnection()) {
            kept.setAutoCommit(false);
            Connection unclosed = instead(Connection.class, "close", null, kept);
            Transactions transactions = Transactions.of(instead(DataSource.class, "getConnection", unclosed, pool));
            assertThrows(IdempotencyException.class,
                    () -> new Idempotency(transactions, Options.DEFAULT.withSchema("nonesuch")).lookup(Call.of(key)));
            assertEquals(0, kept.getNetworkTimeout());
            assertFalse(kept.getAutoCommit());
            Call strict = Call.of(key).withIsolation(Connection.TRANSACTION_SERIALIZABLE);
            for (Throwable broken : Arrays.asList(new IOException(), new LinkageError(), null)) {
                kept.setAutoCommit(true);
                try {
                    new Idempotency(transactions, Options.DEFAULT).transaction(strict, (connection, operation) -> {
                        assertEquals(Connection.TRANSACTION_SERIALIZABLE, connection.getTransactionIsolation());
                        try (var row = connection.createStatement().executeQuery("SHOW default_transaction_isolation")) {
                            row.next();
                            assertEquals("read committed", row.getString(1)); // behind a pooler the session is another client's next
                        }
                        if (broken instanceof IOException error) {
                            throw error;
                        } else if (broken instanceof LinkageError error) {
                            throw error;
                        }
                        return Response.EMPTY;
                    });
                } catch (IOException | LinkageError error) {
                    assertSame(broken, error);
                }
                assertTrue(kept.getAutoCommit());
                assertEquals(Connection.TRANSACTION_READ_COMMITTED, kept.getTransactionIsolation());
            }
        }
    }

    @Test
    void aPoolWhoseConnectionsDoNotCommitByThemselvesCommitsALease() throws Exception {
        try (Connection kept = pool.getConnection()) {
            kept.setAutoCommit(false);
            Connection unclosed = instead(Connection.class, "close", null, kept);
            var client = new Idempotency(Transactions.of(instead(DataSource.class, "getConnection", unclosed, pool)),
                    Options.DEFAULT);
            client.lease(Call.of(key), lease -> {
                assertTrue(isLeased());
                return Completion.of(Response.EMPTY);
            });
            assertEquals(Outcome.COMPLETED, once.lookup(Call.of(key)).outcome());
        }
    }

    /** As pools give one to a thread that is in a transaction of JTA, or of Spring. Its COMMIT would not be its owner's any more. */
    @Test
    void aConnectionThatIsInATransactionIsRefused() throws Exception {
        try (Connection taken = pool.getConnection()) {
            taken.setAutoCommit(false);
            Connection unclosed = instead(Connection.class, "close", null, taken);
            Connection enlisted = (Connection) java.lang.reflect.Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {Connection.class},
                    (self, method, arguments) -> {
                        if (method.getName().equals("setAutoCommit") && arguments[0].equals(true)) {
                            throw new SQLException("enlisted");
                        }
                        return method.invoke(unclosed, arguments);
                    });
            for (Connection connection : List.of(enlisted, unclosed)) {
                var client = new Idempotency(Transactions.of(instead(DataSource.class, "getConnection", connection, pool)),
                        Options.DEFAULT);
                for (Executable call : List.<Executable>of(() -> client.transaction(Call.of(key), (c, operation) -> work(c)),
                        () -> client.lease(Call.of(key), lease -> Completion.of(Response.EMPTY)))) {
                    assertEquals("25001", IdempotencyException.sqlState(assertThrows(IdempotencyException.Other.class, call)));
                }
                effect(taken); // begins the transaction that the second one is in
            }
            taken.rollback();
        }
        assertEquals(0, effects());
        assertNull(once.lookup(Call.of(key)));
    }

    /** The query has begun a transaction when the pool gives the connection. */
    @Test
    void aPoolMayTestConnectionsByAQueryInATransaction() throws Exception {
        try (var tested = new HikariDataSource()) {
            tested.setJdbcUrl(proxy.url());
            tested.setMaximumPoolSize(1);
            tested.setAutoCommit(false);
            tested.setConnectionTestQuery("SELECT 1");
            var client = new Idempotency(Transactions.of(tested), Options.DEFAULT);
            assertEquals(Outcome.COMPLETED,
                    client.transaction(Call.of(key), (connection, operation) -> work(connection)).outcome());
            assertTrue(client.lease(Call.of(key), lease -> fail("it has run")).replayed());
        }
        assertEquals(1, effects());
    }

    @Test
    void aStatementOfItsOwnDoesNotHangLongerThanALease() {
        var endless = new Idempotency(Transactions.of(pool), Options.DEFAULT.withLease(Duration.ofDays(30))); // more milliseconds than an int has
        assertNull(endless.lookup(Call.of(key)));
        var client = new Idempotency(Transactions.of(pool), Options.DEFAULT.withLease(Duration.ofMillis(500))
                .withRetry(1, Duration.ZERO, Duration.ZERO));
        assertNull(client.lookup(Call.of(key)));
        assertTimeoutPreemptively(Duration.ofSeconds(20), () -> {
            proxy.order("hang");
            assertThrows(IdempotencyException.ConnectionLost.class, () -> client.lookup(Call.of(key)));
        });
    }

    @Test
    void theAnswerAndTheCommitAreOneTrip() throws Exception {
        try (Connection kept = pool.getConnection()) {
            Connection silent = instead(Connection.class, "commit", null, instead(Connection.class, "close", null, kept));
            var client = new Idempotency(Transactions.of(instead(DataSource.class, "getConnection", silent, pool)),
                    Options.DEFAULT);
            kept.setAutoCommit(false);
            client.transaction(Call.of(key), (connection, operation) -> work(connection));
            client.lease(Call.of(key + "x"), lease -> new Completion(Response.EMPTY, this::effect));
            assertEquals(2, effects());
        }
    }

    /** One that does not commit by itself says without a trip that it is in no transaction. */
    @Test
    void aFreeConnectionIsNotAskedWhetherItIsFree() throws Exception {
        try (Connection kept = pool.getConnection()) {
            kept.setAutoCommit(false);
            Connection unasked = instead(Connection.class, "createStatement", null, kept);
            var client = new Idempotency(Transactions.of(instead(DataSource.class, "getConnection", unasked, pool)),
                    Options.DEFAULT);
            assertEquals(Outcome.COMPLETED,
                    client.transaction(Call.of(key), (connection, operation) -> Response.EMPTY).outcome());
        }
    }

    /** As the object, but one method returns something else. */
    private static <T> T instead(Class<T> type, String name, Object value, T object) {
        return type.cast(java.lang.reflect.Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
                (self, method, arguments) -> {
                    try {
                        return method.getName().equals(name) ? value : method.invoke(object, arguments);
                    } catch (InvocationTargetException error) {
                        throw error.getCause();
                    }
                }));
    }
}
