package org.example.idempotency;

import java.time.Duration;

/**
 * Thrown by work that refuses the request: what it has written is rolled back, and the refusal is
 * stored and replayed. Its message never shows the payload.
 */
public final class Declined extends RuntimeException {
    private final transient Response response;
    private final Duration retryAfter;

    /**
     * A refusal.
     *
     * @param response the answer that is stored
     * @param retryAfter how long until the operation may be tried again, 36500 days at most; below 0: now; null: never. A longer one
     *     is an IllegalArgumentException when it is to be stored
     */
    public Declined(Response response, Duration retryAfter) {
        super("declined with code " + response.code());
        this.response = response;
        this.retryAfter = retryAfter != null && retryAfter.isNegative() ? Duration.ZERO : retryAfter;
    }

    /**
     * A refusal that is final.
     *
     * @param code a status code of your own
     * @param payload JSON, or null
     */
    public Declined(int code, String payload) {
        this(Response.of(code, payload), null);
    }

    /** {@return the answer, as it is stored} */
    public Response response() {
        return response;
    }

    /** {@return how long to wait before trying again; null: never} */
    public Duration retryAfter() {
        return retryAfter;
    }
}
