package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class IdentityTest {
    /** The clients for all languages have the same, or one key would be two operations for two services. */
    @Test
    void scopesAndFingerprintsAreThoseOfTheOtherLanguages() throws Exception {
        var cases = (List<?>) Json.parse(Files.readString(Path.of(System.getenv("SPELLINGS"))), 1000);
        assertTrue(cases.size() >= 5);
        for (Object entry : cases) {
            var spelling = (Map<?, ?>) entry;
            assertEquals(spelling.get("scope"), Identity.scope(text(spelling, "service"), text(spelling, "method"),
                    text(spelling, "route"), text(spelling, "principal")));
            if (text(spelling, "body").equals("{broken")) {
                continue; // no operation at all
            }
            String print = Identity.fingerprint(text(spelling, "method"), text(spelling, "target"), text(spelling, "type"), false,
                    text(spelling, "body").getBytes(StandardCharsets.UTF_8));
            assertEquals(spelling.get("fingerprint"), Json.parse(print, 1000));
        }
    }

    @Test
    void scopesOfFunctionsAreThoseOfTheOtherLanguages() throws Exception {
        var cases = (List<?>) Json.parse(Files.readString(Path.of(System.getenv("SPELLINGS")).resolveSibling("functions.json")));
        assertTrue(cases.size() > 3);
        for (Object entry : cases) {
            var function = (Map<?, ?>) entry;
            String service = text(function, function.get("own") == null ? "service" : "own");
            assertEquals(function.get("scope"), Identity.function(service, text(function, "name")));
        }
        assertThrows(IllegalArgumentException.class, () -> Identity.function("shop", ""));
    }

    private static String text(Map<?, ?> spelling, String name) {
        return (String) spelling.get(name);
    }

    @Test
    void nobodyHasNoScope() {
        assertThrows(IllegalArgumentException.class, () -> Identity.scope("", "POST", "/", ""));
        assertThrows(IllegalArgumentException.class, () -> Identity.scope("", "POST", "/", null));
        for (String half : new String[] {"\ud800", "\udfff"}) {
            assertThrows(IllegalArgumentException.class, () -> Identity.scope("", "POST", "/", half));
        }
    }

    @Test
    void aScopeThatTheServerDoesNotTakeIsHashed() {
        assertEquals("shop POST / ann", Identity.scope("shop", "post", "/", "ann"));
        assertEquals("\ud83d\ude00".repeat(255), Identity.scope("", "\ud83d\ude00".repeat(255)));
        for (String own : new String[] {"a".repeat(256), "\0", "a\0"}) {
            assertTrue(Identity.scope("", own).startsWith("sha256:"));
        }
    }

    @Test
    void anOwnFingerprintKeepsMethodAndTarget() {
        assertEquals("{\"method\": \"POST\", \"target\": \"/a\", \"own\": 1}", Identity.fingerprint("post", "/a", "1"));
        assertThrows(IllegalArgumentException.class, () -> Identity.fingerprint("POST", "/a", "1, \"target\": \"/b\""));
    }

    @Test
    void headersKeepWhateverIsInThem() {
        Map<String, String> headers = Map.of("a\"\\\n\u0001", "é\ud83d\ude00/");
        assertEquals(headers, Json.parse(Json.object(headers)));
        assertEquals(Map.of("a", "1, x", "b", "2.50"), Json.headers("{\"a\": [1, \"x\"], \"b\": 2.50}"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"{\"a\": [1, 2.5e3, \"é\", null]}", "\"plain\"", "{}", " [ ] ", "\"\\u0000\\b\"", "-0.5E-10", "[true, false]",
        "{ \"a\" : 1 , \"b\" : { } }", "\"\\u00e9\""})
    void jsonIsComparedAsJson(String body) {
        assertTrue(print(body).endsWith("\"body\": " + body + "}"), print(body));
    }

    @ParameterizedTest
    @ValueSource(strings = {"{", "{\"a\"}", "{\"a\": 1,}", "[1,]", "[1 2]", "01", "1.", "+1", "1e", "nul", "\"", "\"\n\"", "\"\\x\"", "\"\\u12g4\"",
        "\"\\x1234\"", "\"\\u+123\"", "\"\\u12", "\"\\u004",
        "trux", "[nulx]", "{\"a\" 1}", "[1}", "1ee12345",
        "{} {}", "'a'", "1 x", " ", "NaN", "\ufeff{}"})
    void whatIsNoJsonIsRefused(String body) {
        assertThrows(IllegalArgumentException.class, () -> print(body));
        assertTrue(print("text/plain", false, body).contains("\"body\": \"sha256:"));
        assertTrue(print("application/json", true, body).contains("\"body\": \"sha256:"));
    }

    @Test
    void whatTheServerCouldNotHoldIsComparedByItsBytes() {
        for (String body : List.of("1e99999", "1E-100000", "[".repeat(300) + "]".repeat(300), "9".repeat(1001))) {
            assertTrue(print(body).contains("sha256:"), body);
        }
        for (String body : List.of("[".repeat(200) + "]".repeat(200), "9".repeat(1000), "1e9999")) {
            assertTrue(print(body).endsWith(body + '}'), body);
        }
        byte[] notUnicode = {'"', (byte) 0xff, '"'};
        assertTrue(Identity.fingerprint("POST", "/", "application/json", false, notUnicode).contains("sha256:"));
        assertTrue(Identity.fingerprint("POST", "/", null, false, new byte[0]).endsWith("\"type\": \"\", \"body\": null}"));
    }

    private static String print(String body) {
        return print("application/x+json ; charset=utf-8", false, body);
    }

    private static String print(String type, boolean isEncoded, String body) {
        return Identity.fingerprint("POST", "/", type, isEncoded, body.getBytes(StandardCharsets.UTF_8));
    }
}
