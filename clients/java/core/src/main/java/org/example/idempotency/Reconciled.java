package org.example.idempotency;

import java.time.Duration;

/** What was found out of an attempt whose lease ran out. */
public sealed interface Reconciled {
    /**
     * The attempt took effect.
     *
     * @param response its answer
     */
    record Done(Response response) implements Reconciled { }

    /** The attempt had no effect, so the work may run. */
    record NotDone() implements Reconciled { }

    /**
     * Nobody knows yet.
     *
     * @param retryAfter how long to wait before the next try; null: one second
     */
    record Unknown(Duration retryAfter) implements Reconciled {
        /**
         * Checks the time.
         *
         * @param retryAfter how long to wait before the next try, 36500 days at most; null: one second
         */
        public Unknown {
            Durations.check("retryAfter", retryAfter);
            retryAfter = retryAfter == null ? Duration.ofSeconds(1) : retryAfter.isNegative() ? Duration.ZERO : retryAfter;
        }
    }

    /** Finds out what an attempt did. */
    @FunctionalInterface
    interface Finder {
        /**
         * Finds out. It runs under the lease, as the work does.
         *
         * @param operation the operation, which was taken over
         * @return what was found; null: as {@link Unknown}, in one second
         * @throws Exception as {@link Unknown}, in one second
         */
        Reconciled find(Operation operation) throws Exception;
    }
}
