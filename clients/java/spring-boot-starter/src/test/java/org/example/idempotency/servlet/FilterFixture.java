package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import com.zaxxer.hikari.HikariDataSource;
import jakarta.servlet.Filter;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.apache.catalina.Context;
import org.apache.catalina.LifecycleException;
import org.apache.catalina.startup.Tomcat;
import org.apache.coyote.http2.Http2Protocol;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.example.idempotency.Call;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Options;
import org.example.idempotency.Response;
import org.example.idempotency.Transactions;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.jdbc.core.JdbcTemplate;

/** The filter in front of plain servlets of Tomcat, which speaks HTTP/2, too. */
abstract class FilterFixture {
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    static final List<Response> NOT_CARRIED = List.of(Response.of(199, null), Response.of(1000, null),
            new Response(402, Map.of("ETag", "\"\u2603\""), null, null, null));
    @TempDir
    static Path work;
    static HikariDataSource pool;
    static JdbcTemplate jdbc;
    static Idempotency once;
    private static Tomcat tomcat;
    static volatile Filter filter;
    static volatile Handler handler;
    final String key = UUID.randomUUID().toString();
    final AtomicInteger runs = new AtomicInteger();

    interface Handler {
        void handle(HttpServletRequest request, HttpServletResponse response) throws IOException, ServletException, SQLException;
    }

    private static final class Dispatcher extends HttpServlet {
        @Override
        protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException, ServletException {
            try {
                handler.handle(request, response);
            } catch (SQLException error) {
                throw new ServletException(error);
            }
        }
    }

    @BeforeAll
    static void start() throws Exception {
        pool = new HikariDataSource();
        pool.setJdbcUrl("jdbc:postgresql://localhost/" + System.getenv("PGDATABASE") + "?sslmode=disable&gssEncMode=disable"
                + "&socketFactory=org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg&socketFactoryArg="
                + System.getenv("PGHOST") + "/.s.PGSQL." + System.getenv("PGPORT"));
        pool.setUsername(System.getenv("PGUSER"));
        once = new Idempotency(Transactions.of(pool), Options.DEFAULT.withScope("shop"));
        jdbc = new JdbcTemplate(pool);
        jdbc.execute("CREATE EXTENSION IF NOT EXISTS idempotency");
        jdbc.execute("CREATE TABLE IF NOT EXISTS seat (name text)");
        tomcat = new Tomcat();
        tomcat.setBaseDir(work.toString());
        tomcat.setPort(0);
        tomcat.getConnector().addUpgradeProtocol(new Http2Protocol());
        Context context = tomcat.addContext("", null);
        Tomcat.addServlet(context, "dispatcher", new Dispatcher()).addMapping("/*");
        FilterDef definition = new FilterDef();
        definition.setFilterName("idempotency");
        definition.setFilter((request, response, chain) -> filter.doFilter(request, response, chain));
        context.addFilterDef(definition);
        FilterMap everywhere = new FilterMap();
        everywhere.setFilterName("idempotency");
        everywhere.addURLPattern("/*");
        everywhere.setDispatcher("REQUEST");
        everywhere.setDispatcher("FORWARD");
        context.addFilterMap(everywhere);
        tomcat.start();
    }

    @AfterAll
    static void stop() throws LifecycleException {
        tomcat.stop();
        tomcat.destroy();
        pool.close();
    }

    static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    void effect(Connection connection) throws SQLException {
        execute(connection, "INSERT INTO seat VALUES ('" + key + "')");
    }

    int effects() {
        return jdbc.queryForObject("SELECT count(*) FROM seat WHERE name = ?", Integer.class, key);
    }

    static void protect(boolean isLeased, Consumer<FilterOptions> settings) {
        FilterOptions options = new FilterOptions(request -> new Route("/orders", isLeased),
                request -> request.getHeader("X-User"));
        settings.accept(options);
        filter = new IdempotencyFilter(once, options);
    }

    void answersOk() {
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            response.getWriter().write("run " + runs.incrementAndGet());
        };
    }

    static URI uri(String target) {
        return URI.create("http://127.0.0.1:" + tomcat.getConnector().getLocalPort() + target);
    }

    HttpResponse<String> post(String target, String user, String body) throws IOException, InterruptedException {
        return send(HttpRequest.newBuilder(uri(target)).header("Idempotency-Key", key).header("X-User", user)
                .header("Content-Type", "text/plain").POST(BodyPublishers.ofString(body)));
    }

    static HttpRequest.Builder withoutKey(String body) {
        return HttpRequest.newBuilder(uri("/orders")).header("X-User", "ann").POST(BodyPublishers.ofString(body));
    }

    static HttpResponse<String> send(HttpRequest.Builder request) throws IOException, InterruptedException {
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    /** Sends a request twice: the second answer is the first, and its marker says whether it was stored. */
    HttpResponse<String> twice(int status, boolean isReplayed) throws IOException, InterruptedException {
        HttpResponse<String> first = post("/orders", "ann", "1");
        HttpResponse<String> second = post("/orders", "ann", "1");
        assertEquals(status, first.statusCode());
        assertEquals(status, second.statusCode());
        assertEquals(first.body(), second.body());
        assertEquals(isReplayed, second.headers().firstValue("Idempotency-Replayed").isPresent());
        return first;
    }

    void assertKeptForThreeDays() {
        var stored = once.lookup(Call.of(key).withScope("shop POST /orders ann"));
        assertEquals(3, Duration.between(stored.createdAt(), stored.expiresAt()).toDays());
    }
}
