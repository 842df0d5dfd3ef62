package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import com.zaxxer.hikari.HikariDataSource;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.LocalDate;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.example.idempotency.Call;
import org.example.idempotency.Declined;
import org.example.idempotency.Idempotency;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Outcome;
import org.example.idempotency.Response;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.ApplicationContext;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.dao.DataAccessException;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.security.authentication.AuthenticationCredentialsNotFoundException;
import org.springframework.security.authorization.AuthorizationDeniedException;
import org.springframework.security.web.access.ExceptionTranslationFilter;
import org.springframework.security.web.authentication.Http403ForbiddenEntryPoint;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;

/** The code of README.md for Spring Boot, in a program with Tomcat. */
class SpringExampleTest {
    private static ConfigurableApplicationContext context;
    private static JdbcTemplate jdbc;
    private static final Set<String> REVOKED = ConcurrentHashMap.newKeySet();
    private final String key = UUID.randomUUID().toString();
    private final Seats seats = context.getBean(Seats.class);

    record Ticket(String seat, LocalDate day) { }

    @Service
    static class Seats {
        private final JdbcTemplate jdbc;

        Seats(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        /** One seat for each key. */
        @Idempotent(name = "book-seat", key = "#key")
        @Transactional
        public Ticket book(String key, String seat) {
            jdbc.update("INSERT INTO seat VALUES (?)", seat);
            return new Ticket(seat, LocalDate.of(2030, 1, 2));
        }

        @Idempotent(name = "refuse", key = "#key")
        @Transactional
        public void refuse(String key, int times) {
            jdbc.update("INSERT INTO seat VALUES (?)", key);
            throw new Declined(402, null);
        }

        @Idempotent(name = "poison", key = "#key", maxLostAttempts = 2)
        public void poison(String key) {
            jdbc.execute("SELECT 1/0");
        }

        @Idempotent(name = "later", key = "#key")
        public CompletableFuture<String> later(Object key) {
            return null;
        }

        @Idempotent(name = "count", key = "#key")
        public int count(Object key) {
            return 1;
        }

    }

    /** Has no toString(). */
    static final class Nameless { }

    @RestController
    static class Orders {
        @PostMapping("/orders")
        @IdempotentRequest
        ResponseEntity<Map<String, String>> order(@RequestBody String seat) {
            jdbc.update("INSERT INTO seat VALUES (?)", seat);
            return ResponseEntity.status(201).body(Map.of("seat", seat));
        }

        /** Runs what another method is annotated for. */
        @PostMapping("/old-orders/{how}")
        void old(@PathVariable String how, HttpServletRequest request, HttpServletResponse response) throws Exception {
            if (how.equals("forward")) {
                request.getRequestDispatcher("/orders").forward(request, response);
            } else {
                request.startAsync().dispatch("/orders");
            }
        }

        @RequestMapping("/changes")
        @IdempotentRequest
        void change() {
        }

        @PostMapping("/forbidden")
        @IdempotentRequest
        ResponseEntity<Void> forbidden(@RequestBody String seat) {
            jdbc.update("INSERT INTO seat VALUES (?)", seat);
            return ResponseEntity.status(403).build();
        }

        @PostMapping("/forbidden-by-exception")
        @IdempotentRequest
        void forbiddenByException(@RequestBody String seat) {
            jdbc.update("INSERT INTO seat VALUES (?)", seat);
            throw new ResponseStatusException(HttpStatus.FORBIDDEN);
        }

        @PostMapping("/forbidden-by-security")
        @IdempotentRequest
        void forbiddenBySecurity(@RequestBody String seat) {
            jdbc.update("INSERT INTO seat VALUES (?)", seat);
            throw new AuthorizationDeniedException("as @PreAuthorize throws it");
        }

        @PostMapping("/forbidden-to-nobody")
        @IdempotentRequest
        void forbiddenToNobody(@RequestBody String seat) {
            throw new AuthenticationCredentialsNotFoundException("as @PreAuthorize throws it without a login");
        }

        @PostMapping("/forbidden-to-a-lease")
        @IdempotentRequest(lease = true)
        void forbiddenToALease(@RequestBody String seat) {
            assertFalse(TransactionSynchronizationManager.isActualTransactionActive());
            throw new AuthorizationDeniedException("as @PreAuthorize throws it");
        }
    }

