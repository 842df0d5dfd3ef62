package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class KeyTest {
    @Test
    void keysAreStringsWithQuotesOrWithout() {
        Map.of("\"a\"", "a", "a", "a", " \"a\" ", "a", "\"a b\"", "a b", "\"a\\\"b\\\\c\"", "a\"b\\c", "\"a\";p=1;q", "a", "\"a\"; p", "a",
                "8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324")
                .forEach((value, key) -> assertEquals(key, Key.of(List.of(value), false), value));
        assertEquals(255, Key.of(List.of("k".repeat(255)), false).length());
        assertEquals("quoted", Key.of(List.of("\"quoted\""), true));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "\"\"", "\"a", "a\"", "\"a\"b", "\"a\n\"", "\"a\\", "a b", "\"ä\"", "ä", "\"\u0001\"", "\"\u007f\"", "\"a\tb\"",
        "\"a\", \"b\"", "a,b", "(\"a\" \"b\")", "\"a\";", "\"a\";=", "\"a\";A"})
    void anythingElseIsMalformed(String value) {
        assertNull(Key.of(List.of(value), false));
    }

    @Test
    void soAreTwoKeysTooLongOnesAndBareOnesWhereTheyAreNotAllowed() {
        assertNull(Key.of(List.of("a", "a"), false));
        assertNull(Key.of(List.of("k".repeat(256)), false));
        assertNull(Key.of(List.of("bare"), true));
    }
}
