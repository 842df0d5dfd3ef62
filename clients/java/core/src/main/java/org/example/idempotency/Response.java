package org.example.idempotency;

import java.time.Duration;
import java.util.Map;

/**
 * An answer, which is stored and given to each retry.
 *
 * @param code a status code of your own, as HTTP's; 0: none
 * @param headers names and values; null: none
 * @param payload JSON; null: none
 * @param body bytes that are replayed as they are; null: none
 * @param retention how long the record is kept, above 0, 36500 days at most; null: as the call says. What is out of these bounds
 *     is an IllegalArgumentException when it is to be stored
 */
public record Response(int code, Map<String, String> headers, String payload, byte[] body, Duration retention) {
    /** An answer without anything in it. */
    public static final Response EMPTY = new Response(0, null, null, null, null);

    /**
     * {@return an answer that is JSON}
     *
     * @param payload a text of JSON, or null
     */
    public static Response json(String payload) {
        return new Response(0, null, payload, null, null);
    }

    /**
     * {@return an answer with a code}
     *
     * @param code a status code
     * @param payload a text of JSON, or null
     */
    public static Response of(int code, String payload) {
        return new Response(code, null, payload, null, null);
    }
}
