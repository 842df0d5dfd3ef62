package org.example.idempotency.spring;

import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.transaction.ConfigurableTransactionManager;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionExecution;
import org.springframework.transaction.TransactionExecutionListener;

/**
 * What another transaction manager commits within an operation would stay when the operation is rolled back, and be there twice after
 * its retry. So no such transaction begins, unless it only reads. Each manager is told when it is made, so it may be lazy.
 */
final class OneTransaction implements BeanPostProcessor {
    @Override
    public Object postProcessAfterInitialization(Object bean, String name) {
        if (bean instanceof PlatformTransactionManager manager && bean instanceof ConfigurableTransactionManager told) {
            told.addListener(new TransactionExecutionListener() {
                @Override
                public void beforeBegin(TransactionExecution transaction) {
                    if (!transaction.isReadOnly() && SpringTransactions.isWithinOneOfAnother(manager)) {
                        throw new IllegalTransactionStateException("a transaction of " + name + " within an operation whose transaction is one of"
                                + " another manager would not be rolled back with it: give Idempotency this manager and its DataSource,"
                                + " or call this behind the operation, or mark it as readOnly");
                    }
                }
            });
        }
        return bean;
    }
}
