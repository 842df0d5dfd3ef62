package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import org.example.idempotency.Event;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.event.EventListener;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/** What goes wrong with messages of certain ids. A client tells its events on the thread of the listener, so it is always at the same point. */
class Disturbance implements DisposableBean {
    /** Each event and its key. */
    final List<String> events = new CopyOnWriteArrayList<>();
    /** Somebody has interrupted the listener. */
    final CompletableFuture<Void> stopped = new CompletableFuture<>();
    private final JdbcTemplate jdbc;
    private final HikariDataSource others = new SpringExampleTest.Pool().dataSource();
    private final Connection busy;
    private final Connection held;

    Disturbance(JdbcTemplate jdbc, @Value("${idempotency.scope}.deposit") String scope) throws SQLException {
        this.jdbc = jdbc;
        busy = own(scope, "busy");
        held = own(scope, "held");
        own(scope, "stopped");
    }

    /** Another session has operations in progress until it rolls back. */
    private Connection own(String scope, String... keys) throws SQLException {
        Connection owner = others.getConnection();
        owner.setAutoCommit(false);
        for (String key : keys) {
            new JdbcTemplate(new SingleConnectionDataSource(owner, true))
                    .queryForList("SELECT idem_begin(?, scope => ?)", key, scope);
        }
        return owner;
    }

    @EventListener
    void on(Event event) throws SQLException {
        String what = event.type() + " " + event.key();
        boolean isFirst = !events.contains(what);
        events.add(what);
        if (isFirst && what.equals("ACQUIRED fails")) {
            jdbc.execute("SET LOCAL transaction_read_only = on");
        } else if (isFirst && what.equals("ACQUIRED ended")) {
            int session = jdbc.queryForObject("SELECT pg_backend_pid()", Integer.class);
            events.add("gone " + new JdbcTemplate(others)
                    .queryForObject("SELECT pg_terminate_backend(?, 60000)", Boolean.class, session));
        } else if (what.equals("IN_PROGRESS busy")) {
            busy.rollback();
        } else if (what.equals("IN_PROGRESS held") && Collections.frequency(events, what) > 20) {
            held.rollback();
        } else if (isFirst && what.equals("IN_PROGRESS stopped")) {
            Thread.currentThread().interrupt();
            stopped.complete(null);
        }
    }

    /** A work that failed and one whose session had ended ran twice, a copy not at all, and a busy operation was waited for. */
    void assertHappened() {
        assertTrue(events.containsAll(List.of("REPLAYED a", "gone true", "RETRIED ended")), events::toString);
        var happened = Map.of("ACQUIRED a", 1, "ACQUIRED fails", 2, "ACQUIRED ended", 2, "IN_PROGRESS busy", 1,
                "ACQUIRED busy", 1);
        happened.forEach((what, times) -> assertEquals(times, Collections.frequency(events, what), () -> what + " in " + events));
    }

    @Override
    public void destroy() {
        others.close();
    }
}
