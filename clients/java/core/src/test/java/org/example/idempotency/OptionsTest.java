package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class OptionsTest {
    private static final Duration BELOW = Duration.ofNanos(-1);
    private static final Duration NONE = Duration.ZERO;

    @Test
    void whatIsMissingOrOutOfBoundsIsRefused() {
        Options usual = Options.DEFAULT;
        for (Executable wrong : List.<Executable>of(
                () -> usual.withScope(null), () -> usual.withLease(null), () -> usual.withListener(null),
                () -> usual.withRetry(1, null, NONE), () -> usual.withRetry(1, NONE, null),
                () -> usual.withLease(NONE), () -> usual.withLease(BELOW), () -> usual.withRetry(0, NONE, NONE),
                () -> usual.withRetry(1, BELOW, NONE), () -> usual.withRetry(1, NONE, BELOW))) {
            assertThrows(IllegalArgumentException.class, wrong);
        }
        usual.withSchema(null).withRetention(null).withRetry(1, NONE, NONE);
    }
}
