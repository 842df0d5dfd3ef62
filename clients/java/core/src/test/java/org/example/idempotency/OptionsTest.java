package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class OptionsTest {
    private static final Duration BELOW = Duration.ofNanos(-1);
    private static final Duration NONE = Duration.ZERO;
    private static final Duration LONGEST = Duration.ofDays(36_500);

    private record Option(String name, Consumer<Duration> give) { }

    private static final List<Option> OPTIONS = List.of(
            new Option("lease", Options.DEFAULT::withLease),
            new Option("retention", Options.DEFAULT::withRetention),
            new Option("base", time -> Options.DEFAULT.withRetry(2, time, Duration.ZERO)),
            new Option("cap", time -> Options.DEFAULT.withRetry(2, Duration.ZERO, time)),
            new Option("wait", time -> Call.of("k").withWait(time).over(Options.DEFAULT)),
            new Option("lease", time -> Call.of("k").withLease(time).over(Options.DEFAULT)),
            new Option("retention", time -> Call.of("k").withRetention(time).over(Options.DEFAULT)),
            new Option("retryAfter", Reconciled.Unknown::new));

    @Test
    void whatIsMissingOrOutOfBoundsIsRefused() {
        Options usual = Options.DEFAULT;
        for (Executable wrong : List.<Executable>of(
                () -> usual.withScope(null), () -> usual.withLease(null), () -> usual.withListener(null),
                () -> usual.withRetry(1, null, NONE), () -> usual.withRetry(1, NONE, null),
                () -> usual.withRetry(0, NONE, NONE),
                () -> Call.of("k").withWait(BELOW).over(usual),
                () -> Call.of("k").withRequestHash(new byte[31]).over(usual),
                () -> Call.of("k").withRequest("1").withRequestHash(new byte[32]).over(usual),
                () -> usual.withRetry(1, BELOW, NONE), () -> usual.withRetry(1, NONE, BELOW))) {
            assertThrows(IllegalArgumentException.class, wrong);
        }
        usual.withSchema(null).withRetention(null).withRetry(1, NONE, NONE);
        assertEquals(NONE, new Declined(Response.EMPTY, BELOW).retryAfter());
        assertEquals(NONE, new Reconciled.Unknown(BELOW).retryAfter());
        assertEquals(Duration.ofSeconds(1), new Reconciled.Unknown(null).retryAfter());
    }

    /** A time that no statement and no clock can hold is refused where it is given, and its name is in the message. */
    @Test
    void whatIsOutOfRangeIsNamed() {
        for (Option option : OPTIONS) {
            option.give.accept(LONGEST);
            boolean isPositive = option.name.equals("lease") || option.name.equals("retention");
            Duration wrong = isPositive ? Duration.ofNanos(999) : LONGEST.plusNanos(1);
            for (Duration time : List.of(Duration.ofSeconds(Long.MAX_VALUE), Duration.ofSeconds(Long.MIN_VALUE),
                    LONGEST.plusNanos(1), wrong)) {
                String message = assertThrows(IllegalArgumentException.class, () -> option.give.accept(time), option::name)
                        .getMessage();
                assertTrue(message.contains(option.name), message);
            }
        }
    }
}
