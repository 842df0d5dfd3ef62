package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import java.sql.SQLException;
import java.sql.SQLTransientConnectionException;
import java.time.Duration;
import javax.sql.DataSource;
import org.example.idempotency.Call;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Options;
import org.example.idempotency.Response;
import org.example.idempotency.Transactions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What a client gets for what the database says, and for a handler whose time is over. */
class ProblemTest {
    private static Problem of(SQLException error) {
        var once = new Idempotency(new Transactions() {
            @Override
            public <T> T run(int isolation, Body<T> body) throws Exception {
                throw error;
            }

            @Override
            public DataSource dataSource() {
                return null;
            }
        }, Options.DEFAULT.withRetry(1, Duration.ZERO, Duration.ZERO));
        return Problem.of(assertThrows(RuntimeException.class,
                () -> once.transaction(Call.of("k"), (connection, operation) -> Response.EMPTY)));
    }

    @ParameterizedTest
    @CsvSource({"ID400, 400", "ID403, 403", "ID404, 500", "ID409, 409", "ID413, 413", "ID422, 422", "25006, 503", "53300, 503", "55P03, 503",
        "57014, 503", "40001, 503", "08006, 503", "23505, 500"})
    void aStateHasAStatus(String state, int status) {
        Problem problem = of(new SQLException("secret", state));
        assertEquals(status, problem.status());
        assertEquals(status == 503 || status == 409 ? Duration.ofSeconds(1) : null, problem.retryAfter());
        assertTrue(problem.json("about:blank").endsWith("\"status\": " + status + ", \"detail\": \"" + problem.detail() + "\"}"));
    }

    @Test
    void aPoolThatHasNoConnectionInTimeIsBusy() {
        assertEquals(503, of(new SQLTransientConnectionException("secret")).status());
        assertEquals(500, of(new SQLException("secret")).status());
        assertEquals(Duration.ofSeconds(7), Problem.inProgress(Duration.ofSeconds(7)).retryAfter());
        assertNull(Problem.malformed("Key").retryAfter());
    }

    @Test
    void aTimeLimitIsThatOfItsHandlerOnly() throws Exception {
        TimeLimit.run(Duration.ofMinutes(1), null, () -> Thread.currentThread().interrupt());
        assertTrue(Thread.interrupted(), "an interrupt of the handler's own stays");
        boolean[] hasRun = new boolean[1];
        TimeLimit.run(Duration.ZERO, null, () -> hasRun[0] = true);
        assertTrue(hasRun[0]);
        var late = assertThrows(TimeLimit.Over.class,
                () -> TimeLimit.run(Duration.ofMillis(1), null, () -> Thread.sleep(60_000)));
        assertEquals(InterruptedException.class, late.getSuppressed()[0].getClass());
        assertEquals(503, Problem.of(late).status());
    }
}
