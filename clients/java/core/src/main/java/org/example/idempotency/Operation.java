package org.example.idempotency;

import java.time.Duration;
import java.time.Instant;

/**
 * What the server knew of an operation when it was begun.
 *
 * @param outcome what became of it
 * @param scope the name space of the key
 * @param key the key
 * @param attempt the number of this try, from 1; 0: another session's transaction owns it
 * @param takenOver whether the lease of an earlier attempt ran out: what that attempt did outside
 *     of the database is unknown
 * @param replayed whether the answer was taken from the store
 * @param fence the fencing token of a leased attempt, 0 for none. It only grows from attempt to
 *     attempt: hand it to whatever can compare it
 * @param leaseLeft how long the lease still ran when the server answered; null: there is none
 * @param retryAfter in progress: what is left of the owner's lease; failed: how long until it may
 *     be tried again; null: unknown, or never
 * @param response the stored answer
 * @param createdAt when the first attempt began, or null
 * @param expiresAt until when the record is kept; null: for good, or there is none
 */
public record Operation(Outcome outcome, String scope, String key, int attempt, boolean takenOver, boolean replayed,
        long fence, Duration leaseLeft, Duration retryAfter, Response response, Instant createdAt, Instant expiresAt) {
}
