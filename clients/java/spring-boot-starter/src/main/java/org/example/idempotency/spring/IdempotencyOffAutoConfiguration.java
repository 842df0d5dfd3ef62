package org.example.idempotency.spring;

import java.sql.Connection;
import java.sql.Savepoint;
import javax.sql.DataSource;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Options;
import org.example.idempotency.Transactions;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Bean;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** With {@code idempotency.enabled=false}: whoever has the client injected gets one that is off. */
@AutoConfiguration
@ConditionalOnProperty(name = "idempotency.enabled", havingValue = "false")
public class IdempotencyOffAutoConfiguration {
    /** For Spring. */
    public IdempotencyOffAutoConfiguration() {
    }

    @Bean
    @ConditionalOnMissingBean
    Idempotency idempotency(PlatformTransactionManager manager, DataSource dataSource) {
        return Idempotency.off(new Joining(new SpringTransactions(manager, dataSource)), Options.DEFAULT);
    }

    /** Takes part in the transaction of a test, which rolls it back. What fails, or declines, leaves nothing to the rest of the test. */
    private record Joining(SpringTransactions own) implements Transactions {
        @Override
        public <T> T run(int isolation, Body<T> body) throws Exception {
            if (!TransactionSynchronizationManager.isActualTransactionActive()) {
                return own.run(isolation, body);
            }
            Connection connection = DataSourceUtils.getConnection(dataSource()); // the end of the transaction gives it back
            Savepoint before = connection.setSavepoint();
            try {
                return body.run(connection);
            } catch (Throwable error) {
                connection.rollback(before);
                throw error;
            }
        }

        @Override
        public void flush() {
            own.flush();
        }

        @Override
        public DataSource dataSource() {
            return own.dataSource();
        }
    }
}
