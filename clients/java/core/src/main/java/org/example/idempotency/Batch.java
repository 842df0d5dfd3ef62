package org.example.idempotency;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;

/** One transaction in which many operations are begun and completed, such as the messages of one delivery. */
public final class Batch {
    private final Idempotency client;
    private final Connection connection;
    private final String scope;
    private boolean hasAcquired;

    Batch(Idempotency client, Connection connection, String scope) {
        this.client = client;
        this.connection = connection;
        this.scope = scope;
    }

    /**
     * What runs in the transaction.
     *
     * @param <T> what it returns
     * @param <X> what it may throw
     */
    @FunctionalInterface
    public interface Work<T, X extends Exception> {
        /**
         * Does the work. It may be called again, after all that it wrote was rolled back.
         *
         * @param batch begins and completes operations
         * @return any value
         * @throws X whatever was wrong: everything is rolled back
         */
        T run(Batch batch) throws X;
    }

    /** Then a repeat finds out whether a COMMIT whose answer was lost has taken effect. */
    boolean hasAcquired() {
        return hasAcquired;
    }

    /** {@return the open transaction: a connection that the work neither commits, ends nor closes} */
    public Connection connection() {
        return WorkConnection.of(connection);
    }

    /**
     * Begins an operation for each key, without waiting.
     *
     * @param keys of the batch's scope, 1 to 255 characters each; of a key that is there twice only the
     *     first can be acquired, and the others are in progress
     * @param requests what came with each key, as JSON, in the order of the keys; null, or null among
     *     them: no check
     * @return the operations, in the order of the keys: run those that are {@link Outcome#ACQUIRED}. A
     *     key that was used with another request is {@link Outcome#MISMATCH}, and fails no other
     * @throws IdempotencyException what was wrong with an argument or the database: nothing was begun
     */
    public List<Operation> beginMany(List<String> keys, List<String> requests) {
        List<Operation> operations;
        try {
            operations = client.statements().beginMany(connection, scope, keys, requests);
        } catch (SQLException error) {
            throw IdempotencyException.ofBegin(error);
        }
        operations.forEach(client::tellBegun);
        hasAcquired |= operations.stream().anyMatch(o -> o.outcome() == Outcome.ACQUIRED);
        return operations;
    }

    /**
     * Completes operations that this batch began.
     *
     * @param keys which
     * @param payloads the answers, as JSON, in the order of the keys; null, or null among them: none
     * @return how many
     * @throws IdempotencyException NotOwned where the batch did not begin one; TooLarge; what was wrong
     *     with an argument or the database
     */
    public int completeMany(List<String> keys, List<String> payloads) {
        try {
            return client.statements().completeMany(connection, scope, keys, payloads);
        } catch (SQLException error) {
            throw IdempotencyException.of(error);
        }
    }
}
