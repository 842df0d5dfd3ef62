package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import org.junit.jupiter.api.Test;

/** What the cases of clients/conformance leave open. */
class KeyTest {
    @Test
    void parametersAreIgnoredAndStrictIsInQuotes() {
        for (String value : List.of("\"a\"", "\"a\";p=1;q", "\"a\"; p")) {
            assertEquals("a", Key.of(List.of(value), true), value);
        }
        for (String value : List.of("a", "\"a\";", "\"a\";=", "\"a\";A")) {
            assertNull(Key.of(List.of(value), true), value);
        }
    }
}
