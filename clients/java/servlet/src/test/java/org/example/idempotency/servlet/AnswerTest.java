package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Map;
import org.example.idempotency.Outcome;
import org.example.idempotency.Response;
import org.example.idempotency.Result;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class AnswerTest {
    /** Of what has no body, as what was stored by SQL. */
    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', value = {
        "`{\"a\": 1, \"b\": [1.0, null, {}]}`|`{\"a\":1,\"b\":[1.0,null,{}]}`",
        "`\"a: b, c\"`|`\"a: b, c\"`",
        "`{\"\\\\\": \"\\\" , \\\\\", \"ü\": true}`|`{\"\\\\\":\"\\\" , \\\\\",\"ü\":true}`",
        "`[ ]`|`[]`", "`12`|`12`"})
    void aPayloadIsCompact(String stored, String sent) {
        byte[] body = Answer.of(new Response(201, null, stored, null, null), 200).body();
        assertEquals(sent, new String(body, StandardCharsets.UTF_8));
    }

    private static final Duration HOUR = Duration.ofHours(1);

    @Test
    void aRetryAfterIsSecondsOrADateHoweverFar() {
        Map<String, Duration> read = Map.of("999999999", Duration.ofSeconds(999_999_999), " 7 ", Duration.ofSeconds(7),
                "99999999999", FilterOptions.LONGEST, "Tue, 03 Nov 2020 09:05:00 GMT", Duration.ZERO, "Fri, 31 Dec 9999 23:59:59 GMT", FilterOptions.LONGEST);
        read.forEach((value, time) -> assertEquals(time, withRetryAfter(value).retryAfter(), value));
        String later = RecordedResponse.httpDate(Instant.now().plus(HOUR).plusSeconds(30));
        assertEquals(HOUR, withRetryAfter(later).retryAfter().truncatedTo(ChronoUnit.MINUTES));
        assertNull(withRetryAfter("soon").retryAfter());
        assertNull(withRetryAfter("7", "8").retryAfter());
        Map<Duration, String> sent = Map.of(Duration.ZERO, "1", Duration.ofSeconds(1), "1", Duration.ofNanos(1_000_000_001), "2");
        sent.forEach((time, value) -> {
            Answer answer = withRetryAfter("7");
            answer.retryAfter(time);
            assertEquals(List.of(value), answer.headers().get("Retry-After"));
        });
    }

    private static Answer withRetryAfter(String... values) {
        Answer answer = new Answer(503, Answer.noHeaders(), new byte[0]);
        answer.headers().put("Retry-After", List.of(values));
        return answer;
    }

    @Test
    void aResultIsAnAnswer() {
        Response bytes = new Response(0, Map.of("ETag", "1"), "1", new byte[1], null);
        assertEquals(Map.of("ETag", List.of("1")), Answer.of(bytes, 200).headers());
        assertEquals(Map.of(), Answer.of(Response.EMPTY, 200).headers());
        for (boolean isReplayed : new boolean[] {false, true}) {
            Answer failed = Answer.of(new Result(Outcome.FAILED, bytes, isReplayed, 1, false, HOUR, null), "Replayed");
            assertEquals(List.of(422, List.of("3600"), isReplayed),
                    List.of(failed.status(), failed.headers().get("Retry-After"), failed.headers().containsKey("Replayed")));
            assertEquals(200, Answer.of(new Result(Outcome.COMPLETED, bytes, isReplayed, 1, false, null, null), "Replayed")
                    .status());
        }
    }
}
