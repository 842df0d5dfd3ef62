package org.example.idempotency;

/**
 * Work that cannot sit in one transaction, as it calls others.
 *
 * @param <X> what the work may throw
 */
@FunctionalInterface
public interface LeasedWork<X extends Exception> {
    /**
     * Does the work. Its thread is interrupted when the lease is lost.
     *
     * @param lease what the server knows of the operation, and whether the lease still holds
     * @return the answer, and the writes that belong to it
     * @throws X whatever was wrong. Nobody knows then what has happened outside, so the lease runs
     *     out, and the next attempt takes over
     * @throws Declined to refuse the request: the refusal is stored
     * @throws IdempotencyException.NotDone nothing has happened outside: the key is free at once
     */
    Completion run(Lease lease) throws X;
}
