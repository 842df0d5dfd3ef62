package org.example.idempotency;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import javax.sql.DataSource;

/** How transactions are opened: on a data source, or as a framework does it. */
public interface Transactions {
    /**
     * What runs in a transaction.
     *
     * @param <T> what it returns
     */
    @FunctionalInterface
    interface Body<T> {
        /**
         * Runs.
         *
         * @param connection the open transaction
         * @return any value
         * @throws Exception what was wrong
         */
        T run(Connection connection) throws Exception;
    }

    /**
     * Runs the body in a new transaction, which does not belong to one that the thread is in. Commits
     * when the body returns; rolls back when it throws, and throws the same.
     *
     * @param <T> what the body returns
     * @param isolation one of the constants of {@link Connection}; 0: the usual
     * @param body what to run
     * @return what the body returned, after the commit
     * @throws Exception what the body has thrown, or why the transaction could not be opened,
     *     committed or rolled back, with the driver's SQLException as it or among its causes
     */
    <T> T run(int isolation, Body<T> body) throws Exception;

    /**
     * In the transaction, when the work has returned: writes what the framework still holds back, as an ORM
     * does. So what the database says to that is an exception of the work, and not of the commit.
     */
    default void flush() {
    }

    /**
     * Runs a body between a SAVEPOINT and its RELEASE. That fails where the transaction has failed or ended: what the body did is rolled
     * back, and COMMIT would not say so. For what has no statement of this package at its end.
     *
     * @param <T> what the body returns
     * @param connection the open transaction
     * @param body what to run
     * @return what the body returned
     * @throws Exception what the body has thrown; the connection is lost
     * @throws IdempotencyException.RolledBack a statement had failed, and somebody has caught that
     * @throws IdempotencyException.NotOwned the body has ended the transaction
     */
    static <T> T runSound(Connection connection, Body<T> body) throws Exception {
        try (Statement statement = connection.createStatement()) {
            statement.execute("SAVEPOINT idempotency_work");
            T value = body.run(connection);
            try {
                statement.execute("RELEASE SAVEPOINT idempotency_work");
            } catch (SQLException error) {
                throw IdempotencyException.of(error);
            }
            return value;
        }
    }

    /** Throws where the thread is in a transaction of the framework already: a lease is outside of one. */
    default void requireNone() {
    }

    /** {@return the data source of the transactions, where those connections come from, too, that are in none, as those of heartbeats} */
    DataSource dataSource();

    /**
     * {@return transactions on connections of a data source}
     *
     * @param dataSource a pool, if possible
     */
    static Transactions of(DataSource dataSource) {
        return new JdbcTransactions(dataSource);
    }
}
