package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import jakarta.servlet.ServletException;
import java.io.IOException;
import java.io.InputStream;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.example.idempotency.Call;
import org.example.idempotency.Idempotency;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What the options of the filter change. */
class FilterOptionsTest extends FilterFixture {
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
        protect(false, options -> options.call(call -> Call.of("one").withScope("all").withRequest("1")
                .withRequestHash(new byte[32])
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

    @Test
    void aProblemOfYourOwnIsSentUnlessItFails() throws Exception {
        protect(false, options -> options.describedBy("https://example.com/keys").problem((error, usual) -> error == null ? usual
                : new Problem(418, "https://example.com/tea", "No \"tea\"\n", null, Duration.ofSeconds(7))));
        handler = (request, response) -> {
            throw new ServletException("broken");
        };
        HttpResponse<String> own = post("/orders", "ann", "1");
        assertEquals("{\"type\": \"https://example.com/tea\", \"title\": \"No \\\"tea\\\"\\u000a\", \"status\": 418}",
                own.body());
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
}
