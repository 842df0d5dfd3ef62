package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.assertThrows;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** A pool, a proxy and a client for each test, on the server that clients/java/test has started. */
abstract class OnServer {
    final List<Event.Type> events = Collections.synchronizedList(new ArrayList<>());
    final String key = UUID.randomUUID().toString();
    Proxy proxy;
    HikariDataSource pool;
    Idempotency once;

    @BeforeEach
    void open() throws Exception {
        proxy = new Proxy();
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(proxy.url());
        config.setMaximumPoolSize(5);
        config.setMinimumIdle(0);
        config.setInitializationFailTimeout(-1);
        pool = new HikariDataSource(config);
        once = new Idempotency(Transactions.of(pool), Options.DEFAULT.withListener(event -> events.add(event.type())));
        sql("SELECT pg_advisory_lock(7)", "SET client_min_messages = warning", "CREATE EXTENSION IF NOT EXISTS idempotency",
                "CREATE TABLE IF NOT EXISTS effect (key text NOT NULL)", "SELECT pg_advisory_unlock(7)",
                "RESET client_min_messages");
    }

    @AfterEach
    void close() throws Exception {
        pool.close();
        proxy.close();
    }

    void sql(String... statements) throws SQLException {
        try (Connection connection = pool.getConnection()) {
            for (String statement : statements) {
                execute(connection, statement);
            }
        }
    }

    static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    /** The effect of an operation. */
    void effect(Connection connection) throws SQLException {
        execute(connection, "INSERT INTO effect VALUES ('" + key + "')");
    }

    int effects() throws SQLException {
        return number("count(*) FROM effect WHERE key");
    }

    /** Whether the operation has a lease that lasts. */
    boolean isLeased() throws SQLException {
        return number("count(*) FROM idempotency_store WHERE lease_expires_at > clock_timestamp() AND idempotency_key") == 1;
    }

    int number(String what) throws SQLException {
        return Integer.parseInt(one("SELECT " + what + " = '" + key + "'"));
    }

    String one(String query) throws SQLException {
        try (Connection connection = pool.getConnection(); Statement statement = connection.createStatement();
                ResultSet row = statement.executeQuery(query)) {
            row.next();
            return row.getString(1);
        }
    }

    /** What leased work gives that leaves the effect. */
    Completion done() {
        return new Completion(Response.of(201, "{\"id\": 1}"), this::effect);
    }

    static void effect(Connection connection, String own) throws SQLException {
        execute(connection, "INSERT INTO effect VALUES ('" + own + "')");
    }

    int effects(String own) throws SQLException {
        return Integer.parseInt(one("SELECT count(*) FROM effect WHERE key = '" + own + "'"));
    }

    /** The lease of an operation is over, as if its time had passed. */
    void runOut(String own) throws SQLException {
        sql("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key = '" + own + "'");
    }

    /** The work of a lease fails, so that the next attempt has to find out what it did. */
    void abandon(String own) {
        assertThrows(IOException.class, () -> once.lease(Call.of(own), lease -> {
            throw new IOException("died");
        }));
    }

    /** Work in a transaction, which leaves the effect. */
    Response work(Connection connection) throws SQLException {
        effect(connection);
        return Response.of(201, "{\"id\": 1}");
    }
}
