package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import com.zaxxer.hikari.HikariDataSource;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URLConnection;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.time.format.DateTimeFormatter;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.apache.catalina.Context;
import org.apache.catalina.LifecycleException;
import org.apache.catalina.startup.Tomcat;
import org.apache.coyote.http2.Http2Protocol;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.example.idempotency.Call;
import org.example.idempotency.Declined;
import org.example.idempotency.Idempotency;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Options;
import org.example.idempotency.Reconciled;
import org.example.idempotency.Response;
import org.example.idempotency.Transactions;
import org.example.idempotency.spring.SpringTransactions;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.support.JdbcTransactionManager;

/** The filter in front of plain servlets of Tomcat, which speaks HTTP/2, too. */
class FilterTest {
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static final List<Response> NOT_CARRIED = List.of(Response.of(199, null), Response.of(1000, null),
            new Response(402, Map.of("ETag", "\"\u2603\""), null, null, null));
    private static HikariDataSource pool;
    private static JdbcTemplate jdbc;
    private static Idempotency once;
    private static Tomcat tomcat;
    private static volatile Filter filter;
    private static volatile Handler handler;
    private final String key = UUID.randomUUID().toString();
    private final AtomicInteger runs = new AtomicInteger();

    @FunctionalInterface
    private interface Handler {
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

    private static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private void effect(Connection connection) throws SQLException {
        execute(connection, "INSERT INTO seat VALUES ('" + key + "')");
    }

    private int effects() {
        return jdbc.queryForObject("SELECT count(*) FROM seat WHERE name = ?", Integer.class, key);
    }

    private static void protect(boolean isLeased, Consumer<FilterOptions> settings) {
        FilterOptions options = new FilterOptions(request -> new Route("/orders", isLeased), request -> request.getHeader("X-User"));
        settings.accept(options);
        filter = new IdempotencyFilter(once, options);
    }

    private void answersOk() {
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            response.getWriter().write("run " + runs.incrementAndGet());
        };
    }

    private static URI uri(String target) {
        return URI.create("http://127.0.0.1:" + tomcat.getConnector().getLocalPort() + target);
    }

    private HttpResponse<String> post(String target, String user, String body) throws IOException, InterruptedException {
        return send(HttpRequest.newBuilder(uri(target)).header("Idempotency-Key", key).header("X-User", user)
                .header("Content-Type", "text/plain").POST(BodyPublishers.ofString(body)));
    }

    private static HttpRequest.Builder withoutKey(String body) {
        return HttpRequest.newBuilder(uri("/orders")).header("X-User", "ann").POST(BodyPublishers.ofString(body));
    }

