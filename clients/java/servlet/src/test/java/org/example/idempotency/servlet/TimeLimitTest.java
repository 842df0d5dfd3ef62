package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import org.junit.jupiter.api.Test;

class TimeLimitTest {
    /** They would keep all classes of a program that its container has started anew. */
    @Test
    void itsThreadsEndWhenNoHandlerRuns() {
        assertTimeoutPreemptively(Duration.ofSeconds(20), () -> {
            TimeLimit.run(Duration.ofMinutes(1), null, () -> assertTrue(hasThreads()));
            while (hasThreads()) {
                Thread.sleep(50);
            }
        });
    }

    private static boolean hasThreads() {
        return Thread.getAllStackTraces().keySet().stream().anyMatch(thread -> thread.getName().equals("idempotency-time-limit"));
    }
}
