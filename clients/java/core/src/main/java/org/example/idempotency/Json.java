package org.example.idempotency;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** As much of JSON as this package needs by itself: RFC 8259, with the bounds of what jsonb can hold. */
final class Json {
    /** Far below what exhausts the server's stack. */
    private static final int MAX_DEPTH = 200;
    private static final String NUMBER = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?";

    private final String text;
    private final int maxDepth;
    private int at;

    /** A number as it was spelled, so that each digit is kept. */
    record Number(String spelling) {
        @Override
        public String toString() {
            return spelling;
        }
    }

    /** Perhaps JSON, but deeper, or with a longer number, than jsonb can hold. What comes behind that is not read. */
    static final class TooMuch extends IllegalArgumentException {
        TooMuch(int at) {
            super("JSON that cannot be stored, at character " + at);
        }
    }

    private Json(String text, int maxDepth) {
        this.text = text;
        this.maxDepth = maxDepth;
    }

    /** Maps, lists, strings, numbers, booleans and null; IllegalArgumentException for what is no JSON of that kind. */
    static Object parse(String text) {
        return parse(text, MAX_DEPTH);
    }

    static Object parse(String text, int maxDepth) {
        Json json = new Json(text, maxDepth);
        Object value = json.value(0);
        json.skipSpace();
        if (json.at != text.length()) {
            throw json.broken();
        }
        return value;
    }

    static String object(Map<String, String> values) {
        return values.entrySet().stream().map(e -> quote(e.getKey()) + ": " + quote(e.getValue()))
                .collect(Collectors.joining(", ", "{", "}"));
    }

    static String quote(String value) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : value.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ' || Character.isSurrogate(c)) {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }

    /** Stored headers. Others may have stored a list of values, or a number. */
    static Map<String, String> headers(String text) {
        Map<String, String> headers = new LinkedHashMap<>();
        if (parse(text) instanceof Map<?, ?> map) {
            map.forEach((name, value) -> headers.put(String.valueOf(name), value instanceof List<?> list
                    ? list.stream().map(String::valueOf).collect(Collectors.joining(", ")) : String.valueOf(value)));
        }
        return headers;
    }

    private Object value(int depth) {
        skipSpace();
        return switch (peek()) {
            case '{' -> object(deeper(depth));
            case '[' -> array(deeper(depth));
            case '"' -> string();
            case 't' -> word("true", true);
            case 'f' -> word("false", false);
            case 'n' -> word("null", null);
            default -> number();
        };
    }

    private int deeper(int depth) {
        if (depth == maxDepth) {
            throw new TooMuch(at);
        }
        return depth + 1;
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> object = new LinkedHashMap<>();
        at++;
        skipSpace();
        if (isNext('}')) {
            return object;
        }
        do {
            skipSpace();
            String name = string();
            skipSpace();
            expect(':');
            object.put(name, value(depth));
            skipSpace();
        } while (isNext(','));
        expect('}');
        return object;
    }

    private List<Object> array(int depth) {
        List<Object> array = new ArrayList<>();
        at++;
        skipSpace();
        if (isNext(']')) {
            return array;
        }
        do {
            array.add(value(depth));
            skipSpace();
        } while (isNext(','));
        expect(']');
        return array;
    }

    private String string() {
        expect('"');
        StringBuilder string = new StringBuilder();
        for (char c = next(); c != '"'; c = next()) {
            if (c < ' ') {
                throw broken();
            }
            string.append(c == '\\' ? escaped(next()) : c);
        }
        return string.toString();
    }

    private char escaped(char c) {
        int known = "\"\\/bfnrt".indexOf(c);
        if (known >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(known);
        }
        if (c != 'u' || at + 4 > text.length() || !text.substring(at, at + 4).matches("[0-9a-fA-F]{4}")) {
            throw broken();
        }
        at += 4;
        return (char) Integer.parseInt(text.substring(at - 4, at), 16);
    }

    /** No number that fills the memory of a server: one of 1000 characters, and an exponent of 4. */
    private Number number() {
        int start = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String spelling = text.substring(start, at);
        int exponent = spelling.toLowerCase(java.util.Locale.ROOT).indexOf('e');
        if (spelling.length() > 1000 || spelling.matches(NUMBER) && exponent >= 0 && spelling.length() - exponent - 1 > 4) {
            throw new TooMuch(at);
        }
        if (!spelling.matches(NUMBER)) {
            throw broken();
        }
        return new Number(spelling);
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw broken();
        }
        at += word.length();
        return value;
    }

    private void skipSpace() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() {
        return at < text.length() ? text.charAt(at) : '\0';
    }

    private char next() {
        if (at >= text.length()) {
            throw broken();
        }
        return text.charAt(at++);
    }

    private boolean isNext(char wanted) {
        if (peek() != wanted) {
            return false;
        }
        at++;
        return true;
    }

    private void expect(char wanted) {
        if (!isNext(wanted)) {
            throw broken();
        }
    }

    private IllegalArgumentException broken() {
        return new IllegalArgumentException("no JSON, at character " + at);
    }
}
