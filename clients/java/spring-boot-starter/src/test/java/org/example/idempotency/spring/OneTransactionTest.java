package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import com.zaxxer.hikari.HikariDataSource;
import java.util.List;
import java.util.UUID;
import org.example.idempotency.Call;
import org.example.idempotency.Completion;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Response;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.context.annotation.Lazy;
import org.springframework.context.annotation.Primary;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.stereotype.Service;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;

/** A program with two databases: what the other one's manager commits would be there twice after a retry. */
class OneTransactionTest {
    private static ConfigurableApplicationContext context;
    private static JdbcTemplate jdbc;
    private final String key = UUID.randomUUID().toString();
    private final Payments payments = context.getBean(Payments.class);
    private final Books books = context.getBean(Books.class);
    private final Idempotency once = context.getBean(Idempotency.class);

    @Service
    static class Books {
        private final JdbcTemplate other;

        Books(@Qualifier("otherDataSource") HikariDataSource other) {
            this.other = new JdbcTemplate(other);
        }

        @Transactional("otherManager")
        public void write(String key) {
            other.update("INSERT INTO seat VALUES (?)", key);
        }

        @Transactional(transactionManager = "otherManager", readOnly = true)
        public int read() {
            return other.queryForObject("SELECT 1", Integer.class);
        }

        /** Explicitly, in the manager of the operation. */
        @Transactional(propagation = Propagation.REQUIRES_NEW)
        public int apart() {
            return 1;
        }
    }

    @Service
    static class Payments {
        private final Books books;

        Payments(Books books) {
            this.books = books;
        }

        @Idempotent(name = "other", key = "#key")
        @Transactional("otherManager")
        public void other(String key) {
            books.write(key);
        }

        @Idempotent(name = "nested", key = "#key")
        @Transactional
        public void nested(String key) {
            books.write(key);
        }

        @Idempotent(name = "reads", key = "#key")
        @Transactional
        public int reads(String key) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
            return books.read() + books.apart();
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({Books.class, Payments.class})
    static class Program {
        @Bean
        @Primary
        HikariDataSource dataSource() {
            return new SpringExampleTest.Pool().dataSource();
        }

        @Bean
        HikariDataSource otherDataSource() {
            return new SpringExampleTest.Pool().dataSource();
        }

        @Bean
        @Primary
        PlatformTransactionManager usualManager(@Qualifier("dataSource") HikariDataSource dataSource) {
            return new JdbcTransactionManager(dataSource);
        }

        @Bean
        @Lazy
        PlatformTransactionManager otherManager(@Qualifier("otherDataSource") HikariDataSource dataSource) {
            return new JdbcTransactionManager(dataSource);
        }
    }

    @BeforeAll
    static void start() {
        context = SpringExampleTest.withoutWeb(Program.class);
        jdbc = SpringExampleTest.prepared(context);
    }

    @AfterAll
    static void stop() {
        context.close();
    }

    private int effects() {
        return SpringExampleTest.effects(jdbc, key);
    }

    @Test
    void noOtherManagerCommitsWithinAnOperation() {
        var other = new TransactionTemplate(context.getBean("otherManager", PlatformTransactionManager.class));
        for (Executable call : List.<Executable>of(
                () -> payments.other(key),
                () -> payments.nested(key),
                () -> once.transaction(Call.of(key), (connection, operation) -> {
                    other.executeWithoutResult(status -> { });
                    return Response.EMPTY;
                }),
                () -> once.batch(null, batch -> {
                    books.write(key);
                    return null;
                }),
                () -> once.lease(Call.of(key), lease -> new Completion(Response.EMPTY, connection -> books.write(key))))) {
            String message = assertThrows(IllegalTransactionStateException.class, call).getMessage();
            assertTrue(message.contains("otherManager"), message);
        }
        assertEquals(0, effects());
    }

    @Test
    void anOperationMayRunWithinOneThatIsSuspended() throws Exception {
        var suspended = new TransactionTemplate(context.getBean("usualManager", PlatformTransactionManager.class));
        suspended.setPropagationBehavior(TransactionDefinition.PROPAGATION_NOT_SUPPORTED);
        once.transaction(Call.of(key), (connection, operation) -> {
            suspended.execute(status -> once.transaction(Call.of(key + " within"), (other, inner) -> {
                jdbc.update("INSERT INTO seat VALUES (?)", key);
                return Response.EMPTY;
            }));
            assertThrows(IllegalTransactionStateException.class, () -> books.write(key));
            return Response.EMPTY;
        });
        assertEquals(1, effects());
    }

    @Test
    void itMayReadAndWriteOutsideOfOne() {
        for (int i = 0; i < 2; i++) {
            assertEquals(2, payments.reads(key));
        }
        assertEquals(1, effects());
        books.write(key);
        assertEquals(2, effects());
    }
}
