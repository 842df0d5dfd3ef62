package org.example.idempotency;

import java.time.Duration;

/**
 * What one call asks for. Null, or 0, stands for the setting of the client or the server.
 *
 * @param key 1 to 255 characters
 * @param scope the name space of the key
 * @param request what came with the key, as JSON: another request with the same key is refused;
 *     null: no check
 * @param requestHash a SHA-256 of the request, 32 bytes, in place of the request
 * @param maxWait how long to wait for another owner, from 0 to 36500 days; no connection is held meanwhile
 * @param lease how long a lease runs without a heartbeat
 * @param maxAttempts which attempt is the last; below 0: no limit
 * @param maxLostAttempts how many attempts may be lost with their transaction; below 0: no limit. A lease has none
 * @param retention how long the record is kept
 * @param isolation the isolation level, as {@link java.sql.Connection} names it
 */
public record Call(String key, String scope, String request, byte[] requestHash, Duration maxWait, Duration lease,
        int maxAttempts, int maxLostAttempts, Duration retention, int isolation) {

    /**
     * {@return a call for a key with the settings of the client, to which the methods {@code with...} add}
     *
     * @param key 1 to 255 characters
     */
    public static Call of(String key) {
        return new Call(key, null, null, null, null, null, 0, 0, null, 0);
    }

    /**
     * {@return the call with a scope}
     *
     * @param value the name space of the key
     */
    public Call withScope(String value) {
        return new Call(key, value, request, requestHash, maxWait, lease, maxAttempts, maxLostAttempts, retention, isolation);
    }

    /**
     * {@return the call with a request to compare}
     *
     * @param json what came with the key, as JSON
     */
    public Call withRequest(String json) {
        return new Call(key, scope, json, requestHash, maxWait, lease, maxAttempts, maxLostAttempts, retention, isolation);
    }

    /**
     * {@return the call with a hash in place of a request}
     *
     * @param sha256 32 bytes
     */
    public Call withRequestHash(byte[] sha256) {
        return new Call(key, scope, request, sha256, maxWait, lease, maxAttempts, maxLostAttempts, retention, isolation);
    }

    /**
     * {@return the call with a time to wait for another owner}
     *
     * @param value how long
     */
    public Call withWait(Duration value) {
        return new Call(key, scope, request, requestHash, value, lease, maxAttempts, maxLostAttempts, retention, isolation);
    }

    /**
     * {@return the call with the length of a lease}
     *
     * @param value how long it runs without a heartbeat
     */
    public Call withLease(Duration value) {
        return new Call(key, scope, request, requestHash, maxWait, value, maxAttempts, maxLostAttempts, retention, isolation);
    }

    /**
     * {@return the call with a last attempt}
     *
     * @param value its number; below 0: no limit
     */
    public Call withMaxAttempts(int value) {
        return new Call(key, scope, request, requestHash, maxWait, lease, value, maxLostAttempts, retention, isolation);
    }

    /**
     * With a limit for attempts that are lost, as their transaction is rolled back: the next one is
     * {@link Outcome#FAILED}, for good, and its response is
     * <code>{"reason": "attempts lost", "lost_attempts": N}</code>. A {@link Declined}, a conflict and
     * an end of the server are no lost attempts. A policy of the scope comes first. Where the server
     * does not preload the library, nobody counts.
     *
     * @param value how many; 0: the server's setting, below 0: no limit
     * @return the call
     */
    public Call withMaxLostAttempts(int value) {
        return new Call(key, scope, request, requestHash, maxWait, lease, maxAttempts, value, retention, isolation);
    }

    /**
     * {@return the call with a retention}
     *
     * @param value how long the record is kept
     */
    public Call withRetention(Duration value) {
        return new Call(key, scope, request, requestHash, maxWait, lease, maxAttempts, maxLostAttempts, value, isolation);
    }

    /**
     * {@return the call with an isolation level}
     *
     * @param value one of the constants of {@link java.sql.Connection}
     */
    public Call withIsolation(int value) {
        return new Call(key, scope, request, requestHash, maxWait, lease, maxAttempts, maxLostAttempts, retention, value);
    }

    /**
     * The call with the client's settings where it has none of its own. No time is longer than 36500 days, a wait is not below 0, lease and
     * retention are above 0, and a hash has 32 bytes and no request beside it, or it is an IllegalArgumentException: not the message or the
     * request is wrong, but the program.
     */
    Call over(Options options) {
        Durations.check("wait", maxWait);
        Durations.checkPositive("lease", lease);
        Durations.checkPositive("retention", retention);
        if (maxWait != null && maxWait.isNegative()) {
            throw new IllegalArgumentException("wait must not be below 0");
        }
        if (requestHash != null && (requestHash.length != 32 || request != null)) {
            throw new IllegalArgumentException("requestHash has 32 bytes, and stands in place of a request");
        }
        return new Call(key, scope != null ? scope : options.scope(), request, requestHash,
                maxWait != null ? maxWait : Duration.ZERO, lease != null ? lease : options.lease(), maxAttempts,
                maxLostAttempts, retention != null ? retention : options.retention(), isolation);
    }

    /** How long a network that hangs may hold up a statement beside a transaction: a short lease is over before its begin is answered. */
    Duration patience() {
        return lease.plusSeconds(5);
    }
}
