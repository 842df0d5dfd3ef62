package org.example.idempotency;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.concurrent.CancellationException;
import javax.sql.DataSource;

/** Transactions on connections of a data source. */
record JdbcTransactions(DataSource dataSource) implements Transactions {
    @Override
    public <T> T run(int isolation, Body<T> body) throws Exception {
        try (Connection connection = dataSource.getConnection()) {
            boolean autoCommit = connection.getAutoCommit();
            int usual = isolation == 0 ? 0 : connection.getTransactionIsolation();
            if (isolation != 0) {
                connection.setTransactionIsolation(isolation);
            }
            connection.setAutoCommit(false);
            try {
                T value = body.run(connection);
                connection.commit();
                return value;
            } catch (Throwable error) {
                rollBack(connection, error);
                throw error;
            } finally {
                restore(connection, autoCommit, usual);
            }
        }
    }

    /**
     * A connection that cannot roll back is gone, and so that was the reason of the error. NotDone and a
     * CancellationException are the work's own word, whatever became of the connection: nothing is repeated.
     */
    private static void rollBack(Connection connection, Throwable error) {
        try {
            connection.rollback();
        } catch (SQLException gone) {
            if (error instanceof IdempotencyException.ConnectionLost || error instanceof IdempotencyException.NotDone
                    || error instanceof CancellationException) {
                return;
            }
            throw new IdempotencyException.ConnectionLost(error);
        }
    }

    /** What the transaction came to stands; a connection that is gone is the pool's to throw away. */
    private static void restore(Connection connection, boolean autoCommit, int usual) {
        try {
            connection.setAutoCommit(autoCommit);
            if (usual != 0) {
                connection.setTransactionIsolation(usual);
            }
        } catch (SQLException gone) {
            // close() gives it back, and the pool finds out
        }
    }
}
