package org.example.idempotency.spring;

import java.sql.Connection;
import java.sql.SQLException;
import javax.sql.DataSource;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Transactions;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.jdbc.datasource.TransactionAwareDataSourceProxy;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionSystemException;
import org.springframework.transaction.UnexpectedRollbackException;
import org.springframework.transaction.support.ResourceTransactionManager;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;

/**
 * Transactions of Spring, which JdbcTemplate, JPA and {@code @Transactional} join.
 *
 * @param manager opens the transactions
 * @param dataSource the one of the manager
 */
public record SpringTransactions(PlatformTransactionManager manager, DataSource dataSource) implements Transactions {
    @Override
    public <T> T run(int isolation, Body<T> body) throws Exception {
        requireNone();
        var template = new TransactionTemplate(manager);
        if (isolation != 0) {
            template.setIsolationLevel(isolation);
        }
        Exception[] thrown = new Exception[1];
        try {
            return template.execute(status -> within(body, thrown));
        } catch (Checked checked) {
            throw (Exception) checked.getCause();
        } catch (RuntimeException error) {
            if (thrown[0] == null && error instanceof UnexpectedRollbackException) {
                throw new IdempotencyException.RolledBack(error);
            }
            // A connection that is lost cannot roll back either, and the first exception says more.
            if (IdempotencyException.stands(thrown[0])) {
                throw thrown[0];
            }
            throw isUnstated(error) ? new IdempotencyException.ConnectionLost(error) : error;
        }
    }

    /** Joins the transaction, as only that knows the session of an ORM. One that was marked is rolled back anyway. */
    @Override
    public void flush() {
        new TransactionTemplate(manager).executeWithoutResult(status -> {
            if (!status.isRollbackOnly()) {
                status.flush();
            }
        });
    }

    /** The one behind a proxy that gives the connection of the thread's transaction: what is outside of that would end it. */
    @Override
    public DataSource dataSource() {
        return dataSource instanceof TransactionAwareDataSourceProxy proxy ? proxy.getTargetDataSource() : dataSource;
    }

    @Override
    public void requireNone() {
        if (TransactionSynchronizationManager.isActualTransactionActive()) {
            throw new IllegalTransactionStateException("an operation opens its transactions by itself, and may have to repeat them:"
                    + " call it from outside of a transaction");
        }
    }

    /** Pools say of a connection that they have closed, when it is to roll back, that it is closed, without a SQLSTATE. */
    private static boolean isUnstated(RuntimeException error) {
        return error instanceof TransactionSystemException && error.getCause() instanceof SQLException
                && IdempotencyException.sqlState(error).isEmpty();
    }

    private <T> T within(Body<T> body, Exception[] thrown) {
        DataSource bound = dataSource();
        // Asked first, as a connection of any DataSource becomes one of the transaction when it is taken. JTA binds none before.
        boolean isBound = !(manager instanceof ResourceTransactionManager)
                || TransactionSynchronizationManager.hasResource(bound);
        Connection connection = DataSourceUtils.getConnection(bound);
        try {
            if (!isBound || !DataSourceUtils.isConnectionTransactional(connection, bound)) {
                throw new IllegalStateException("the transaction manager " + manager.getClass().getName()
                        + " does not say which connection it uses: give Idempotency one for its DataSource");
            }
            return noted(body, connection);
        } catch (RuntimeException error) {
            thrown[0] = error;
            throw error;
        } catch (Exception error) {
            thrown[0] = error;
            throw new Checked(error);
        } finally {
            DataSourceUtils.releaseConnection(connection, bound);
        }
    }

    /** For isWithinOneOfAnother. There is an outer manager where the transaction of an operation is suspended for another operation. */
    private <T> T noted(Body<T> body, Connection connection) throws Exception {
        Object outer = TransactionSynchronizationManager.unbindResourceIfPossible(SpringTransactions.class);
        TransactionSynchronizationManager.bindResource(SpringTransactions.class, manager);
        try {
            return body.run(connection);
        } finally {
            TransactionSynchronizationManager.unbindResource(SpringTransactions.class);
            if (outer != null) {
                TransactionSynchronizationManager.bindResource(SpringTransactions.class, outer);
            }
        }
    }

    /** Whether the thread is in the work of an operation. */
    static boolean isWithinOne() {
        return TransactionSynchronizationManager.hasResource(SpringTransactions.class);
    }

    /** Whether the thread is in the work of an operation whose transaction is of another manager. */
    static boolean isWithinOneOfAnother(PlatformTransactionManager asking) {
        Object operations = TransactionSynchronizationManager.getResource(SpringTransactions.class);
        return operations != null && operations != asking;
    }

    /** Carries an exception through Spring. */
    private static final class Checked extends RuntimeException {
        Checked(Exception cause) {
            super(null, cause, false, false);
        }
    }
}
