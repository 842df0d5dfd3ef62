package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What the cases of clients/conformance leave open. */
class KeyTest {
    @Test
    void parametersAreIgnoredAndStrictIsInQuotes() {
        for (String value : List.of("\"a\"", "\"a\";p=1;q", "\"a\"; p", "\"a\";p=\"\\\";\";q=\"\"")) {
            assertEquals("a", Key.of(List.of(value), true), value);
        }
        for (String value : List.of("a", "\"a\";", "\"a\";=", "\"a\";A", "\"a\";p=\"b", "\"\"")) {
            assertNull(Key.of(List.of(value), true), value);
        }
    }

    /** Only blanks and tabs may stand around it, as in the other languages. */
    @Test
    void controlCharactersAroundItAreRefused() {
        for (String control : List.of("\u000b", "\f", "\u001c", "\u001f", "\u00a0", "\u2003")) {
            assertNull(Key.of(List.of(control + "a"), false));
            assertNull(Key.of(List.of("\"a\"" + control), false));
        }
    }

    /** However long it is. */
    @Test
    void whatIsLongerIsRefusedOrIgnored() {
        String longest = "\\\"".repeat(255);
        assertEquals("\"".repeat(255), Key.of(List.of('"' + longest + '"' + ";a".repeat(100_000)), true));
        for (String value : List.of("a".repeat(100_000), longest + "a", "\\\"".repeat(100_000), "k\"" + ";a=b".repeat(100_000))) {
            assertNull(Key.of(List.of('"' + value + '"'), false));
        }
        String spaces = " \t".repeat(500_000);
        assertEquals("a", Key.of(List.of(spaces + "a" + spaces), false));
        assertTimeoutPreemptively(Duration.ofSeconds(30), () -> assertNull(Key.of(List.of("a" + spaces + "a"), false)));
    }
}