    private static HttpResponse<String> send(HttpRequest.Builder request) throws IOException, InterruptedException {
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    /** Sends a request twice: the second answer is the first, and its marker says whether it was stored. */
    private HttpResponse<String> twice(int status, boolean isReplayed) throws IOException, InterruptedException {
        HttpResponse<String> first = post("/orders", "ann", "1");
        HttpResponse<String> second = post("/orders", "ann", "1");
        assertEquals(status, first.statusCode());
        assertEquals(status, second.statusCode());
        assertEquals(first.body(), second.body());
        assertEquals(isReplayed, second.headers().firstValue("Idempotency-Replayed").isPresent());
        return first;
    }

    @Test
    void anOwnFingerprintStandsForTheBodyOnly() throws Exception {
        answersOk();
        protect(false, options -> options.fingerprint(request -> {
            try (InputStream body = request.getInputStream()) {
                return '"' + new String(body.readNBytes(1), StandardCharsets.UTF_8) + '"';
            } catch (IOException impossible) {
                throw new IllegalStateException(impossible);
            }
        }));
        assertEquals("run 1", post("/orders", "ann", "1 at noon").body());
        assertEquals("run 1", post("/orders?", "ann", "1 at night").body());
        assertEquals(422, post("/orders", "ann", "2").statusCode());
        assertEquals(422, post("/orders?dry=1", "ann", "1").statusCode());
        assertEquals(1, effects());
    }

    @Test
    void anOwnFingerprintThatIsNoJsonRunsNothing() throws Exception {
        answersOk();
        for (String own : new String[] {"1, \"target\": \"/\"", "", null}) {
            protect(false, options -> options.fingerprint(request -> own));
            twice(500, false);
        }
        assertEquals(0, runs.get());
    }

    @Test
    void anOwnScopeStandsBehindThatOfTheClient() throws Exception {
        answersOk();
        protect(false, options -> options.scope((request, route) -> request.getHeader("X-User").substring(0, 1)));
        assertEquals("run 1", post("/orders", "ann", "1").body());
        assertEquals("run 1", post("/orders", "adam", "1").body());
        assertEquals("run 2", post("/orders", "bob", "1").body());
        assertNotNull(once.lookup(Call.of(key).withScope("shop a")));
    }

    @Test
    void whoHasNoScopeOrNoNameIsNobody() throws Exception {
        answersOk();
        protect(false, options -> options.scope((request, route) -> "all"));
        assertEquals(401, post("/orders", "", "1").statusCode());
        for (String none : new String[] {"", null}) {
            protect(false, options -> options.scope((request, route) -> none));
            assertEquals(401, post("/orders", "ann", "1").statusCode());
        }
        assertEquals(0, runs.get());
    }

    @Test
    void aChangedCallIsStillTheSameOperation() throws Exception {
        answersOk();
        protect(false, options -> options.call(call -> Call.of("one").withScope("all").withRequest("1").withRequestHash(new byte[32])
                .withRetention(Duration.ofDays(3))));
        assertEquals("run 1", post("/orders", "ann", "1").body());
        assertEquals(422, post("/orders", "ann", "2").statusCode());
        assertEquals("run 2", post("/orders", "bob", "1").body());
        assertKeptForThreeDays();
    }

    /** "wait" is a preference, and no parameter of another one. */
    @ParameterizedTest
    @CsvSource(delimiter = '!', value = {"wait=3 ! 3", "a=1, Wait = 3 ! 3", "x; y, wait = \"3\" ; z ! 3", "wait=30 ! 10", "wait=0 ! 0",
        "x ! 60", "wait ! 60", "waits=3 ! 60", "await=3 ! 60", "wait=-3 ! 60", "wait=3s ! 60", "wait=3000000000 ! 60", "x; wait=3 ! 60"})
    void aRequestWaitsAsLongAsItsClientPrefers(String prefer, long seconds) throws Exception {
        answersOk();
        List<Duration> waits = new ArrayList<>();
        protect(false, options -> options.waits(Duration.ofMinutes(1), Duration.ofSeconds(10)).call(call -> {
            waits.add(call.maxWait());
            return call;
        }));
        send(withoutKey("").header("Idempotency-Key", key).header("Prefer", "respond-async").header("Prefer", prefer));
        assertEquals(List.of(Duration.ofSeconds(seconds)), waits);
    }

    private void assertKeptForThreeDays() {
        var stored = once.lookup(Call.of(key).withScope("shop POST /orders ann"));
        assertEquals(3, Duration.between(stored.createdAt(), stored.expiresAt()).toDays());
    }

    @Test
    void anAnswerThatIsReleasedIsSentInATransactionToo() throws Exception {
        answersOk();
        protect(false, options -> options.optional().statuses(status -> new Keep(Keep.Kind.RELEASED, null)));
        assertEquals("run 1", post("/orders", "ann", "1").body());
        assertEquals("run 2", post("/orders", "ann", "1").body());
        assertEquals("run 3", send(withoutKey("")).body());
        assertEquals(0, effects());
    }

    @Test
    void anAnswerThatIsTooLargeIsSentWholeAndReplayedAsThePolicySays() throws Exception {
        String whole = "x".repeat(300);
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            response.setStatus(201);
            response.getWriter().write(whole);
        };
        protect(false, options -> options.scope((request, route) -> key));
        jdbc.execute("SELECT idem_set_policy('shop " + key + "', max_response_size => 200,"
                + " too_large_response => '{\"at\": \"/1\"}')");
        HttpResponse<String> first = post("/orders", "ann", "1");
        HttpResponse<String> second = post("/orders", "ann", "1");
        assertEquals(List.of(201, whole), List.of(first.statusCode(), first.body()));
        assertEquals(List.of(201, "{\"at\":\"/1\"}"), List.of(second.statusCode(), second.body()));
        assertEquals("application/json", second.headers().firstValue("Content-Type").orElse(""));
        assertEquals(1, effects());
    }

