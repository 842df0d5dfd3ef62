package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import jakarta.persistence.Entity;
import jakarta.persistence.EntityManager;
import jakarta.persistence.Id;
import jakarta.persistence.Version;
import jakarta.servlet.http.HttpServletRequest;
import java.io.IOException;
import java.lang.reflect.Method;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import org.example.idempotency.Call;
import org.example.idempotency.Completion;
import org.example.idempotency.Declined;
import org.example.idempotency.Idempotency;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Response;
import org.example.idempotency.servlet.FilterOptions;
import org.example.idempotency.servlet.Keep;
import org.example.idempotency.servlet.Problem;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.InvocationInterceptor;
import org.junit.jupiter.api.extension.ReflectiveInvocationContext;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.persistence.autoconfigure.EntityScan;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.core.MethodParameter;
import org.springframework.core.Ordered;
import org.springframework.core.task.AsyncTaskExecutor;
import org.springframework.dao.DataIntegrityViolationException;
import org.springframework.data.jpa.repository.JpaRepository;
import org.springframework.data.jpa.repository.config.EnableJpaRepositories;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.http.converter.HttpMessageConverter;
import org.springframework.http.server.ServerHttpRequest;
import org.springframework.http.server.ServerHttpResponse;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.orm.ObjectOptimisticLockingFailureException;
import org.springframework.orm.jpa.JpaTransactionManager;
import org.springframework.stereotype.Service;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.interceptor.TransactionAspectSupport;
import org.springframework.web.bind.annotation.ControllerAdvice;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.servlet.mvc.method.annotation.ResponseBodyAdvice;

/** Key and effect are one transaction where JPA makes it, on virtual threads where Java has them. */
@Timeout(60)
class JpaTest {
    private static final boolean HAS_VIRTUAL = Runtime.version().feature() >= 21;
    private static ConfigurableApplicationContext context;
    private static JdbcTemplate jdbc;
    private final String key = UUID.randomUUID().toString();
    private final Payments payments = context.getBean(Payments.class);
    private final EntityManager manager = context.getBean(EntityManager.class);
    private final Idempotency once = context.getBean(Idempotency.class);

    @Entity(name = "jpa_payment")
    static class Payment {
        @Id
        String id;
        int amount;
        @Version
        int version;

        Payment() {
        }

        Payment(String id, int amount) {
            this.id = id;
            this.amount = amount;
        }

        public int getVersion() {
            return version;
        }
    }

    interface Ledger extends JpaRepository<Payment, String> { }

    @Service
    static class Payments {
        private final EntityManager manager;
        private final Ledger ledger;
        private int runs;
        private int conflicts;

        Payments(EntityManager manager, Ledger ledger) {
            this.manager = manager;
            this.ledger = ledger;
        }

        /** Nothing is written before the transaction commits. */
        @Idempotent(name = "persist", key = "#key", maxLostAttempts = -1)
        @Transactional
        public String persist(String key, Throwable then) throws Throwable {
            manager.persist(new Payment(key, ++runs));
            if (then != null) {
                throw then;
            }
            return key;
        }

        /** The first run conflicts, and is repeated. */
        @Idempotent(name = "conflict", key = "#key")
        @Transactional
        public int conflict(String key) {
            assertFalse(TransactionAspectSupport.currentTransactionStatus().isNewTransaction()); // @Transactional holds for each run
            manager.persist(new Payment(key, 1));
            if (++conflicts == 1) {
                manager.createNativeQuery("DO $$BEGIN RAISE 'conflict' USING ERRCODE = '40001'; END$$").executeUpdate();
            }
            return conflicts;
        }

        @Idempotent(name = "swallow", key = "#key")
        public void swallow(String key) {
            jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
            manager.persist(new Payment(key, 1)); // a flush would fail
            assertThrows(RuntimeException.class, () -> ledger.saveAndFlush(new Payment(null, 1)));
        }

        /** The flush gives it another version. */
        @Idempotent(name = "change", key = "#key")
        @Transactional
        public Payment change(String key) {
            Payment payment = ledger.findById(key).orElseThrow();
            payment.amount++;
            return payment;
        }

