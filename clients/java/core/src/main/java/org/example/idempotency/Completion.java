package org.example.idempotency;

import java.sql.Connection;
import java.sql.SQLException;

/**
 * How leased work ends.
 *
 * @param response the answer, which is stored
 * @param writes are made in one transaction with the record of the answer; null: none
 */
public record Completion(Response response, Writes writes) {
    /** Writes that commit together with the answer. They may be called again. */
    @FunctionalInterface
    public interface Writes {
        /**
         * Writes.
         *
         * @param connection the open transaction, which the writes neither commit, end nor close
         * @throws SQLException what was wrong: everything is rolled back
         */
        void run(Connection connection) throws SQLException;
    }

    /**
     * {@return an answer without writes}
     *
     * @param response the answer
     */
    public static Completion of(Response response) {
        return new Completion(response, null);
    }
}
