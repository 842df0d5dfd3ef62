package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.ServletException;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.time.Instant;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.Map;
import org.apache.catalina.startup.Tomcat;
import org.example.idempotency.Declined;
import org.example.idempotency.Reconciled;
import org.example.idempotency.Response;
import org.junit.jupiter.api.Test;

/** Which answers the filter stores, and what a replay has of them. */
class StoredAnswersTest extends FilterFixture {
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
    void anAnswerSaysHowLongItIsKeptAndARefusalWhenToComeAgain() throws Exception {
        Declined refusal = new Declined(Response.EMPTY, Duration.ofHours(1));
        handler = (request, response) -> {
            throw refusal;
        };
        for (boolean isLeased : new boolean[] {false, true}) {
            protect(isLeased, options -> options.lifetime("Expires").optional()
                    .call(call -> call.withRetention(Duration.ofDays(3))));
            HttpResponse<String> first = post("/orders", "ann", "1");
            assertEquals(422, first.statusCode());
            assertEquals("3600", first.headers().firstValue("Retry-After").orElseThrow());
            Instant kept = DateTimeFormatter.RFC_1123_DATE_TIME.parse(first.headers().firstValue("Expires").orElseThrow(),
                    Instant::from);
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
        handler = (request, response) -> execute(Exchange.of(request).connection(),
                "ALTER FUNCTION idem_lookup(text, text) RENAME TO gone");
        try {
            assertEquals(200, post("/orders", "cat", "1").statusCode());
        } finally {
            jdbc.execute("ALTER FUNCTION gone(text, text) RENAME TO idem_lookup");
        }
    }

    @Test
    void aRefusalOfAServletIsReplayedByteForByteWithoutItsCookie() throws Exception {
        handler = (request, response) -> {
            throw new Declined(new Response(409, Map.of("Set-Cookie", "a=b", "ETag", "\"1\""), "{\"no\":1}", null,
                    Duration.ofDays(3)), null);
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
        assertEquals(List.of("\"1\"", ""),
                List.of(answer.headers().firstValue("ETag").orElse(""), answer.headers().firstValue("Set-Cookie").orElse("")));
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
}
