package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import com.zaxxer.hikari.HikariDataSource;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;
import java.util.function.Function;
import javax.cache.annotation.CacheResult;
import javax.sql.DataSource;
import kotlin.coroutines.Continuation;
import org.aopalliance.intercept.MethodInterceptor;
import org.example.idempotency.Call;
import org.example.idempotency.Completion;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Identity;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Options;
import org.example.idempotency.Response;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.aop.ProxyMethodInvocation;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.NameMatchMethodPointcut;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cache.annotation.Cacheable;
import org.springframework.cache.annotation.Caching;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.core.Ordered;
import org.springframework.core.ReactiveAdapterRegistry;
import org.springframework.core.ReactiveTypeDescriptor;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.resilience.annotation.EnableResilientMethods;
import org.springframework.resilience.annotation.Retryable;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.TransactionAwareDataSourceProxy;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.stereotype.Service;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.TransactionSystemException;
import org.springframework.transaction.UnexpectedRollbackException;
import org.springframework.transaction.annotation.Isolation;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.AbstractPlatformTransactionManager;
import org.springframework.transaction.support.DefaultTransactionStatus;
import org.springframework.transaction.support.TransactionTemplate;

/** Methods that Spring finds elsewhere, or that would not do what they say. */
class IdempotentTest {
    private static ConfigurableApplicationContext context;
    private static JdbcTemplate jdbc;
    private final String key = UUID.randomUUID().toString();
    private final Tickets tickets = context.getBean(Tickets.class);

    interface Named { }

    record Ticket(String seat) implements Named { }

    /** No JSON shows what it has. */
    static final class Hidden { }

    interface Booking<T> {
        @Idempotent(name = "booking", key = "#key")
        List<T> book(String key);
    }

    abstract static class Base<T> implements Booking<T> {
        final JdbcTemplate jdbc;

        Base(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        abstract T ticket(String key);

        @Override
        public List<T> book(String key) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
            return List.of(ticket(key));
        }
    }

    @Service
    static class Tickets extends Base<Ticket> {
        private final Set<String> failed = new HashSet<>();

        Tickets(JdbcTemplate jdbc) {
            super(jdbc);
        }

        @Override
        Ticket ticket(String key) {
            return new Ticket(key);
        }

        @Idempotent(name = "count", key = "#key")
        public int count(String key, Object... others) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
            return 1;
        }

