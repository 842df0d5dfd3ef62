package org.example.idempotency;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Locale;

/** What makes two requests, or two calls of a function, the same. The clients for other languages have the same spellings. */
public final class Identity {
    private static final int MAX_SCOPE = 255;

    private Identity() {
    }

    /**
     * The scope of a service's keys, for one route and principal.
     *
     * @param service the service, as the scope of its client; "": there is one only
     * @param method the method of the request
     * @param route the template of the route, such as {@code /accounts/{id}/payments}
     * @param principal who asks; not empty
     * @return the scope, which is hashed where the server would not take it
     * @throws IllegalArgumentException if nobody asks, or the text is no Unicode
     */
    public static String scope(String service, String method, String route, String principal) {
        if (principal == null || principal.isEmpty()) {
            throw new IllegalArgumentException("nobody asks");
        }
        return scope(service, method.toUpperCase(Locale.ROOT) + ' ' + escape(route) + ' ' + principal);
    }

    /**
     * A scope of your own, within a service.
     *
     * @param service the service, as the scope of its client; "": there is one only
     * @param own the scope
     * @return the scope, which is hashed where the server would not take it
     * @throws IllegalArgumentException if the text is no Unicode
     */
    public static String scope(String service, String own) {
        String scope = service.isEmpty() ? own : escape(service) + ' ' + own;
        if (scope.codePoints().anyMatch(c -> c >= Character.MIN_SURROGATE && c <= Character.MAX_SURROGATE)) {
            throw new IllegalArgumentException("half of a character of two is no Unicode");
        }
        boolean isTaken = scope.codePointCount(0, scope.length()) <= MAX_SCOPE && scope.indexOf('\0') < 0;
        return isTaken ? scope : "sha256:" + sha256(scope.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * The scope of a function's keys: that of the client, a dot, and the name.
     *
     * @param service the scope of the client; "": there is none
     * @param name the name of the function, which must not change
     * @return the scope
     * @throws IllegalArgumentException if the name is empty: all functions would be one
     */
    public static String function(String service, String name) {
        if (name.isEmpty()) {
            throw new IllegalArgumentException("a function that runs once needs a name");
        }
        return service.isEmpty() ? name : service + '.' + name;
    }

    /** Spaces are between the parts of a scope, so a part has none but the last. */
    private static String escape(String part) {
        return part.replace("%", "%25").replace(" ", "%20");
    }

    /**
     * What is compared of a request. A JSON body counts as jsonb compares it, any other by its SHA-256, and so do the
     * bytes of one with a Content-Encoding: what they stand for is not known here.
     *
     * @param method the method
     * @param target path and query, as they were sent
     * @param contentType the header, with or without parameters; null: there was none
     * @param isEncoded whether the request has a Content-Encoding
     * @param body the bytes that were sent
     * @return the request to give to {@link Call#withRequest}
     * @throws IllegalArgumentException if the body is no JSON, although its type says so
     */
    public static String fingerprint(String method, String target, String contentType, boolean isEncoded, byte[] body) {
        String type = mediaType(contentType);
        boolean isJson = (type.equals("application/json") || type.endsWith("+json")) && !isEncoded;
        String json = body.length == 0 ? "null" : isJson ? storable(body) : null;
        if (json == null) {
            json = "\"sha256:" + sha256(body) + '"';
        }
        return head(method, target) + ", \"type\": " + Json.quote(type) + ", \"body\": " + json + '}';
    }

    /**
     * What is compared of a request where the program says it for media type and body.
     *
     * @param method the method
     * @param target path and query, as they were sent
     * @param own JSON that stands for the rest
     * @return the request to give to {@link Call#withRequest}
     * @throws IllegalArgumentException if that is no JSON, or more than one value
     */
    public static String fingerprint(String method, String target, String own) {
        Json.parse(own);
        return head(method, target) + ", \"own\": " + own + '}';
    }

    private static String head(String method, String target) {
        return "{\"method\": " + Json.quote(method.toUpperCase(Locale.ROOT)) + ", \"target\": " + Json.quote(target);
    }

    private static String mediaType(String contentType) {
        return contentType == null ? "" : contentType.split(";", 2)[0].strip().toLowerCase(Locale.ROOT);
    }

    /** The text of JSON, and null where jsonb cannot hold it. */
    private static String storable(byte[] body) {
        String text = new String(body, StandardCharsets.UTF_8);
        try {
            Json.parse(text);
        } catch (Json.TooMuch tooMuch) {
            return null;
        }
        return Arrays.equals(text.getBytes(StandardCharsets.UTF_8), body) ? text : null;
    }

    /**
     * {@return a text as a string of JSON, in quotes}
     *
     * @param text any text
     */
    public static String quote(String text) {
        return Json.quote(text);
    }

    static String sha256(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible); // each Java has it
        }
    }
}
