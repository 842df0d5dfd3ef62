package org.example.idempotency;

import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import javax.sql.DataSource;

/** Transactions on connections of a data source. */
record JdbcTransactions(DataSource dataSource) implements Transactions {
    @Override
    public <T> T run(int isolation, Body<T> body) throws Exception {
        try (Connection connection = dataSource.getConnection()) {
            boolean autoCommit = requireFree(connection);
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
     * @throws SQLException 25001: it takes part in a transaction, which would be committed with the operation, whatever becomes of it. That has
     *     written, or is one of JTA, in which JDBC lets nobody call setAutoCommit(true)
     */
    static boolean requireFree(Connection connection) throws SQLException {
        if (connection.getAutoCommit()) {
            return true;
        }
        try {
            if (isInTransaction(connection) && hasWritten(connection)) {
                throw new SQLException("the transaction has written");
            }
            connection.setAutoCommit(true);
            return false;
        } catch (SQLException error) {
            throw IdempotencyException.isTransient(error) ? error : new SQLException("the connection is in a transaction already:"
                    + " call an operation from outside of one, as it opens its transactions by itself", "25001", error);
        }
    }

    /** JDBC lets nobody call setReadOnly() in a transaction. It asks the server nothing. */
    private static boolean isInTransaction(Connection connection) {
        try {
            connection.setReadOnly(connection.isReadOnly());
            return false;
        } catch (SQLException begun) {
            return true;
        }
    }

    /** A pool whose connections do not commit by themselves, and which tests them by a query, has begun a transaction that wrote nothing. */
    private static boolean hasWritten(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet row = statement.executeQuery("SELECT pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL")) {
            row.next();
            return row.getBoolean(1);
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
