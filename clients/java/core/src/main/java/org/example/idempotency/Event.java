package org.example.idempotency;

import java.time.Duration;

/**
 * What a listener is told. It never has a request or a response.
 *
 * @param type what happened
 * @param scope the name space of the key
 * @param key the key; null: a batch is repeated
 * @param attempt the number of the operation's attempt; 0: unknown
 * @param error what was wrong, or null
 * @param delay how long a repetition waits, or null
 */
public record Event(Type type, String scope, String key, int attempt, Throwable error, Duration delay) {
    /** What may happen. */
    public enum Type {
        /** The caller owns the operation and runs it. */
        ACQUIRED,
        /** The answer was taken from the store. */
        REPLAYED,
        /** Somebody else owns the operation. */
        IN_PROGRESS,
        /** The key was used before with a different request. */
        MISMATCH,
        /** The lease of an earlier attempt ran out. */
        TAKEN_OVER,
        /** The lease ran out, or somebody took the operation over. */
        LEASE_LOST,
        /** The work declined, and the refusal is stored. */
        DECLINED,
        /** The call is repeated after 40001, 40P01 or a lost connection. */
        RETRIED
    }
}
