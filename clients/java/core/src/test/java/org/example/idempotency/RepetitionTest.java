package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.net.SocketTimeoutException;
import java.sql.SQLException;
import java.sql.SQLNonTransientConnectionException;
import java.sql.SQLRecoverableException;
import java.sql.SQLTransientConnectionException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;

/** What is repeated, how often and after how long. */
class RepetitionTest {
    private static int attempts(int most, Duration base, Exception error) {
        var once = new Idempotency(Transactions.of(null), Options.DEFAULT.withRetry(most, base, Duration.ofNanos(1)));
        int[] runs = new int[1];
        assertSame(error, assertThrows(Exception.class, () -> once.repeat(Call.of("k").over(Options.DEFAULT), afterLoss -> {
            assertTrue(++runs[0] < 1000, "it does not end");
            throw error;
        })));
        return runs[0];
    }

    @Test
    void aBackoffGrowsBeyondEachClock() {
        assertEquals(70, attempts(70, Duration.ofDays(36_500), new SQLException("conflict", "40001")));
    }

    private record Opening(SQLException error, int isolation, boolean isOpen, int runs) { }

    /** More than a pool has, and not for ever. That a connection was dead is seen where an isolation level is asked for, or by the begin. */
    @Test
    void deadConnectionsOfAPoolAreTriedInBounds() {
        SQLException dead = new SQLException("gone", "08006");
        for (Opening opening : List.of(new Opening(dead, 8, false, 102), new Opening(dead, 8, true, 2), new Opening(dead, 0, false, 2),
                new Opening(new SQLException("gone", "57P05"), 8, false, 102),
                new Opening(new SQLException("refused", "08001"), 8, false, 2), new Opening(new SQLException("refused", "08004"), 8, false, 2),
                new Opening(new SQLException("starting", "57P03"), 8, false, 2),
                new Opening(new SQLTransientConnectionException("none in time", "57P01"), 8, false, 2),
                new Opening(new SQLException("late", "08006", new SocketTimeoutException()), 8, false, 2))) {
            int[] runs = new int[1];
            var once = Idempotency.off(new Transactions() {
                @Override
                public <T> T run(int isolation, Body<T> body) throws Exception {
                    runs[0]++;
                    if (opening.isOpen()) {
                        body.run(null);
                    }
                    throw opening.error();
                }

                @Override
                public DataSource dataSource() {
                    return null;
                }
            }, Options.DEFAULT.withRetry(2, Duration.ZERO, Duration.ZERO));
            var lost = assertThrows(IdempotencyException.ConnectionLost.class,
                    () -> once.transaction(Call.of("k").withIsolation(opening.isolation()),
                            (connection, operation) -> Response.EMPTY));
            assertEquals(opening.runs(), runs[0], opening::toString);
            assertEquals(2, attempts(2, Duration.ZERO, lost)); // where it comes from the work, it was not the pool of this client
        }
    }

    /** Each pool has its own way to say so. */
    @Test
    void aLossWithoutAStateIsFoundByItsClass() {
        for (SQLException lost : List.of(new SQLNonTransientConnectionException("gone"), new SQLRecoverableException("gone"),
                new SQLException("gone", "08006"))) {
            assertInstanceOf(IdempotencyException.ConnectionLost.class, IdempotencyException.of(lost));
        }
        assertInstanceOf(IdempotencyException.Other.class, IdempotencyException.of(new SQLException("closed")));
    }

    @Test
    void theStateIsThatOfTheFirstThatHasOne() {
        Map<String, Exception> errors = Map.of("", new IllegalStateException(new SQLException("none")),
                "40001", new IllegalStateException(new SQLException("none", new SQLException("conflict", "40001"))));
        errors.forEach((state, error) -> assertEquals(state, IdempotencyException.sqlState(error)));
    }
}