        @Idempotent(name = "hides", key = "#key")
        public Object hides(String key, boolean isLater) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
            return isLater ? CompletableFuture.completedFuture(key) : new Hidden();
        }

        @Idempotent(name = "names", key = "#key")
        public Named names(String key) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
            return new Ticket(key);
        }

        @Idempotent(name = "any", key = "#key")
        public <T extends Named> T any(String key) {
            throw new AssertionError("the method has run");
        }

        @Idempotent(name = "names later", key = "#key", lease = true)
        public Named namesLater(String key) {
            return names(key);
        }

        @Idempotent(name = "count later", key = "#key", lease = true)
        public int countLater(String key) {
            return count(key);
        }

        @Idempotent(name = "hides later", key = "#key", lease = true)
        public Object hidesLater(String key, boolean isLater) {
            return hides(key, isLater);
        }

        @Idempotent(name = "publishes", key = "#key")
        public Flow.Publisher<String> publishes(String key) {
            return null;
        }

        /** As the compiler of Kotlin makes it of a function that may suspend. */
        @Idempotent(name = "suspends", key = "#key")
        public Object suspends(String key, Continuation rest) {
            return "COROUTINE_SUSPENDED";
        }

        @Idempotent(name = "leased", key = "#key", lease = true)
        @Transactional(propagation = Propagation.REQUIRES_NEW)
        public void leased(String key) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
        }

        @Idempotent(name = "another", key = "#key")
        @Transactional(propagation = Propagation.REQUIRES_NEW)
        public void another(String key) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
        }

        @Idempotent(name = "without", key = "#key")
        @Transactional(propagation = Propagation.NOT_SUPPORTED)
        void without(String key) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
        }

        @Idempotent(name = "serializable", key = "#key")
        @Transactional(isolation = Isolation.SERIALIZABLE)
        public String serializable(String key) {
            return jdbc.queryForObject("SHOW transaction_isolation", String.class);
        }

        @Idempotent(name = "repeated", key = "#key")
        public void repeated(String key) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
            if (failed.add(key)) {
                throw new IllegalStateException("once");
            }
        }

        @Retryable(delay = 0)
        @Idempotent(name = "retried", key = "#key")
        public void retried(String key) {
            repeated(key);
        }

        @Idempotent(name = "cached", key = "#key")
        @Caching(cacheable = @Cacheable("tickets"))
        public void cached(String key) {
            throw new AssertionError("the method has run");
        }

        @Idempotent(name = "cachedByJsr107", key = "#key")
        @CacheResult(cacheName = "tickets")
        public void cachedByJsr107(String key) {
            throw new AssertionError("the method has run");
        }

        @Idempotent(name = "never", key = "#key")
        @Transactional(propagation = Propagation.NEVER)
        public void never(String key) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @EnableResilientMethods
    @Import({SpringExampleTest.Pool.class, Tickets.class})
    static class Program {
        /** Has the order of Spring Retry's advice. */
        @Bean
        static DefaultPointcutAdvisor repetition() {
            var pointcut = new NameMatchMethodPointcut();
            pointcut.setMappedName("repeated");
            var advisor = new DefaultPointcutAdvisor(pointcut, (MethodInterceptor) invocation -> {
                try {
                    return ((ProxyMethodInvocation) invocation).invocableClone().proceed();
                } catch (IllegalStateException once) {
                    return invocation.proceed();
                }
            });
            advisor.setOrder(Ordered.LOWEST_PRECEDENCE - 1);
            return advisor;
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
    void theAnnotationOfAnInterfaceHoldsAndATypeVariableIsWhatItStandsFor() {
        List<Ticket> first = tickets.book(key);
        List<Ticket> again = tickets.book(key);
        assertEquals(new Ticket(key), first.get(0));
        assertEquals(first, again);
        assertSame(again.getClass(), first.getClass(), "the first caller gets what the others get, and no more");
        assertEquals(1, effects());
    }

    @Test
    void aProgramWhoseMethodsWouldShareTheirOperationsDoesNotStart() {
        var error = assertThrows(IllegalStateException.class,
                () -> SpringExampleTest.withoutWeb(Program.class, IdempotentNamesTest.Overloaded.class));
        assertTrue(error.getMessage().contains("\"pay\""), error.getMessage());
    }

    @Test
    void whatNoJsonShowsIsNeitherComparedNorStored() {
        assertThrows(RuntimeException.class, () -> tickets.count(key, new Hidden()));
        assertThrows(RuntimeException.class, () -> tickets.hides(key, false));
        assertThrows(IllegalStateException.class, () -> tickets.names(key));
        assertTrue(assertThrows(IllegalStateException.class, () -> tickets.hides(key, true)).getMessage()
                .contains("CompletableFuture"));
        assertEquals(0, effects());
    }

    /** What is read from its JSON may be of another class. */
    @Test
    void aResultWhoseTypeTheCallerChoosesIsRefused() {
        assertTrue(assertThrows(IllegalStateException.class, () -> tickets.<Ticket>any(key)).getMessage()
                .contains("returns no T"));
    }

    /** Not each record with that code is one whose result could not be stored. */
    @Test
    void aLeasedResultWithTheCode500IsRead() {
        Idempotency once = context.getBean(Idempotency.class);
        String scope = Identity.function(once.options().scope(), "count later");
        once.lease(Call.of(key).withScope(scope), lease -> Completion.of(Response.of(500, "7")));
        assertEquals(7, tickets.countLater(key));
        once.lease(Call.of(key + "x").withScope(scope), lease -> Completion.of(Response.of(500, null)));
        assertThrows(IdempotencyException.Unstorable.class, () -> tickets.countLater(key + "x"));
        assertEquals(0, effects());
    }

    @Test
    void leasedWorkWhoseResultCannotBeStoredOrReadRunsOnceAllTheSame() {
        for (int call = 0; call < 2; call++) {
            assertThrows(IllegalStateException.class, () -> tickets.namesLater(key));
            Class<? extends RuntimeException> kind = call == 0 ? RuntimeException.class : IdempotencyException.Unstorable.class;
            assertThrows(kind, () -> tickets.hidesLater(key, true));
            assertThrows(kind, () -> tickets.hidesLater(key + "x", false));
            jdbc.update("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key LIKE ? || '%'"
                    + " AND status = 'PENDING'", key);
        }
        assertEquals(List.of(2, 1), List.of(effects(), SpringExampleTest.effects(jdbc, key + "x")));
    }

    /** It would be stored as done while it runs elsewhere. */
    @Test
    void aFunctionOfKotlinThatMaySuspendIsRefused() {
        assertTrue(assertThrows(IllegalStateException.class, () -> tickets.suspends(key, new Continuation() { })).getMessage()
                .contains("Continuation"));
    }

    /** Spring knows those whose library is there, as Reactor registers its own; here is none. */
    @Test
    void aPublisherIsRefused() throws Exception {
        ReactiveAdapterRegistry.class.getMethod("registerReactiveType", ReactiveTypeDescriptor.class, Function.class,
                Function.class)
                .invoke(ReactiveAdapterRegistry.getSharedInstance(), ReactiveTypeDescriptor.noValue(Flow.Publisher.class, () -> null),
                        Function.identity(), Function.identity());
        assertTrue(assertThrows(IllegalStateException.class, () -> tickets.publishes(key)).getMessage().contains("Publisher"));
    }

    @Test
    void aMethodThatWouldNotJoinTheTransactionIsRefused() {
        for (Executable call : List.<Executable>of(() -> tickets.another(key), () -> tickets.without(key),
                () -> tickets.never(key))) {
            assertTrue(assertThrows(IllegalStateException.class, call).getMessage().contains("joins"));
        }
        assertEquals(0, effects());
    }

    /** Within the operation's transaction, the writes of the first call would stay. */
    @Test
    void adviceThatRepeatsTheMethodRepeatsTheOperation() {
        tickets.repeated(key);
        assertEquals(1, effects());
        tickets.retried(key + "r");
        assertEquals(1, SpringExampleTest.effects(jdbc, key + "r"));
    }

    /** If COMMIT fails, the cache has the result already, and the repetition would store it without any effect. */
    @Test
    void aMethodThatACacheMayAnswerIsRefused() {
        assertTrue(assertThrows(IllegalStateException.class, () -> tickets.cached(key)).getMessage().contains("@Cacheable"));
        assertTrue(assertThrows(IllegalStateException.class, () -> tickets.cachedByJsr107(key)).getMessage()
                .contains("@CacheResult"));
    }

    /** Spring itself ignores that of a method which joins. */
    @Test
    void theIsolationLevelOfTheMethodHolds() {
        assertEquals("serializable", tickets.serializable(key));
    }

    /** What it stores would stay when that is rolled back. */
    @Test
    void anOperationIsNotInATransaction() {
        var template = new TransactionTemplate(context.getBean(PlatformTransactionManager.class));
        for (Runnable call : List.<Runnable>of(() -> tickets.count(key), () -> tickets.leased(key),
                () -> context.getBean(Idempotency.class).lease(Call.of(key), lease -> Completion.of(Response.EMPTY)))) {
            assertThrows(IllegalTransactionStateException.class, () -> template.executeWithoutResult(status -> call.run()));
        }
        tickets.leased(key);
        tickets.leased(key);
        assertEquals(1, effects());
    }

    @Test
    void aManagerOfAnotherDataSourceIsRefused() throws Exception {
        var dataSource = context.getBean(DataSource.class);
        try (var other = new SpringExampleTest.Pool().dataSource()) {
            other.setAutoCommit(false);
            var once = new Idempotency(new SpringTransactions(new JdbcTransactionManager(dataSource), other), Options.DEFAULT);
            assertTrue(assertThrows(IllegalStateException.class,
                    () -> once.transaction(Call.of(key), (c, operation) -> Response.EMPTY))
                    .getMessage().contains("does not say which connection it uses"));
        }
        var same = new SpringTransactions(new JdbcTransactionManager(dataSource),
                new TransactionAwareDataSourceProxy(dataSource));
        var once = new Idempotency(same, Options.DEFAULT);
        once.transaction(Call.of(key), (connection, operation) -> Response.EMPTY);
        new TransactionTemplate(same.manager()).executeWithoutResult(status -> {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
            once.lookup(Call.of(key)); // on a connection of its own, as this one would commit
            status.setRollbackOnly();
        });
        assertEquals(0, effects());
    }

    /** JTA binds no connection of Spring's; this one does nothing at all, so the server refuses what follows. */
    @Test
    void aManagerThatBindsNoConnectionIsAsked() {
        var manager = new AbstractPlatformTransactionManager() {
            @Override
            protected Object doGetTransaction() {
                return key;
            }

            @Override
            protected void doBegin(Object transaction, TransactionDefinition definition) {
            }

            @Override
            protected void doCommit(DefaultTransactionStatus status) {
            }

            @Override
            protected void doRollback(DefaultTransactionStatus status) {
            }
        };
        var once = new Idempotency(new SpringTransactions(manager, context.getBean(DataSource.class)), Options.DEFAULT);
        assertThrows(IdempotencyException.class, () -> once.transaction(Call.of(key), (connection, operation) -> Response.EMPTY));
        manager.setTransactionSynchronization(AbstractPlatformTransactionManager.SYNCHRONIZATION_NEVER);
        assertTrue(assertThrows(IllegalStateException.class,
                () -> once.transaction(Call.of(key), (connection, operation) -> Response.EMPTY))
                .getMessage().contains("does not say which connection it uses"));
        assertEquals(0, context.getBean(HikariDataSource.class).getHikariPoolMXBean().getActiveConnections());
    }

    @Test
    void aLeaseEndsInTheTransactionThatItsWritesHaveMarked() {
        var joined = new TransactionTemplate(context.getBean(PlatformTransactionManager.class));
        assertThrows(IdempotencyException.RolledBack.class, () -> context.getBean(Idempotency.class).lease(Call.of(key),
                lease -> new Completion(Response.EMPTY, connection -> joined.executeWithoutResult(status -> {
                    jdbc.update("INSERT INTO seat VALUES (?)", key);
                    status.setRollbackOnly();
                }))));
        assertEquals(0, effects());
    }

    @Test
    void writesOfALeaseThatRollBackByAStatementAreNoAnswer() {
        assertThrows(IdempotencyException.NotOwned.class, () -> context.getBean(Idempotency.class).lease(Call.of(key),
                lease -> new Completion(Response.EMPTY, connection -> {
                    jdbc.execute("ROLLBACK");
                    jdbc.update("INSERT INTO seat VALUES (?)", key);
                })));
        assertEquals(0, effects());
    }

    @Test
    void whatOnlyTheCommitRefusesIsAnOther() {
        var dataSource = context.getBean(DataSource.class);
        jdbc.execute("CREATE TABLE IF NOT EXISTS self (id int PRIMARY KEY, other int REFERENCES self DEFERRABLE INITIALLY DEFERRED)");
        for (var manager : List.of(context.getBean(PlatformTransactionManager.class),
                new DataSourceTransactionManager(dataSource))) {
            var once = new Idempotency(new SpringTransactions(manager, dataSource), Options.DEFAULT);
            var refused = assertThrows(IdempotencyException.Other.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
                jdbc.update("INSERT INTO self VALUES (1, 2)");
                return Response.EMPTY;
            }));
            assertEquals("23503", IdempotencyException.sqlState(refused));
        }
    }

    /** A pool says of it that it is closed, without a SQLSTATE, when it is to roll back. */
    @ParameterizedTest
    @ValueSource(ints = {0, Connection.TRANSACTION_SERIALIZABLE})
    void aLostConnectionIsRepeatedAndOneThatWasDeadOnArrivalIsNoAttempt(int isolation) throws Exception {
        try (var pool = new SpringExampleTest.Pool().dataSource()) {
            pool.setMaximumPoolSize(1);
            var once = new Idempotency(new SpringTransactions(new JdbcTransactionManager(pool), pool),
                    Options.DEFAULT.withRetry(2, Duration.ZERO, Duration.ZERO));
            String ownId;
            try (var idle = pool.getConnection(); var statement = idle.createStatement();
                    var row = statement.executeQuery("SELECT pg_backend_pid()")) {
                row.next();
                ownId = row.getString(1);
            }
            assertEquals(true, jdbc.queryForObject("SELECT pg_terminate_backend(" + ownId + ", 60000)", Boolean.class));
            int[] runs = new int[1];
            once.transaction(Call.of(key).withIsolation(isolation), (connection, operation) -> {
                assertEquals(isolation == 0 ? Connection.TRANSACTION_READ_COMMITTED : isolation,
                        connection.getTransactionIsolation());
                new JdbcTemplate(pool).update("INSERT INTO seat VALUES (?)", key);
                if (++runs[0] == 1) {
                    new JdbcTemplate(pool).execute("SELECT pg_terminate_backend(pg_backend_pid())");
                }
                return Response.EMPTY;
            });
            assertEquals(2, runs[0]);
            assertEquals(1, effects());
        }
    }

    @Test
    void whatTheWorkThrowsIsThrownWhateverBecameOfItsConnection() {
        for (var own : List.of(new UnexpectedRollbackException("of another transaction"), new TransactionSystemException("of another"),
                new IllegalStateException(new SQLException("without a state")))) {
            assertSame(own, assertThrows(RuntimeException.class, () -> context.getBean(Idempotency.class).transaction(Call.of(key), (c, o) -> {
                throw own;
            })));
        }
        int[] runs = new int[1]; // HikariCP ends the connection
        assertEquals("0A000", assertThrows(SQLException.class, () -> context.getBean(Idempotency.class).transaction(Call.of(key), (connection, o) -> {
            runs[0]++;
            return Response.of(connection.createStatement().executeUpdate("DO $$BEGIN RAISE SQLSTATE '0A000'; END$$"), null);
        })).getSQLState());
        assertEquals(1, runs[0]);
        var notDone = new IdempotencyException.NotDone(new IllegalStateException("why"));
        assertSame(notDone, assertThrows(IdempotencyException.NotDone.class,
                () -> context.getBean(Idempotency.class).transaction(Call.of(key), (connection, operation) -> {
                    assertThrows(SQLException.class,
                            () -> connection.createStatement().execute("SELECT pg_terminate_backend(pg_backend_pid())"));
                    throw notDone;
                })));
    }

    @Test
    void noExceptionQuotesAResultThatCannotBeRead() {
        tickets.count(key);
        jdbc.update("UPDATE idempotency_store SET response_payload = '\"card 4111\"' WHERE idempotency_key = ?", key);
        var trace = new StringWriter();
        assertThrows(IllegalStateException.class, () -> tickets.count(key)).printStackTrace(new PrintWriter(trace));
        assertFalse(trace.toString().contains("4111"), trace::toString);
    }
}