    @Test
    void anErrorThatIsAnsweredBelow500IsNoLostAttempt() throws Exception {
        List<Throwable> asked = new ArrayList<>();
        protect(false, options -> options.scope((request, route) -> request.getHeader("X-User") + key).statuses(
                status -> new Keep(Keep.Kind.RELEASED, null)).problem((error, usual) -> {
            asked.add(error);
            return error instanceof IllegalArgumentException ? usual : new Problem(409, null, "Sold out", null, null);
        }));
        jdbc.execute("SELECT idem_set_policy('shop ann" + key + "', max_lost_attempts => 3)");
        Exception none = new IOException();
        RuntimeException soldOut = new IllegalStateException();
        RuntimeException broken = new IllegalArgumentException();
        Deque<Exception> errors = new ArrayDeque<>(List.of(soldOut, soldOut, new SQLException("no", "40001"), soldOut, broken, none,
                new Declined(402, null)));
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            Exception error = errors.pop();
            if (error == none) {
                response.setStatus(500);
                return;
            }
            if (error instanceof RuntimeException unchecked) {
                throw unchecked;
            }
            throw new ServletException(error);
        };
        // The third is repeated: that one is lost, and the one that is broken, and the one that is answered so.
        for (int status : new int[] {409, 409, 409, 500, 500, 422}) {
            assertEquals(status, post("/orders", "ann", "1").statusCode());
        }
        assertEquals(402, post("/orders", "bob", "1").statusCode());
        assertEquals(List.of(soldOut, soldOut, soldOut, broken), asked);
        assertEquals(0, effects());
    }

    /** Frameworks wrap what the call of another operation has thrown. */
    @ParameterizedTest
    @CsvSource({"1, 409", "2, 422"})
    void anErrorOfAnotherOperationIsAnsweredAsOneOfTheFilter(String asked, int status) throws Exception {
        jdbc.execute("SELECT idem_begin('" + key + "', '1', scope => 'another', lease => '1 minute')");
        Call another = Call.of(key).withScope("another").withRequest(asked);
        handler = (request, response) -> {
            try {
                once.transaction(another, (connection, operation) -> Response.EMPTY).orThrow();
            } catch (IdempotencyException error) {
                throw new ServletException(error);
            }
        };
        protect(false, options -> { });
        assertEquals(status == 409, twice(status, false).headers().firstValue("Retry-After").isPresent());
    }

    @Test
    void whatTheWritesOfALeaseRefuseIsTheAnswer() throws Exception {
        handler = (request, response) -> {
            response.setStatus(201);
            response.getWriter().write("booked");
            Exchange.of(request).completeWith(connection -> {
                effect(connection);
                throw new Declined(402, "{\"no\":1}");
            });
        };
        protect(true, FilterOptions::optional);
        assertEquals("{\"no\":1}", twice(402, true).body());
        assertEquals(402, send(withoutKey("")).statusCode());
        assertEquals(0, effects());
    }

    /** Without a key nothing is stored, and so no end meets the transaction that has failed, or is over. */
    @ParameterizedTest
    @ValueSource(strings = {"SELECT 1 / 0", "ROLLBACK", "ROLLBACK; BEGIN"})
    void aRequestWithoutAKeyWhoseWorkIsRolledBackIsNoSuccess(String how) throws Exception {
        for (boolean isLeased : new boolean[] {false, true}) {
            protect(isLeased, FilterOptions::optional);
            handler = (request, response) -> {
                if (isLeased) {
                    Exchange.of(request).completeWith(connection -> spoil(connection, how));
                } else {
                    spoil(Exchange.of(request).connection(), how);
                }
            };
            assertEquals(500, send(withoutKey("")).statusCode());
        }
        assertEquals(0, effects());
    }

    private void spoil(Connection connection, String how) throws SQLException {
        effect(connection);
        try {
            execute(connection, how);
        } catch (SQLException caught) {
            assertEquals("22012", caught.getSQLState());
        }
    }

    @Test
    void anAnswerSaysHowLongItIsKeptAndARefusalWhenToComeAgain() throws Exception {
        Declined refusal = new Declined(Response.EMPTY, Duration.ofHours(1));
        handler = (request, response) -> {
            throw refusal;
        };
        for (boolean isLeased : new boolean[] {false, true}) {
            protect(isLeased, options -> options.lifetime("Expires").optional().call(call -> call.withRetention(Duration.ofDays(3))));
            HttpResponse<String> first = post("/orders", "ann", "1");
            assertEquals(422, first.statusCode());
            assertEquals("3600", first.headers().firstValue("Retry-After").orElseThrow());
            Instant kept = DateTimeFormatter.RFC_1123_DATE_TIME.parse(first.headers().firstValue("Expires").orElseThrow(), Instant::from);
            assertEquals(3, Duration.between(Instant.now().minusSeconds(60), kept).toDays());
        }
        handler = (request, response) -> response.setStatus(201);
        for (boolean isLeased : new boolean[] {false, true}) {
            protect(isLeased, FilterOptions::optional);
            assertEquals(201, send(withoutKey("")).statusCode());
        }
    }

    /** It was committed: its record is over at once, or never is, or is not found. */
    @Test
    void anAnswerIsSentThoughNobodyCanSayHowLongItIsKept() throws Exception {
        handler = (request, response) -> { };
        protect(false, options -> options.lifetime("Expires").call(call -> call.withRetention(Duration.ofNanos(1000))));
        assertTrue(twice(200, false).headers().firstValue("Expires").isEmpty());
        protect(false, options -> options.lifetime("Expires"));
        post("/orders", "bob", "1");
        jdbc.update("UPDATE idempotency_store SET expires_at = 'infinity' WHERE idempotency_key = ?", key);
        HttpResponse<String> endless = post("/orders", "bob", "1");
        assertEquals(200, endless.statusCode());
        assertTrue(endless.headers().firstValue("Expires").isEmpty());
        handler = (request, response) -> execute(Exchange.of(request).connection(), "ALTER FUNCTION idem_lookup(text, text) RENAME TO gone");
        try {
            assertEquals(200, post("/orders", "cat", "1").statusCode());
        } finally {
            jdbc.execute("ALTER FUNCTION gone(text, text) RENAME TO idem_lookup");
        }
    }

    @Test
    void aRefusalOfAServletIsReplayedByteForByteWithoutItsCookie() throws Exception {
        handler = (request, response) -> {
            throw new Declined(new Response(409, Map.of("Set-Cookie", "a=b", "ETag", "\"1\""), "{\"no\":1}", null, Duration.ofDays(3)), null);
        };
        protect(false, options -> { });
        HttpResponse<String> first = twice(409, true);
        HttpResponse<String> replay = post("/orders", "ann", "1");
        assertTrue(first.headers().firstValue("Set-Cookie").isPresent());
        assertFalse(replay.headers().firstValue("Set-Cookie").isPresent());
        assertEquals("\"1\"", replay.headers().firstValue("ETag").orElseThrow());
        assertEquals("application/json", replay.headers().firstValue("Content-Type").orElseThrow());
        assertKeptForThreeDays();
    }

    @Test
    void anAnswerThatHttpDoesNotCarryIsNotStored() throws Exception {
        protect(false, options -> { });
        for (Response response : NOT_CARRIED) {
            handler = (request, answer) -> {
                throw new Declined(response, null);
            };
            twice(500, false);
        }
        handler = (request, response) -> response.setStatus(101);
        twice(500, false);
        jdbc.queryForList("SELECT idem_complete(o, code => 99)::text FROM idem_begin(?, scope => 'shop POST /orders ann') o", key);
        twice(500, false);
    }

    @Test
    void noOptionStoresACookie() throws Exception {
        handler = (request, response) -> {
            response.setHeader("Set-Cookie", "a=b");
            for (String name : new String[] {"Content-Encoding", "Content-Language", "Location", "X-Own", "Whole", "Y", "Wholesale"}) {
                response.setHeader(name, "1");
            }
            response.addHeader("X-Own", "2");
        };
        protect(false, options -> options.headers("set-*", "SET-COOKIE", "X-*", "whole"));
        assertEquals(List.of("1", "2"), twice(200, true).headers().allValues("X-Own"));
        HttpResponse<String> replay = post("/orders", "ann", "1");
        for (String name : new String[] {"Content-Encoding", "Content-Language", "Location", "X-Own", "Whole"}) {
            assertTrue(replay.headers().firstValue(name).isPresent(), name);
        }
        for (String name : new String[] {"Set-Cookie", "Y", "Wholesale"}) {
            assertTrue(replay.headers().firstValue(name).isEmpty(), name);
        }
    }

    /** A writer says nothing of what its stream has thrown. */
    @Test
    void anAnswerThatBecameTooLargeIsNotStoredThoughNobodyWasTold() throws Exception {
        protect(false, options -> options.limits(10, 10));
        handler = (request, response) -> {
            throw new Declined(Response.of(402, "12345678901"), null);
        };
        assertTrue(twice(500, false).body().contains("\"The answer is too large to be stored\""));
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            response.getWriter().write("12345678901");
        };
        assertTrue(twice(500, false).body().contains("\"The answer is too large to be stored\""));
        assertEquals(0, effects());
        for (int most : new int[] {11, Integer.MAX_VALUE}) {
            protect(false, options -> options.limits(most, most));
            assertEquals(200, post("/orders", "ann", "1").statusCode());
        }
    }

    /** The handler is done, and no request repeats it. */
    private void answersWithWhatCannotBe(String what, String end) throws Exception {
        int[] runs = new int[1];
        protect(true, options -> options.limits(1000, 1000).scope((request, route) -> "unstorable " + key + what + end)
                .statuses(status -> new Keep(end.equals("refusal") ? Keep.Kind.REFUSAL : Keep.Kind.STORED, Duration.ofDays(90))));
        jdbc.execute("SELECT idem_set_policy('shop unstorable " + key + "server" + end + "', max_response_size => 200)");
        int status = what.equals("status") ? 199 : 201;
        String body = "x".repeat(what.equals("server") ? 900 : what.equals("limit") || what.equals("wrapped") ? 1001 : 1);
        Declined declined = new Declined(new Response(status, what.equals("header") ? Map.of("a", "\n") : null, null, body.getBytes(StandardCharsets.UTF_8),
                Duration.ofDays(90)), what.equals("time") ? Duration.ofSeconds(Long.MAX_VALUE, 1) : null);
        handler = (request, response) -> {
            runs[0]++;
            Exchange.of(request).completeWith(connection -> {
                effect(connection);
                if (end.equals("declining writes")) {
                    throw declined;
                }
            });
            if (end.equals("declined")) {
                throw declined;
            }
            if (end.equals("declining writes")) {
                return;
            }
            response.setStatus(status);
            if (what.equals("wrapped")) {
                try {
                    response.getOutputStream().write(body.getBytes(StandardCharsets.UTF_8));
                } catch (IOException error) {
                    throw new ServletException(error);
                }
            }
            response.getWriter().write(body);
        };
        int before = effects();
        HttpResponse<String> first = post("/orders", "ann", what);
        assertEquals(List.of(500, !List.of("status", "header", "time").contains(what)),
                List.of(first.statusCode(), first.body().contains("\"The answer is too large to be stored\"")), what + end + first.body());
        for (int repeat = 0; repeat < 2; repeat++) {
            HttpResponse<String> again = post("/orders", "ann", what);
            assertEquals(500, again.statusCode(), what + end);
            assertTrue(again.body().contains("\"The answer could not be stored\""), again.body());
        }
        boolean writes = end.equals("answer") || end.equals("refusal") && what.equals("status"); // which statuses is not asked about
        assertEquals(List.of(1, before + (writes ? 1 : 0)), List.of(runs[0], effects()), what + end);
        String days = "SELECT round(extract(epoch FROM expires_at - created_at) / 86400)::int FROM idempotency_store WHERE scope = ?";
        assertEquals(writes && what.equals("status") ? 1 : 90, jdbc.queryForObject(days, Integer.class, "shop unstorable " + key + what + end), what + end);
        protect(true, options -> options.limits(1000, 1000).optional());
        if (!what.equals("server")) {
            assertTrue(send(withoutKey("1")).body().contains("\"status\": 500"));
        }
    }

    @Test
    void aLeaseWhoseHandlerGaveAnAnswerThatCannotBeSentOrStoredIsDone() throws Exception {
        for (String end : new String[] {"answer", "refusal", "declined", "declining writes"}) {
            for (String what : new String[] {"limit", "wrapped", "server", "status", "header", "time"}) {
                if (!(what.equals("wrapped") && end.startsWith("declin") || List.of("header", "time").contains(what) && !end.startsWith("declin"))) {
                    answersWithWhatCannotBe(what, end);
                }
            }
        }
        protect(true, options -> options.limits(1000, 1000));
        handler = (request, response) -> {
            response.setStatus(503);
            response.getWriter().write("x".repeat(1001));
        };
        assertEquals(500, post("/orders", "ann", "left").statusCode());
        assertEquals(409, post("/orders", "ann", "left").statusCode());
    }

    @Test
    void anotherAttemptFindsNoAttributeOfTheOneBefore() throws Exception {
        protect(false, options -> options.timeout(Duration.ZERO)); // no limit
        handler = (request, response) -> {
            assertNull(request.getAttribute("seen"));
            assertEquals(1, request.getAttribute("before"));
            request.setAttribute("seen", true);
            effect(Exchange.of(request).connection());
            if (runs.incrementAndGet() == 1) {
                throw new SQLException("conflict", "40001");
            }
        };
        Filter protecting = filter;
        filter = (request, response, chain) -> {
            request.setAttribute("before", 1);
            protecting.doFilter(request, response, chain);
        };
        twice(200, true);
        assertEquals(2, runs.get());
        assertEquals(1, effects());
    }

    @Test
    void whatALeasedHandlerHasNotDoneIsFreeAtOnce() throws Exception {
        protect(true, options -> { });
        handler = (request, response) -> {
            assertFalse(Exchange.of(request).lease().isLost());
            assertEquals(key, Exchange.of(request).operation().key());
            int run = runs.incrementAndGet();
            if (run < 3) {
                throw new ServletException(new IdempotencyException.NotDone(run == 1 ? null : new IOException()));
            }
        };
        HttpResponse<String> first = post("/orders", "ann", "1");
        assertTrue(first.body().contains("The request was not processed"), first::body);
        assertEquals(List.of(503, "1"), List.of(first.statusCode(), first.headers().firstValue("Retry-After").orElse("")));
        for (int status : new int[] {500, 200}) {
            assertEquals(status, post("/orders", "ann", "1").statusCode());
        }
    }

    @Test
    void whatWasFoundOutIsTheAnswer() throws Exception {
        Reconciled[] found = {new Reconciled.Unknown(Duration.ofSeconds(7))};
        protect(true, options -> options.limits(10, 10).reconcile(operation -> found[0]));
        handler = (request, response) -> {
            throw new ServletException("unclear");
        };
        assertEquals(500, post("/orders", "ann", "1").statusCode());
        assertEquals(500, post("/orders", "bob", "1").statusCode());
        jdbc.execute("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key = '" + key + "'");
        HttpResponse<String> unknown = post("/orders", "ann", "1");
        assertEquals(503, unknown.statusCode());
        assertEquals("7", unknown.headers().firstValue("Retry-After").orElseThrow());
        for (Response response : NOT_CARRIED) {
            found[0] = new Reconciled.Done(response);
            assertEquals(503, post("/orders", "ann", "1").statusCode());
        }
        found[0] = new Reconciled.Done(Response.of(201, "12345678901"));
        assertEquals(503, post("/orders", "ann", "1").statusCode());
        found[0] = new Reconciled.Done(new Response(201, Map.of("set-cookie", "a=b", "ETag", "\"1\""), "1234567890", null, null));
        HttpResponse<String> answer = twice(201, true);
        assertEquals("1234567890", answer.body());
        assertEquals(List.of("\"1\"", ""), List.of(answer.headers().firstValue("ETag").orElse(""), answer.headers().firstValue("Set-Cookie").orElse("")));
        found[0] = new Reconciled.Done(Response.EMPTY);
        assertEquals(200, post("/orders", "bob", "1").statusCode());
    }

    /** Another attempt took over, and its answer is the one of the operation. */
    @Test
    void whatIsStoredIsSentInPlaceOfWhatTheHandlerSaid() throws Exception {
        protect(true, options -> { });
        handler = (request, response) -> {
            jdbc.update("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key = ?", key);
            jdbc.queryForList("SELECT idem_complete(o, '2')::text FROM idem_begin(?, scope => ?, lease => '1 minute') o", key,
                    Exchange.of(request).operation().scope());
            response.getWriter().write("1");
        };
        assertEquals("2", post("/orders", "ann", "1").body());
    }

    /** Of a body that has no length nobody can tell, but by its header. */
    @Test
    void aBodyOfWhichAFilterInFrontHasReadIsRefused() throws Exception {
        answersOk();
        protect(false, options -> { });
        Filter protecting = filter;
        HttpRequest.Builder chunked = withoutKey("").header("Idempotency-Key", key).header("Content-Type", "application/x-www-form-urlencoded")
                .POST(BodyPublishers.fromPublisher(BodyPublishers.ofString("seat=1")));
        assertEquals(200, send(chunked).statusCode());
        filter = (request, response, chain) -> {
            request.getParameter("seat");
            protecting.doFilter(request, response, chain);
        };
        assertEquals(400, send(chunked).statusCode());
        assertEquals(500, send(withoutKey("seat=1").header("Idempotency-Key", key).header("Content-Type", "application/x-www-form-urlencoded"))
                .statusCode());
        filter = (request, response, chain) -> {
            request.getInputStream().read();
            protecting.doFilter(request, response, chain);
        };
        assertEquals(400, post("/orders", "ann", "12").statusCode());
        filter = (request, response, chain) -> {
            request.getReader();
            protecting.doFilter(request, response, chain);
        };
        assertEquals(400, post("/orders", "ann", "12").statusCode());
        assertEquals(1, runs.get());
    }

    /** Which the container says of a query, and the request itself of a form. */
    @Test
    void parametersThatCannotBeReadAreTheClientsMistake() throws Exception {
        protect(false, options -> options.scope((request, route) -> key));
        jdbc.execute("SELECT idem_set_policy('shop " + key + "', max_lost_attempts => 1)");
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            try {
                response.getWriter().write(request.getParameter("seat"));
            } catch (RuntimeException unreadable) {
                throw new ServletException(unreadable);
            }
        };
        for (String body : new String[] {"seat=%zz", "seat=%zz", "seat=%41"}) {
            assertEquals(body.equals("seat=%41") ? 200 : 400, send(withoutKey(body).header("Idempotency-Key", key)
                    .header("Content-Type", "application/x-www-form-urlencoded")).statusCode());
        }
        assertEquals(1, effects());
    }

    @Test
    void aBodyIsTakenUpToItsLimitWhetherItHasALengthOrNot() throws Exception {
        answersOk();
        protect(false, options -> options.limits(2, 1000).methods("*"));
        for (var body : List.of(BodyPublishers.ofString("12"), BodyPublishers.fromPublisher(BodyPublishers.ofString("12")))) {
            assertEquals("run 1", send(withoutKey("").header("Idempotency-Key", key).POST(body)).body());
        }
        for (var body : List.of(BodyPublishers.ofString("123"), BodyPublishers.fromPublisher(BodyPublishers.ofString("123")))) {
            assertEquals(413, send(withoutKey("").header("Idempotency-Key", key + "x").POST(body)).statusCode());
        }
        assertEquals(200, send(withoutKey("").header("Idempotency-Key", key + "y").header("Content-Type", "text/plain")
                .method("PATCH", BodyPublishers.noBody())).statusCode());
        URLConnection withoutLength = uri("/orders").toURL().openConnection();
        Map.of("X-User", "ann", "Idempotency-Key", key + "z", "Content-Type", "text/plain").forEach(withoutLength::setRequestProperty);
        assertEquals("HTTP/1.1 200", withoutLength.getHeaderField(0));
    }

    @Test
    void ofAnEncodedBodyNobodyKnowsWhetherItIsJson() throws Exception {
        answersOk();
        protect(false, options -> { });
        for (String encoding : List.of("gzip", "identity", "IDENTITY, gzip", "")) {
            assertEquals(encoding.contains("gzip") ? 200 : 400, send(withoutKey("{").header("Idempotency-Key", key)
                    .header("Content-Type", "application/json").header("Content-Encoding", encoding)).statusCode(), encoding);
        }
    }

    @Test
    void whatTheFilterDoesNotCoverHasNoExchange() throws Exception {
        protect(false, options -> options.methods("put"));
        handler = (request, response) -> {
            assertThrows(IllegalStateException.class, () -> Exchange.of(request));
            runs.incrementAndGet();
        };
        twice(200, false);
        assertEquals(2, runs.get());
        assertEquals(401, send(HttpRequest.newBuilder(uri("/orders")).method("put", BodyPublishers.noBody())).statusCode());
    }

    /** Tomcat ends the response behind a wrapper when a forward returns. */
    @Test
    void aForwardAnswersTheFirstRequestToo() throws Exception {
        protect(false, options -> { });
        handler = (request, response) -> {
            if (request.getDispatcherType() == DispatcherType.FORWARD) {
                response.getWriter().write("forwarded");
            } else {
                effect(Exchange.of(request).connection());
                request.getRequestDispatcher("/elsewhere").forward(request, response);
            }
        };
        assertEquals("forwarded", twice(200, true).body());
        assertEquals(1, effects());
    }

    @Test
    void aBodyThatWasReadIsMissedOverHttp2Too() throws Exception {
        answersOk();
        protect(false, options -> { });
        Filter protecting = filter;
        filter = (request, response, chain) -> {
            request.getParameter("seat");
            protecting.doFilter(request, response, chain);
        };
        HttpClient second = HttpClient.newBuilder().version(HttpClient.Version.HTTP_2).build();
        assertEquals(401, second.send(HttpRequest.newBuilder(uri("/orders")).POST(BodyPublishers.noBody()).build(),
                HttpResponse.BodyHandlers.ofString()).statusCode());
        HttpResponse<String> answer = second.send(withoutKey("").header("Idempotency-Key", key)
                .header("Content-Type", "application/x-www-form-urlencoded")
                .POST(BodyPublishers.fromPublisher(BodyPublishers.ofString("seat=1"))).build(), HttpResponse.BodyHandlers.ofString());
        assertEquals(HttpClient.Version.HTTP_2, answer.version());
        assertEquals(400, answer.statusCode());
        handler = (request, response) -> { };
        assertEquals(200, second.send(withoutKey("").header("Idempotency-Key", key).POST(BodyPublishers.noBody()).build(),
                HttpResponse.BodyHandlers.ofString()).statusCode());
        assertEquals(0, runs.get());
    }

    @Test
    void aHandlerThatTakesTooLongIsStoppedAndRolledBack() throws Exception {
        String[] cancelled = new String[1];
        protect(false, options -> options.timeout(Duration.ofSeconds(2)));
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            if (runs.incrementAndGet() == 1) {
                try {
                    execute(Exchange.of(request).connection(), "SELECT pg_sleep(20)");
                } catch (SQLException error) {
                    cancelled[0] = error.getSQLState();
                    throw new Declined(402, null); // behind its time it has nothing to say
                }
            }
            response.setStatus(201);
        };
        HttpResponse<String> late = post("/orders", "ann", "1");
        assertEquals(503, late.statusCode());
        assertEquals("57014", cancelled[0]);
        assertEquals("1", late.headers().firstValue("Retry-After").orElseThrow());
        assertTrue(late.body().contains("\"The request took too long\""), late.body());
        assertEquals(0, effects());
        protect(false, options -> { });
        assertEquals(201, post("/orders", "ann", "1").statusCode());
        assertEquals(1, effects());
    }

    /** Behind its time a conflict is none that is repeated, nor is a lost connection: on a virtual thread the interrupt closes the socket. */
    @ParameterizedTest
    @ValueSource(strings = {"DO $$BEGIN RAISE 'conflict' USING ERRCODE = '40001'; END$$", "SELECT pg_terminate_backend(pg_backend_pid())"})
    void aHandlerThatTookTooLongIsNotRepeated(String late) throws Exception {
        handler = (request, response) -> {
            runs.incrementAndGet();
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException interrupted) {
                execute(Exchange.of(request).connection(), late);
            }
        };
        for (Transactions transactions : new Transactions[] {Transactions.of(pool), new SpringTransactions(new JdbcTransactionManager(pool), pool)}) {
            FilterOptions options = new FilterOptions(request -> new Route("/orders", false), request -> "ann").timeout(Duration.ofMillis(200));
            filter = new IdempotencyFilter(new Idempotency(transactions, Options.DEFAULT), options);
            runs.set(0);
            HttpResponse<String> answer = post("/orders", "ann", "1");
            assertTrue(answer.body().contains("\"The request took too long\""), answer.body());
            assertEquals(1, runs.get());
        }
    }

    /** What it does with the interrupt is its own affair: it said nothing in time. */
    @Test
    void aLeasedHandlerThatTakesTooLongIsInterrupted() throws Exception {
        boolean[] isInterrupted = new boolean[2];
        handler = (request, response) -> {
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException late) {
                isInterrupted[0] = true;
                Thread.currentThread().interrupt();
            }
            response.setStatus(201);
        };
        protect(true, options -> options.timeout(Duration.ofMillis(200)).passOn(error -> true));
        Filter protecting = filter;
        filter = (request, response, chain) -> {
            protecting.doFilter(request, response, chain);
            isInterrupted[1] = Thread.currentThread().isInterrupted();
        };
        assertEquals(503, post("/orders", "ann", "1").statusCode());
        assertEquals(409, post("/orders", "ann", "1").statusCode());
        assertTrue(isInterrupted[0]);
        assertFalse(isInterrupted[1]);
    }

    @Test
    void aKeyIsMadeForARequestWithoutOne() throws Exception {
        answersOk();
        protect(false, options -> options.makeKey(request -> request.getHeader("X-Order")));
        assertEquals(400, send(withoutKey("")).statusCode());
        for (int i = 0; i < 2; i++) {
            assertEquals("run 1", send(withoutKey("").header("X-Order", key)).body());
        }
        assertEquals("run 2", send(withoutKey("").header("X-Order", key).header("Idempotency-Key", key + "x")).body());
        protect(false, options -> options.optional().makeKey(request -> request.getHeader("X-Order")));
        assertEquals(400, send(withoutKey("").header("X-Order", "")).statusCode());
        assertEquals("run 3", send(withoutKey("")).body());
        assertEquals(3, effects());
    }

    @Test
    void aProblemOfYourOwnIsSentUnlessItFails() throws Exception {
        protect(false, options -> options.describedBy("https://example.com/keys").problem((error, usual) -> error == null ? usual
                : new Problem(418, "https://example.com/tea", "No \"tea\"\n", null, Duration.ofSeconds(7))));
        handler = (request, response) -> {
            throw new ServletException("broken");
        };
        HttpResponse<String> own = post("/orders", "ann", "1");
        assertEquals("{\"type\": \"https://example.com/tea\", \"title\": \"No \\\"tea\\\"\\u000a\", \"status\": 418}", own.body());
        assertEquals("7", own.headers().firstValue("Retry-After").orElseThrow());
        HttpResponse<String> nobody = post("/orders", "", "1");
        assertEquals(401, nobody.statusCode());
        assertEquals("<https://example.com/keys>; rel=\"describedby\"", nobody.headers().firstValue("Link").orElseThrow());
        assertTrue(nobody.body().startsWith("{\"type\": \"https://example.com/keys\", "), nobody.body());
        for (Problem wrong : new Problem[] {null, new Problem(7, null, "no status", null, null),
            new Problem(503, null, "never", null, Duration.ofSeconds(Long.MAX_VALUE, 1))}) {
            protect(false, options -> options.problem((error, usual) -> wrong));
            HttpResponse<String> usual = post("/orders", "ann", "1");
            assertEquals(500, usual.statusCode());
            assertEquals("application/problem+json", usual.headers().firstValue("Content-Type").orElseThrow());
            assertTrue(usual.body().startsWith("{\"type\": \"about:blank\", "), usual.body());
            assertTrue(usual.headers().firstValue("Link").isEmpty());
        }
    }

    /** Nobody else says why: the client gets no message of an exception. */
    @Test
    void aFailureIsLoggedAndARefusalIsNot() throws Exception {
        List<Throwable> logged = new CopyOnWriteArrayList<>();
        var log = Logger.getLogger(IdempotencyFilter.class.getName());
        log.setFilter(entry -> logged.add(entry.getThrown()));
        try {
            RuntimeException broken = new IllegalStateException("broken");
            handler = (request, response) -> {
                throw broken;
            };
            for (boolean isLeased : new boolean[] {false, true}) {
                protect(isLeased, options -> { });
                post("/orders", "ann", "1");
                assertSame(broken, logged.remove(0));
            }
            protect(false, options -> options.problem((error, usual) -> new Problem(409, null, "Sold out", null, null)));
            assertEquals(409, post("/orders", "bob", "1").statusCode());
            assertSame(broken, logged.remove(0));
            protect(true, options -> { });
            assertEquals(422, post("/orders", "ann", "2").statusCode());
            post("/orders", "", "1");
            RuntimeException own = new IllegalArgumentException("own");
            protect(false, options -> options.problem((error, usual) -> {
                throw own;
            }));
            assertEquals(401, post("/orders", "", "1").statusCode());
            assertEquals(List.of(own), logged);
        } finally {
            log.setFilter(null);
        }
    }

    /** Tomcat, which stands in front, makes a page of it. */
    @Test
    void whatIsPassedOnIsNotAnsweredHere() throws Exception {
        List<Class<?>> passed = new ArrayList<>();
        handler = (request, response) -> {
            Connection connection = Exchange.of(request).connection();
            if (connection != null) {
                effect(connection);
            }
            if (runs.incrementAndGet() % 2 == 0) {
                throw new IllegalStateException();
            }
            throw new ServletException(new IllegalStateException());
        };
        for (boolean isLeased : new boolean[] {false, true}) {
            protect(isLeased, options -> options.optional().passOn(error -> error instanceof IllegalStateException));
            Filter protecting = filter;
            filter = (request, response, chain) -> {
                try {
                    protecting.doFilter(request, response, chain);
                } catch (ServletException | RuntimeException error) {
                    passed.add(error.getClass());
                    throw error;
                }
            };
            for (HttpResponse<String> answer : List.of(post("/orders", "ann", "1"), post("/orders", "ann", "1"),
                    send(withoutKey("1")), send(withoutKey("1")))) {
                assertEquals(500, answer.statusCode());
                assertTrue(answer.headers().firstValue("Content-Type").orElseThrow().startsWith("text/html"), answer.body());
            }
        }
        List<Class<?>> thrown = List.of(ServletException.class, IllegalStateException.class);
        assertEquals(Stream.generate(() -> thrown).limit(4).flatMap(List::stream).toList(), passed);
        assertEquals(0, effects());
    }
}
