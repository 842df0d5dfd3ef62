package org.example.idempotency;

import java.time.Duration;
import java.time.temporal.ChronoUnit;

/** The server takes no longer times, and further on they overflow a clock or an interval. */
final class Durations {
    private static final Duration LONGEST = Duration.ofDays(36_500);

    private Durations() {
    }

    /** Throws IllegalArgumentException, with the name, at a time that is out of range. Null is none. */
    static void check(String name, Duration time) {
        if (time != null && (time.compareTo(LONGEST) > 0 || time.compareTo(LONGEST.negated()) < 0)) {
            throw new IllegalArgumentException(name + " must not be longer than 36500 days");
        }
    }

    /** The same, and at a time that is below a microsecond, which the server would take for 0, and refuse. */
    static void checkPositive(String name, Duration time) {
        check(name, time);
        if (time != null && time.compareTo(ChronoUnit.MICROS.getDuration()) < 0) {
            throw new IllegalArgumentException(name + " must be above 0");
        }
    }

    /** The time, or null where checkPositive() refuses it. */
    static Duration positiveOrNull(Duration time) {
        try {
            checkPositive("", time);
            return time;
        } catch (IllegalArgumentException outOfRange) {
            return null;
        }
    }
}
