package org.example.idempotency;

import java.time.Duration;
import java.util.function.Consumer;

/**
 * Settings of a client.
 *
 * @param scope the name space of keys, where a call does not name another
 * @param schema where the extension is installed; null: search_path finds it
 * @param retention how long records are kept; null: the server's setting
 * @param lease how long a lease runs without a heartbeat
 * @param attempts how often a call is made at most, at 40001, 40P01 and lost connections
 * @param base the longest wait before the first repetition. It doubles for each further one, and
 *     the wait is a random part of that
 * @param cap the longest wait
 * @param listener is told what happens, for metrics and logs
 */
public record Options(String scope, String schema, Duration retention, Duration lease, int attempts, Duration base,
        Duration cap, Consumer<Event> listener) {
    /** Scope "", leases of 30 seconds, 5 attempts that wait 50 ms to 2 s. */
    public static final Options DEFAULT = new Options("", null, null, Duration.ofSeconds(30), 5, Duration.ofMillis(50),
            Duration.ofSeconds(2), event -> { });

    /**
     * Checks the settings.
     *
     * @param scope the name space of keys, where a call does not name another; not null
     * @param schema where the extension is installed; null: search_path finds it
     * @param retention how long records are kept, above 0; null: the server's setting. No time is longer than 36500 days
     * @param lease how long a lease runs without a heartbeat; above 0
     * @param attempts how often a call is made at most; above 0
     * @param base the longest wait before the first repetition; not below 0
     * @param cap the longest wait; not below 0
     * @param listener is told what happens; not null
     * @throws IllegalArgumentException if one is out of these bounds
     */
    public Options {
        if (scope == null || lease == null || base == null || cap == null || listener == null) {
            throw new IllegalArgumentException("scope, lease, base, cap and listener may not be null");
        }
        if (attempts < 1 || base.isNegative() || cap.isNegative()) {
            throw new IllegalArgumentException("attempts must be above 0, and base and cap not below");
        }
        Durations.checkPositive("retention", retention);
        Durations.checkPositive("lease", lease);
        Durations.check("base", base);
        Durations.check("cap", cap);
    }

    /**
     * {@return the settings with a scope}
     *
     * @param value the name space of keys
     */
    public Options withScope(String value) {
        return new Options(value, schema, retention, lease, attempts, base, cap, listener);
    }

    /**
     * {@return the settings with a schema}
     *
     * @param value where the extension is installed
     */
    public Options withSchema(String value) {
        return new Options(scope, value, retention, lease, attempts, base, cap, listener);
    }

    /**
     * {@return the settings with a retention}
     *
     * @param value how long records are kept
     */
    public Options withRetention(Duration value) {
        return new Options(scope, schema, value, lease, attempts, base, cap, listener);
    }

    /**
     * {@return the settings with the length of leases}
     *
     * @param value how long a lease runs without a heartbeat
     */
    public Options withLease(Duration value) {
        return new Options(scope, schema, retention, value, attempts, base, cap, listener);
    }

    /**
     * {@return the settings with bounds of repetition}
     *
     * @param most how often a call is made at most
     * @param first the longest wait before the first repetition
     * @param longest the longest wait
     */
    public Options withRetry(int most, Duration first, Duration longest) {
        return new Options(scope, schema, retention, lease, most, first, longest, listener);
    }

    /**
     * {@return the settings with a listener}
     *
     * @param value is told what happens, in the thread of the call or of the heartbeat. What it throws is logged
     */
    public Options withListener(Consumer<Event> value) {
        return new Options(scope, schema, retention, lease, attempts, base, cap, value);
    }
}