        /** Another transaction has changed the row, which only the flush finds out. */
        @Idempotent(name = "stale", key = "#key")
        public void stale(String key) {
            manager.find(Payment.class, key).amount++;
            jdbc.update("UPDATE jpa_payment SET version = version + 1 WHERE id = ?", key);
        }
    }

    @RestController
    static class Orders {
        private final EntityManager manager;

        Orders(EntityManager manager) {
            this.manager = manager;
        }

        /** The EntityManager is that of the whole request. */
        @PostMapping("/payments")
        @IdempotentRequest
        Map<String, Boolean> pay(@RequestBody String id) {
            manager.persist(new Payment(id, 7));
            return Map.of("virtual", isVirtual());
        }

        @PostMapping("/changes")
        @IdempotentRequest
        Payment change(@RequestBody String id) {
            Payment payment = manager.find(Payment.class, id);
            payment.amount++;
            return payment;
        }

        @PostMapping("/outcomes")
        @IdempotentRequest
        ResponseEntity<Payment> changeForGood(@RequestBody String id) {
            return ResponseEntity.status(410).body(change(id));
        }

        /** What it has begun to write would be refused by the database. */
        @PostMapping("/refusals")
        @IdempotentRequest
        ResponseEntity<Payment> refuse(@RequestBody String id) {
            Payment payment = new Payment(id, 7);
            manager.persist(payment);
            return ResponseEntity.unprocessableContent().body(payment);
        }
    }

    /** Answers every error by itself, as many programs do. */
    @RestController
    static class Careful {
        private final EntityManager manager;

        Careful(EntityManager manager) {
            this.manager = manager;
        }

        @PostMapping("/conflicts")
        @IdempotentRequest
        Map<String, Integer> change(@RequestBody String id) {
            return Map.of("was", manager.find(Payment.class, id).amount++);
        }

        @ExceptionHandler(Exception.class)
        ResponseEntity<String> any() {
            return ResponseEntity.status(500).body("any");
        }
    }

    /** Advice of an application reads the entity, too. */
    @ControllerAdvice
    static class Versions implements ResponseBodyAdvice<Payment> {
        @Override
        public boolean supports(MethodParameter returned, Class<? extends HttpMessageConverter<?>> converter) {
            return returned.getParameterType() == Payment.class;
        }

