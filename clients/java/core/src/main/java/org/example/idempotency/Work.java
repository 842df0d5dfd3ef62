package org.example.idempotency;

import java.sql.Connection;

/**
 * What runs at most once for a key, in the transaction of its answer.
 *
 * @param <X> what the work may throw
 */
@FunctionalInterface
public interface Work<X extends Exception> {
    /**
     * Does the work. It may be called again, after all that it wrote was rolled back.
     *
     * @param connection the open transaction, which the work neither commits, ends nor closes
     * @param operation what the server knows of the operation
     * @return the answer, which is stored
     * @throws X whatever was wrong: everything is rolled back, and nothing is stored
     * @throws Declined to refuse the request: all is rolled back, and the refusal is stored
     */
    Response run(Connection connection, Operation operation) throws X;
}
