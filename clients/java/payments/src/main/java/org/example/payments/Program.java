package org.example.payments;

import com.zaxxer.hikari.HikariDataSource;
import jakarta.servlet.http.HttpServletRequest;
import java.math.BigDecimal;
import java.net.URI;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.Map;
import java.util.UUID;
import org.example.idempotency.Declined;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.servlet.Exchange;
import org.example.idempotency.servlet.FilterOptions;
import org.example.idempotency.spring.IdempotencyHttp;
import org.example.idempotency.spring.IdempotentRequest;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.util.UriComponentsBuilder;

/** The conformance program on Spring Boot: PORT and DATABASE_URL come from the environment. */
@SpringBootApplication
@RestController
public class Program {
    private static final BigDecimal LIMIT = BigDecimal.valueOf(1000);

    private final ObjectProvider<JdbcTemplate> jdbc; // of the pool that this class makes

    /**
     * For Spring.
     *
     * @param jdbc the template
     */
    public Program(ObjectProvider<JdbcTemplate> jdbc) {
        this.jdbc = jdbc;
    }

    /** The body of a request. */
    record Payment(String account, BigDecimal amount, Boolean crash, Long slow) {
        Payment {
            amount = amount == null ? BigDecimal.ZERO : amount;
            crash = crash != null && crash;
            slow = slow == null ? 0 : slow;
        }

        /** A crash needs no account. */
        void check() {
            boolean isInteger = amount.stripTrailingZeros().scale() <= 0 && amount.precision() - amount.scale() < 10;
            if (!isInteger || !crash && (account == null || account.isEmpty()) || account != null && account.indexOf('\0') >= 0) {
                throw new Declined(400, "{\"reason\": \"invalid\"}");
            }
        }

        void decide() {
            if (amount.compareTo(LIMIT) > 0) {
                throw new Declined(402, "{\"reason\": \"declined\"}");
            }
        }

        ResponseEntity<Map<String, Object>> answer() {
            String id = UUID.randomUUID().toString();
            return ResponseEntity.status(201).header("X-Payment", id)
                    .body(Map.of("id", id, "account", account, "amount", amount.intValueExact()));
        }
    }

    /**
     * Starts the program.
     *
     * @param arguments those of Spring Boot
     */
    public static void main(String... arguments) {
        System.setProperty("server.address", "127.0.0.1");
        System.setProperty("server.port", System.getenv("PORT"));
        System.setProperty("spring.main.banner-mode", "off");
        SpringApplication.run(Program.class, arguments);
    }

    /** On an address as libpq takes it: {@code postgres://user:password@host:port/database?host=/directory}. */
    @Bean
    static HikariDataSource dataSource() {
        URI url = URI.create(System.getenv("DATABASE_URL"));
        int port = url.getPort() < 0 ? 5432 : url.getPort();
        String directory = UriComponentsBuilder.fromUri(url).build().getQueryParams().getFirst("host");
        HikariDataSource pool = new HikariDataSource();
        pool.setJdbcUrl("jdbc:postgresql://" + url.getHost() + ':' + port + url.getRawPath() + "?sslmode=disable&gssEncMode=disable"
                + (directory == null ? "" : "&socketFactory=org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg&socketFactoryArg="
                + directory + "/.s.PGSQL." + port));
        if (url.getUserInfo() != null) {
            String[] user = url.getUserInfo().split(":", 2);
            pool.setUsername(user[0]);
            pool.setPassword(user.length < 2 ? null : user[1]);
        }
        pool.setMaximumPoolSize(20);
        pool.setMinimumIdle(0);
        pool.setConnectionTimeout(2000);
        return pool;
    }

    @Bean
    static IdempotencyHttp http() {
        return new IdempotencyHttp() {
            @Override
            public String principal(HttpServletRequest request) {
                String tenant = request.getHeader("X-Tenant");
                return tenant == null || tenant.isEmpty() ? "nobody" : tenant;
            }

            @Override
            public void configure(FilterOptions options) {
                options.headers("X-Payment").describedBy("https://example.com/docs/idempotency");
            }
        };
    }

    @GetMapping("/")
    String ready() {
        return "ready";
    }

    @PostMapping("/payments")
    @IdempotentRequest
    ResponseEntity<Map<String, Object>> pay(@RequestBody Payment payment) throws InterruptedException {
        payment.check();
        jdbc.getObject().update("INSERT INTO payment (account, amount, kind) VALUES (?, ?, 'payment')", payment.account(),
                payment.amount().intValue());
        Thread.sleep(payment.slow());
        payment.decide();
        if (payment.crash()) {
            throw new IllegalStateException("a crash that was asked for");
        }
        return payment.answer();
    }

    @PostMapping("/charges")
    @IdempotentRequest(lease = true)
    ResponseEntity<Map<String, Object>> charge(@RequestBody Payment payment, HttpServletRequest request) {
        payment.check();
        try {
            Thread.sleep(payment.slow());
        } catch (InterruptedException interrupted) {
            throw new IdempotencyException.NotDone(interrupted);
        }
        payment.decide();
        Exchange.of(request).completeWith(connection -> book(connection, payment));
        return payment.crash() ? ResponseEntity.noContent().build() : payment.answer();
    }

    private static void book(Connection connection, Payment payment) throws SQLException {
        try (var insert = connection.prepareStatement("INSERT INTO payment (account, amount, kind) VALUES (?, ?, 'charge')")) {
            insert.setString(1, payment.account());
            insert.setInt(2, payment.amount().intValue());
            insert.executeUpdate();
        }
        if (payment.crash()) {
            throw new IdempotencyException.NotDone(new IllegalStateException("a crash that was asked for"));
        }
    }
}
