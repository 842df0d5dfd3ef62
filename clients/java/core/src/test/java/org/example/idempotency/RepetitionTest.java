package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.sql.SQLException;
import java.sql.SQLNonTransientConnectionException;
import java.sql.SQLRecoverableException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
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

    /** More than a pool has, and not for ever. */
    @Test
    void deadConnectionsOfAPoolAreTriedInBounds() {
        assertEquals(102, attempts(2, Duration.ZERO, new IdempotencyException.ConnectionLost(null).onArrival()));
        assertEquals(2, attempts(2, Duration.ZERO, new IdempotencyException.ConnectionLost(null)));
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
