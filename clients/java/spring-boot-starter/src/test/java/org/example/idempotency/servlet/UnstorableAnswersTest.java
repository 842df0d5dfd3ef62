package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import jakarta.servlet.ServletException;
import java.io.IOException;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.example.idempotency.Declined;
import org.example.idempotency.Response;
import org.junit.jupiter.api.Test;

/** Answers that cannot be sent or stored. */
class UnstorableAnswersTest extends FilterFixture {
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
                List.of(first.statusCode(), first.body().contains("\"The answer is too large to be stored\"")),
                        what + end + first.body());
        for (int repeat = 0; repeat < 2; repeat++) {
            HttpResponse<String> again = post("/orders", "ann", what);
            assertEquals(500, again.statusCode(), what + end);
            assertTrue(again.body().contains("\"The answer could not be stored\""), again.body());
        }
        boolean writes = end.equals("answer") || end.equals("refusal") && what.equals("status"); // which statuses is not asked about
        assertEquals(List.of(1, before + (writes ? 1 : 0)), List.of(runs[0], effects()), what + end);
        String days = "SELECT round(extract(epoch FROM expires_at - created_at) / 86400)::int FROM idempotency_store WHERE scope = ?";
        assertEquals(writes && what.equals("status") ? 1 : 90,
                jdbc.queryForObject(days, Integer.class, "shop unstorable " + key + what + end), what + end);
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
}