    @Configuration(proxyBeanMethods = false)
    static class Pool {
        @Bean
        HikariDataSource dataSource() {
            HikariDataSource pool = new HikariDataSource();
            pool.setJdbcUrl("jdbc:postgresql://localhost/" + System.getenv("PGDATABASE") + "?sslmode=disable&gssEncMode=disable"
                    + "&socketFactory=org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg&socketFactoryArg="
                    + System.getenv("PGHOST") + "/.s.PGSQL." + System.getenv("PGPORT"));
            pool.setUsername(System.getenv("PGUSER"));
            return pool;
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({Pool.class, Seats.class, Orders.class})
    static class Program {
        /** Authentication of the program's own, which does not say where it stands. */
        @Bean
        Filter authentication() {
            return (request, response, chain) -> {
                if (REVOKED.contains(String.valueOf(((HttpServletRequest) request).getHeader("X-User")))) {
                    ((HttpServletResponse) response).setStatus(403);
                } else {
                    chain.doFilter(request, response);
                }
            };
        }

        /** Spring Security's filter that answers what the program refuses. */
        @Bean
        FilterRegistrationBean<Filter> security() {
            var security = new FilterRegistrationBean<Filter>(new ExceptionTranslationFilter(new Http403ForbiddenEntryPoint()));
            security.setOrder(-100);
            return security;
        }

        /** What authentication would have found. */
        @Bean
        IdempotencyHttp http() {
            return (HttpServletRequest request) -> request.getHeader("X-User");
        }
    }

    @BeforeAll
    static void start() {
        context = SpringApplication.run(Program.class, "--server.port=0", "--server.address=127.0.0.1", "--spring.main.banner-mode=off",
                "--idempotency.scope=shop");
        jdbc = prepared(context);
    }

    static JdbcTemplate prepared(ApplicationContext context) {
        var template = context.getBean(JdbcTemplate.class);
        template.execute("CREATE EXTENSION IF NOT EXISTS idempotency");
        template.execute("CREATE TABLE IF NOT EXISTS seat (name text)");
        return template;
    }

    @AfterAll
    static void stop() {
        context.close();
    }

    static ConfigurableApplicationContext withoutWeb(Class<?>... programs) {
        return new SpringApplicationBuilder(programs).web(WebApplicationType.NONE).run("--spring.main.banner-mode=off");
    }

    static int effects(JdbcTemplate template, String seat) {
        return template.queryForObject("SELECT count(*) FROM seat WHERE name = ?", Integer.class, seat);
    }

    private static int count(String seat) {
        return effects(jdbc, seat);
    }

    @Test
    void aMethodRunsOnceAndReturnsItsResultAgain() {
        Ticket ticket = seats.book(key, key);
        assertEquals(ticket, seats.book(key, key));
        assertEquals(1, count(key));
        assertThrows(IdempotencyException.KeyReused.class, () -> seats.book(key, "another"));
        assertThrows(IllegalArgumentException.class, () -> seats.book("", key));
        assertThrows(IllegalArgumentException.class, () -> seats.book(null, key));
    }

    @Test
    void aKeyHasATextOfItsOwnAndAResultIsThere() {
        assertEquals(1, seats.count(UUID.fromString(key)));
        assertTrue(assertThrows(IllegalArgumentException.class, () -> seats.count(new Nameless())).getMessage().contains("toString"));
        assertTrue(assertThrows(IllegalArgumentException.class, () -> seats.count(new int[] {1})).getMessage().contains("toString"));
        assertTrue(assertThrows(IllegalStateException.class, () -> seats.later(key)).getMessage().contains("CompletableFuture"));
    }

    @Test
    void aRefusalIsStoredThoughTheTransactionWasMarked() {
        jdbc.queryForList("SELECT idem_set_policy('shop.refuse', max_lost_attempts => 1)");
        for (int i = 0; i < 2; i++) {
            assertEquals(402, assertThrows(Declined.class, () -> seats.refuse(key, 1)).response().code());
        }
        assertEquals(0, count(key));
        assertTrue(context.getBean(Idempotency.class).lookup(Call.of(key).withScope("shop.refuse")).replayed());
    }

    @Test
    void aMethodWhoseTransactionIsAlwaysRolledBackIsRefusedInTheEnd() {
        for (int i = 0; i < 2; i++) {
            assertEquals("22012", IdempotencyException.sqlState(assertThrows(DataAccessException.class, () -> seats.poison(key))));
        }
        for (int i = 0; i < 2; i++) {
            assertEquals("{\"reason\": \"attempts lost\", \"lost_attempts\": 2}",
                    assertThrows(Declined.class, () -> seats.poison(key)).response().payload());
        }
    }

    private static HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + context.getEnvironment().getProperty("local.server.port") + path));
    }