        @Override
        public Payment beforeBodyWrite(Payment body, MethodParameter returned, MediaType type,
                Class<? extends HttpMessageConverter<?>> converter, ServerHttpRequest request, ServerHttpResponse response) {
            response.getHeaders().setETag("\"" + body.version + "\"");
            return body;
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @EntityScan(basePackageClasses = JpaTest.class)
    @EnableJpaRepositories(basePackageClasses = JpaTest.class, considerNestedRepositories = true)
    @Import({SpringExampleTest.Pool.class, Payments.class, Orders.class, Careful.class, Versions.class})
    static class Program {
        @Bean
        IdempotencyHttp caller() {
            return new IdempotencyHttp() {
                @Override
                public String principal(HttpServletRequest request) {
                    return "ann";
                }

                @Override
                public void configure(FilterOptions options) {
                    options.statuses(status -> status == 410 ? new Keep(Keep.Kind.STORED, null) : Keep.byDefault(status));
                    options.problem((error, usual) -> error instanceof DataIntegrityViolationException
                            ? new Problem(409, null, "It is there", null, null) : usual);
                }
            };
        }
    }

    @BeforeAll
    static void start() {
        context = SpringApplication.run(Program.class, "--server.port=0", "--server.address=127.0.0.1", "--spring.main.banner-mode=off",
                "--spring.autoconfigure.exclude=");
        jdbc = SpringExampleTest.prepared(context);
        jdbc.execute("CREATE TABLE IF NOT EXISTS jpa_payment (id text PRIMARY KEY, amount int, version int)");
    }

    @AfterAll
    static void stop() {
        context.close();
    }

    /** Each test runs on a thread of the program. */
    @RegisterExtension
    static final InvocationInterceptor ON_ITS_THREADS = new InvocationInterceptor() {
        @Override
        public void interceptTestMethod(Invocation<Void> test, ReflectiveInvocationContext<Method> method,
                ExtensionContext extension)
                throws Throwable {
            try {
                context.getBean("applicationTaskExecutor", AsyncTaskExecutor.class).submit(() -> {
                    assertEquals(HAS_VIRTUAL, isVirtual());
                    try {
                        return test.proceed();
                    } catch (Error | Exception failure) {
                        throw failure;
                    } catch (Throwable other) {
                        throw new IllegalStateException(other);
                    }
                }).get();
            } catch (ExecutionException failed) {
                throw failed.getCause();
            }
        }
    };

    private static boolean isVirtual() {
        return Thread.currentThread().toString().startsWith("VirtualThread");
    }

    private int effects() {
        return count("jpa_payment WHERE id = ?");
    }

    private int records() {
        return count("idempotency_store WHERE idempotency_key = ?");
    }

    private int count(String where) {
        return jdbc.queryForObject("SELECT count(*) FROM " + where, Integer.class, key);
    }

    private void assertNothingIsStored() {
        assertEquals(0, effects());
        assertEquals(0, records());
    }

    @Test
    void keyAndEffectAreOneTransaction() throws Throwable {
        assertInstanceOf(JpaTransactionManager.class, context.getBean(PlatformTransactionManager.class));
        assertTrue(context.getBean("idempotentAdvisor", Ordered.class).getOrder() < Ordered.LOWEST_PRECEDENCE,
                "before that of @Transactional");
        for (int i = 0; i < 2; i++) {
            assertEquals(key, payments.persist(key, null));
        }
        assertEquals(1, effects());
        assertEquals(1, count("idempotency_store s JOIN jpa_payment p ON p.xmin = s.xmin WHERE s.idempotency_key = ?"));
    }

    @Test
    void bothAreRolledBackWhateverIsThrown() throws Throwable {
        for (Throwable broken : List.of(new IllegalStateException("broken"), new AssertionError("broken"),
                new IOException("broken"))) {
            assertSame(broken, assertThrows(Throwable.class, () -> payments.persist(key, broken)));
            assertNothingIsStored();
        }
        assertEquals(key, payments.persist(key, null));
        assertEquals(1, effects());
    }

    @Test
    void aRefusalIsStoredWithoutTheEffect() {
        for (int i = 0; i < 2; i++) {
            assertEquals(402, assertThrows(Declined.class, () -> payments.persist(key, new Declined(402, null))).response()
                    .code());
        }
        assertEquals(0, effects());
        assertEquals(1, records());
    }

    /** As it would be without the annotation. */
    @Test
    void whatTheFlushRefusesIsTheCallersError() throws Throwable {
        jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
        for (int i = 0; i < 2; i++) {
            assertEquals("23505", IdempotencyException.sqlState(
                    assertThrows(DataIntegrityViolationException.class, () -> payments.persist(key, null))));
        }
        assertThrows(ObjectOptimisticLockingFailureException.class, () -> payments.stale(key));
        assertEquals(0, records());
        jdbc.update("DELETE FROM jpa_payment");
        assertEquals(key, payments.persist(key, null));
        assertEquals(1, effects());
    }

    /** As it would be without the annotation, where COMMIT comes before whoever writes the JSON. */
    @Test
    void theAnswerIsTheEntityAfterItsFlush() throws Exception {
        jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
        for (int i = 0; i < 2; i++) {
            assertEquals(1, payments.change(key).version);
        }
        for (int i = 0; i < 2; i++) {
            var answer = post("/changes");
            assertEquals("{\"version\":2}", answer.body());
            assertEquals("\"2\"", answer.headers().firstValue("ETag").orElseThrow());
        }
        assertEquals(1, count("jpa_payment WHERE version = 2 AND id = ?"));
    }

    @Test
    void soItIsWhereAnErrorIsStoredWithItsWrites() throws Exception {
        jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
        for (int i = 0; i < 2; i++) {
            var answer = post("/outcomes");
            assertEquals(410, answer.statusCode());
            assertEquals("{\"version\":1}", answer.body());
        }
        assertEquals(1, count("jpa_payment WHERE version = 1 AND id = ?"));
    }

    @Test
    void anAnswerThatRefusesIsGivenWithoutAFlush() throws Exception {
        jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
        for (int i = 0; i < 2; i++) {
            assertEquals(422, post("/refusals").statusCode());
        }
        assertEquals(1, records());
    }

    @Test
    void aConflictOfTheFlushRepeatsAlsoWhereTheProgramAnswersEveryError() throws Exception {
        jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
        jdbc.execute("CREATE SEQUENCE jpa_updates; CREATE FUNCTION jpa_conflict() RETURNS trigger LANGUAGE plpgsql AS"
                + " 'BEGIN IF nextval(''jpa_updates'') = 1 THEN RAISE ''conflict'' USING ERRCODE = ''40001''; END IF; RETURN new; END';"
                + " CREATE TRIGGER conflict BEFORE UPDATE ON jpa_payment FOR EACH ROW EXECUTE FUNCTION jpa_conflict()");
        try {
            for (int i = 0; i < 2; i++) {
                assertEquals("{\"was\":1}", post("/conflicts").body());
            }
        } finally {
            jdbc.execute("DROP FUNCTION jpa_conflict() CASCADE; DROP SEQUENCE jpa_updates");
        }
        assertEquals(1, count("jpa_payment WHERE amount = 2 AND id = ?"));
    }

    @Test
    void aFailureThatWasSwallowedIsNotStored() {
        assertThrows(IdempotencyException.RolledBack.class, () -> payments.swallow(key));
        assertNothingIsStored();
    }

    @Test
    void aConflictRepeatsTheWholeWithNothingLeftFromTheFirstRun() {
        assertEquals(2, payments.conflict(key));
        assertEquals(1, effects());
    }

    @Test
    void theClientItselfJoinsToo() throws Exception {
        assertThrows(DataIntegrityViolationException.class, () -> once.batch(null, batch -> {
            batch.beginMany(List.of(key), null);
            manager.persist(new Payment(key, 1));
            jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
            return batch.completeMany(List.of(key), null);
        }));
        assertThrows(DataIntegrityViolationException.class, () -> once.lease(Call.of(key), lease -> new Completion(Response.EMPTY, c -> {
            manager.persist(new Payment(key, 1));
            jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
        })));
        assertEquals(0, effects());
    }

    @Test
    void aRequestIsHandledOnce() throws Exception {
        for (int i = 0; i < 2; i++) {
            HttpResponse<String> response = post();
            assertEquals("{\"virtual\":" + HAS_VIRTUAL + '}', response.body());
            assertEquals(i == 1, response.headers().firstValue("Idempotency-Replayed").isPresent());
        }
        assertEquals(1, effects());
    }

    @Test
    void whatTheFlushRefusesIsAProblemOfTheProgramAndNoLostAttempt() throws Exception {
        jdbc.queryForList("SELECT idem_set_policy('POST /payments *', max_lost_attempts => 1)");
        jdbc.update("INSERT INTO jpa_payment VALUES (?, 1, 0)", key);
        for (int i = 0; i < 2; i++) {
            assertEquals(409, post().statusCode());
        }
        assertEquals(0, records());
    }

    private HttpResponse<String> post() throws Exception {
        return post("/payments");
    }

    private HttpResponse<String> post(String path) throws Exception {
        var uri = URI.create("http://127.0.0.1:" + context.getEnvironment().getProperty("local.server.port") + path);
        return HttpClient.newHttpClient().send(HttpRequest.newBuilder(uri).header("Idempotency-Key", key)
                .POST(HttpRequest.BodyPublishers.ofString(key)).build(), HttpResponse.BodyHandlers.ofString());
    }
}
