package org.example.idempotency.servlet;

import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeParseException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Predicate;
import org.example.idempotency.Outcome;
import org.example.idempotency.Response;
import org.example.idempotency.Result;

/** What a client gets. */
record Answer(int status, Map<String, List<String>> headers, byte[] body) {
    static Map<String, List<String>> noHeaders() {
        return new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    }

    /** Of a response: a payload is JSON. */
    static Answer of(Response response, int otherwise) {
        Answer answer = new Answer(response.code() == 0 ? otherwise : response.code(), noHeaders(), bodyOf(response));
        if (response.body() == null && response.payload() != null) {
            answer.set("Content-Type", "application/json");
        }
        if (response.headers() != null) {
            response.headers().forEach(answer::set);
        }
        return answer;
    }

    private static byte[] bodyOf(Response response) {
        if (response.body() != null) {
            return response.body();
        }
        return response.payload() == null ? new byte[0] : compact(response.payload()).getBytes(StandardCharsets.UTF_8);
    }

    /** JSON without spaces between its parts, which jsonb has: the packages for all languages answer the same. */
    static String compact(String json) {
        StringBuilder compact = new StringBuilder(json.length());
        boolean isQuoted = false;
        for (int i = 0; i < json.length(); i++) {
            char c = json.charAt(i);
            if (c == '"') {
                isQuoted = !isQuoted;
            }
            if (isQuoted || c > ' ') {
                compact.append(c);
            }
            if (isQuoted && c == '\\') {
                compact.append(json.charAt(++i)); // no quotation mark ends the string here
            }
        }
        return compact.toString();
    }

    static Answer of(Result result, String marker) {
        Answer answer = of(result.response(), result.outcome() == Outcome.FAILED ? 422 : 200);
        answer.retryAfter(result.retryAfter());
        if (result.replayed()) {
            answer.set(marker, "true");
        }
        return answer;
    }

    void set(String name, String value) {
        headers.put(name, new ArrayList<>(List.of(value)));
    }

    /** What HTTP cannot carry is an error: of a handler before COMMIT, after which it would be too late to say so. */
    Answer checked() {
        if (status < 200 || status > 999) {
            throw new IllegalArgumentException("a route that runs once cannot answer " + status);
        }
        headers.forEach((name, values) -> values.forEach(value -> check(name, value)));
        return this;
    }

    static void check(String name, String value) {
        if (!name.matches("[!#$%&'*+.^_`|~0-9A-Za-z-]+") || !value.matches("[\\t\\x20-\\x7e\\x80-\\xff]*")) {
            throw new IllegalArgumentException("the header " + name + " has a character that HTTP does not carry");
        }
    }

    /** In whole seconds, at least 1; null: none. */
    void retryAfter(Duration time) {
        if (time != null) {
            set("Retry-After", String.valueOf(Math.max(1, time.plusNanos(999_999_999).toSeconds())));
        }
    }

    /** The answer's own Retry-After, in seconds, or a date, up to 36500 days; null: it has none. */
    Duration retryAfter() {
        List<String> values = headers.getOrDefault("Retry-After", List.of());
        if (values.size() != 1) {
            return null;
        }
        String value = values.get(0).strip();
        Duration left;
        try {
            left = value.matches("[0-9]{1,18}") ? Duration.ofSeconds(Long.parseLong(value))
                    : Duration.between(Instant.now(), DateTimeFormatter.RFC_1123_DATE_TIME.parse(value, Instant::from));
        } catch (DateTimeParseException unknown) {
            return null;
        }
        if (left.compareTo(FilterOptions.LONGEST) > 0) {
            return FilterOptions.LONGEST;
        }
        return left.isNegative() ? Duration.ZERO : left;
    }

    /** The part that is stored. The body is never null, so a replay has the same bytes. */
    Response stored(Predicate<String> isStored, Duration retention) {
        Map<String, String> kept = new TreeMap<>();
        headers.forEach((name, values) -> {
            if (isStored.test(name)) {
                kept.put(name, String.join(", ", values));
            }
        });
        return new Response(status, kept, null, body, retention);
    }

    void send(HttpServletResponse response) throws IOException {
        response.setStatus(status);
        headers.forEach((name, values) -> {
            if (name.equalsIgnoreCase("Content-Type")) {
                response.setContentType(values.get(0));
                return;
            }
            response.setHeader(name, values.get(0));
            values.subList(1, values.size()).forEach(value -> response.addHeader(name, value));
        });
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }
}