    private static HttpResponse<String> send(HttpRequest.Builder request) throws Exception {
        return HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    private HttpResponse<String> post(String path, String user) throws Exception {
        return send(request(path).header("Idempotency-Key", key).header("X-User", user).header("Content-Type", "text/plain")
                .POST(HttpRequest.BodyPublishers.ofString(key)));
    }

    @ParameterizedTest
    @ValueSource(strings = {"/old-orders/forward", "/old-orders/dispatch"})
    void theAnnotationHoldsForWhatAnotherMethodPassesOn(String path) throws Exception {
        for (boolean isReplay : new boolean[] {false, true}) {
            HttpResponse<String> answer = post(path, "ann");
            assertEquals(201, answer.statusCode());
            assertEquals(isReplay, answer.headers().firstValue("Idempotency-Replayed").isPresent());
        }
        assertEquals(1, count(key));
    }

    @Test
    void whomAuthenticationRefusesGetsNoReplay() throws Exception {
        assertEquals(201, post("/orders", key).statusCode());
        REVOKED.add(key);
        assertEquals(403, post("/orders", key).statusCode());
        REVOKED.remove(key);
        assertTrue(post("/orders", key).headers().firstValue("Idempotency-Replayed").isPresent());
    }

    @Test
    void aRefusalOfTheMomentIsNeitherStoredNorALostAttempt() throws Exception {
        for (String path : new String[] {"/forbidden", "/forbidden-by-exception", "/forbidden-by-security", "/forbidden-to-nobody",
                "/forbidden-to-a-lease"}) {
            jdbc.queryForList("SELECT idem_set_policy('shop POST " + path + " *', max_lost_attempts => 1)");
            for (int i = 0; i < 2; i++) {
                HttpResponse<String> forbidden = post(path, "ann");
                assertEquals(403, forbidden.statusCode());
                assertFalse(forbidden.headers().firstValue("Idempotency-Replayed").isPresent());
            }
        }
        assertEquals(0, count(key));
    }

    @Test
    void whereItIsOffEachCallRunsAndTakesPartInTheTransactionOfATest() {
        try (var off = new SpringApplicationBuilder(Program.class).web(WebApplicationType.NONE)
                .run("--idempotency.enabled=false", "--spring.main.banner-mode=off")) {
            var once = off.getBean(Idempotency.class);
            Runnable calls = () -> {
                off.getBean(Seats.class).book(key, key);
                off.getBean(Seats.class).book(key, key);
                once.transaction(Call.of(key), (connection, operation) -> write(off));
                assertEquals(Outcome.FAILED, once.transaction(Call.of(key), (connection, operation) -> {
                    write(off);
                    throw new Declined(402, null);
                }).outcome());
                assertThrows(DataAccessException.class, () -> once.transaction(Call.of(key), (connection, operation) -> {
                    write(off);
                    off.getBean(JdbcTemplate.class).execute("SELECT 1/0");
                    return Response.EMPTY;
                }));
                assertEquals(3, effects(off.getBean(JdbcTemplate.class), key));
            };
            off.getBean(TransactionTemplate.class).executeWithoutResult(test -> {
                calls.run();
                test.setRollbackOnly();
            });
            assertEquals(0, count(key));
            calls.run();
        }
        assertNull(context.getBean(Idempotency.class).lookup(Call.of(key).withScope("shop.book-seat")));
    }

    private Response write(ApplicationContext program) {
        program.getBean(JdbcTemplate.class).update("INSERT INTO seat VALUES (?)", key);
        return Response.EMPTY;
    }
}
