package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import org.example.idempotency.Response;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What becomes of a stored payload without a body, as of one that was stored by SQL. */
class AnswerTest {
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
}
