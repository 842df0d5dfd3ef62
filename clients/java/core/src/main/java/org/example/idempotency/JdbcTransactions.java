package org.example.idempotency;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import javax.sql.DataSource;

/** Transactions on connections of a data source. */
record JdbcTransactions(DataSource dataSource) implements Transactions {
    @Override
    public <T> T run(int isolation, Body<T> body) throws Exception {
        try (Connection connection = dataSource.getConnection()) {
            boolean autoCommit = free(connection);
            connection.setAutoCommit(false);
            try {
                if (isolation != 0) {
                    isolate(connection, isolation);
                }
                T value = body.run(connection);
                connection.commit();
                return value;
            } catch (Throwable error) {
                rollBack(connection, error);
                throw error;
            } finally {
                restore(connection, autoCommit);
            }
        }
    }

    /**
     * {@return whether the connection commits by itself; now it does}
     *
     * @throws SQLException 25001: it takes part in a transaction, which would be committed with the operation, whatever becomes of it. JDBC
     *     lets nobody call setReadOnly() in a transaction, nor setAutoCommit(true) in one of JTA. Neither asks the server of one that is free
     */
    static boolean free(Connection connection) throws SQLException {
        if (connection.getAutoCommit()) {
            return true;
        }
        try {
            connection.setReadOnly(connection.isReadOnly());
            connection.setAutoCommit(true);
            return false;
        } catch (SQLException error) {
            throw IdempotencyException.isTransient(error) ? error : new SQLException("the connection is in a transaction already:"
                    + " call an operation from outside of one, as it opens its transactions by itself", "25001", error);
        }
    }

    /** Of the transaction alone: setTransactionIsolation() is for the session, which is another client's behind a pooler. */
    private static void isolate(Connection connection, int isolation) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute("SET TRANSACTION ISOLATION LEVEL " + switch (isolation) {
                case Connection.TRANSACTION_READ_UNCOMMITTED -> "READ UNCOMMITTED";
                case Connection.TRANSACTION_READ_COMMITTED -> "READ COMMITTED";
                case Connection.TRANSACTION_REPEATABLE_READ -> "REPEATABLE READ";
                case Connection.TRANSACTION_SERIALIZABLE -> "SERIALIZABLE";
                default -> throw new SQLException("there is no isolation level " + isolation, "22023");
            });
        }
    }

    /** A connection that cannot roll back is gone, and so that was the reason of the error, where it does not say another. */
    private static void rollBack(Connection connection, Throwable error) {
        try {
            connection.rollback();
        } catch (SQLException gone) {
            if (!IdempotencyException.stands(error)) {
                throw new IdempotencyException.ConnectionLost(error);
            }
        }
    }

    /** What the transaction came to stands; a connection that is gone is the pool's to throw away. */
    private static void restore(Connection connection, boolean autoCommit) {
        try {
            connection.setAutoCommit(autoCommit);
        } catch (SQLException gone) {
            // close() gives it back, and the pool finds out
        }
    }
}
