package org.example.idempotency.servlet;

import java.time.Duration;

/**
 * What becomes of an answer.
 *
 * @param as what is done with it
 * @param retention how long the record is kept; null: as the client's settings say
 */
public record Keep(Kind as, Duration retention) {
    /** What may be done with an answer. */
    public enum Kind {
        /** The transaction commits with the answer. */
        STORED,
        /** What the handler wrote is rolled back, and the answer is stored. It is tried again after its Retry-After, if it has one. */
        REFUSAL,
        /** All is rolled back, and nothing is stored. A lease runs out. */
        DISCARDED,
        /** As discarded, and a lease is released at once: nothing has happened outside. */
        RELEASED
    }

    /**
     * Stores 2xx and 3xx, stores 4xx as refusals, and discards the rest. Refusals of the moment are
     * discarded, too, as they say nothing of the operation, nor that a leased handler has done
     * nothing outside: 401, 403, 408, 409, 425 and 429.
     *
     * @param status a status of HTTP
     * @return what becomes of an answer with it
     */
    public static Keep byDefault(int status) {
        return new Keep(switch (status) {
            case 401, 403, 408, 409, 425, 429 -> Kind.DISCARDED;
            default -> status < 200 || status >= 500 ? Kind.DISCARDED : status < 400 ? Kind.STORED : Kind.REFUSAL;
        }, null);
    }
}
