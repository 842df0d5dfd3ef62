package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import jakarta.servlet.Filter;
import jakarta.servlet.ServletException;
import java.net.URLConnection;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Map;
import org.example.idempotency.Idempotency;
import org.junit.jupiter.api.Test;

/** The body of a request is read once, whole, and within its limit. */
class RequestBodiesTest extends FilterFixture {
    /** Of a body that has no length nobody can tell, but by its header. */
    @Test
    void aBodyOfWhichAFilterInFrontHasReadIsRefused() throws Exception {
        answersOk();
        protect(false, options -> { });
        Filter protecting = filter;
        HttpRequest.Builder chunked = withoutKey("").header("Idempotency-Key", key)
                .header("Content-Type", "application/x-www-form-urlencoded")
                .POST(BodyPublishers.fromPublisher(BodyPublishers.ofString("seat=1")));
        assertEquals(200, send(chunked).statusCode());
        filter = (request, response, chain) -> {
            request.getParameter("seat");
            protecting.doFilter(request, response, chain);
        };
        assertEquals(411, send(chunked).statusCode());
        assertEquals(500, send(withoutKey("seat=1").header("Idempotency-Key", key)
                .header("Content-Type", "application/x-www-form-urlencoded"))
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
        Map.of("X-User", "ann", "Idempotency-Key", key + "z", "Content-Type", "text/plain")
                .forEach(withoutLength::setRequestProperty);
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
                .POST(BodyPublishers.fromPublisher(BodyPublishers.ofString("seat=1"))).build(),
                        HttpResponse.BodyHandlers.ofString());
        assertEquals(HttpClient.Version.HTTP_2, answer.version());
        assertEquals(411, answer.statusCode());
        handler = (request, response) -> { };
        assertEquals(200, second.send(withoutKey("").header("Idempotency-Key", key).POST(BodyPublishers.noBody()).build(),
                HttpResponse.BodyHandlers.ofString()).statusCode());
        assertEquals(0, runs.get());
    }
}
