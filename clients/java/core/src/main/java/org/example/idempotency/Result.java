package org.example.idempotency;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.temporal.ChronoUnit;

/**
 * The answer of an operation, whether it ran now or before.
 *
 * @param outcome completed, failed or in progress
 * @param response the answer; one that was stored has its payload in the spelling of jsonb
 * @param replayed whether the answer was taken from the store
 * @param attempt the number of the operation's attempt; 0: unknown
 * @param takenOver whether the lease of an earlier attempt had run out
 * @param retryAfter in progress: what is left of the owner's lease, null where the owner is an open
 *     transaction; failed: how long until the operation may be tried again, null for never
 * @param record names the stored record of a replay: all replays of one record have the same, and
 *     an operation that runs anew has another; null: this call ran the operation
 */
public record Result(Outcome outcome, Response response, boolean replayed, int attempt, boolean takenOver,
        Duration retryAfter, String record) {

    static Result of(Operation o) {
        return new Result(o.outcome(), o.response(), o.replayed(), o.attempt(), o.takenOver(), o.retryAfter(), recordOf(o));
    }

    static Result ran(Operation o, Outcome outcome, Response response, Duration retryAfter) {
        return new Result(outcome, response, false, o.attempt(), o.takenOver(), retryAfter, null);
    }

    /** The clients for other languages compute the same, so their consumers may share a queue. */
    private static String recordOf(Operation o) {
        if (!o.replayed()) {
            return null;
        }
        String text = o.scope() + '\0' + o.key() + '\0' + ChronoUnit.MICROS.between(java.time.Instant.EPOCH, o.createdAt());
        return Identity.sha256(text.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * {@return the answer of an operation that has ended with success}
     *
     * @throws Declined if it was refused
     * @throws IdempotencyException.InProgress if somebody else owns it
     */
    public Response orThrow() {
        return switch (outcome) {
            case COMPLETED -> response;
            case FAILED -> throw new Declined(response, retryAfter);
            default -> throw new IdempotencyException.InProgress(retryAfter);
        };
    }
}
