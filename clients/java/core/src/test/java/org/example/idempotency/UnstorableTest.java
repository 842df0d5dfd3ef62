package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** Work of a lease that is done, and whose answer cannot be stored. */
@Timeout(60)
class UnstorableTest extends OnServer {
    private static final String LARGE = '"' + "x".repeat(2_000_000) + '"';

    private static Map<String, Response> unstorable() {
        Map<String, Response> all = new HashMap<>(Map.of("broken", Response.json("{"), "NUL", Response.json("\"a\\u0000b\""),
                "half", Response.json("\"\ud800\""), "large", Response.json(LARGE)));
        all.put("none", null);
        for (Duration wrong : List.of(Duration.ofNanos(999), Duration.ofDays(36_501), Duration.ofSeconds(Long.MAX_VALUE))) {
            all.put(wrong + "", new Response(200, null, null, null, wrong));
        }
        all.put("header", new Response(200, Collections.singletonMap("a", null), null, null, null));
        return all;
    }

    @Test
    void workWhoseAnswerCannotBeStoredIsDoneAndNotRepeated() throws Exception {
        for (Map.Entry<String, Response> answer : unstorable().entrySet()) {
            for (String end : new String[] {"answer", "writes", "declined", "declining writes"}) {
                if (answer.getValue() == null && end.startsWith("declin")) {
                    continue; // a Declined has a response
                }
                String own = key + answer.getKey() + end;
                int[] runs = new int[1];
                Completion.Writes declining = connection -> {
                    effect(connection, own);
                    throw new Declined(answer.getValue(), null);
                };
                LeasedWork<Exception> work = lease -> {
                    runs[0]++;
                    return switch (end) {
                        case "declined" -> throw new Declined(answer.getValue(), null);
                        case "declining writes" -> new Completion(done().response(), declining);
                        default -> new Completion(answer.getValue(),
                                end.equals("writes") ? connection -> effect(connection, own) : null);
                    };
                };
                RuntimeException first = assertThrows(RuntimeException.class, () -> once.lease(Call.of(own), work), own);
                assertFalse(first instanceof IdempotencyException.Unstorable, own);
                assertEquals(answer.getKey().equals("large"), first instanceof IdempotencyException.TooLarge);
                for (int repeat = 0; repeat < 2; repeat++) {
                    assertEquals("the work was done, and its answer could not be stored",
                            assertThrows(IdempotencyException.Unstorable.class, () -> once.lease(Call.of(own), work), own)
                                    .getMessage());
                }
                assertEquals(List.of(1, end.equals("writes") ? 1 : 0, 500),
                        List.of(runs[0], effects(own), once.lookup(Call.of(own)).response().code()));
            }
            Call call = Call.of(key + answer.getKey());
            assertThrows(RuntimeException.class, () -> once.transaction(call, (connection, operation) -> {
                effect(connection, call.key());
                throw new Declined(answer.getValue(), null);
            }));
            assertNull(once.lookup(call));
            assertEquals(0, effects(call.key()));
        }
        assertThrows(NullPointerException.class, () -> once.lease(Call.of(key), lease -> null));
        assertThrows(IdempotencyException.Unstorable.class, () -> once.lease(Call.of(key), lease -> done()));
    }

    /** Also where it is computed by work that is done. */
    @Test
    void aTimeThatIsOutOfRangeIsNamedWhenItIsStored() {
        for (Duration wrong : List.of(Duration.ofDays(36_500).plusNanos(1), Duration.ofSeconds(Long.MAX_VALUE))) {
            isRefused("retention", () -> new Response(0, null, null, null, wrong));
            isRefused("retention", () -> {
                throw new Declined(new Response(0, null, null, null, wrong), null);
            });
            isRefused("retryAfter", () -> {
                throw new Declined(Response.EMPTY, wrong);
            });
        }
    }

    private void isRefused(String name, Supplier<Response> end) {
        Call call = Call.of(key + end.hashCode());
        for (Executable operation : List.<Executable>of(() -> once.transaction(call, (connection, o) -> end.get()),
                () -> once.lease(call, lease -> Completion.of(end.get())))) {
            String message = assertThrows(IllegalArgumentException.class, operation).getMessage();
            assertTrue(message.startsWith(name), message);
        }
        assertThrows(IdempotencyException.Unstorable.class, () -> once.lease(call, lease -> done()));
    }

    /** Its writes commit with the record, and where they say so themselves they do not. It is the word for one operation, not for one around it. */
    @Test
    void workThatHasNoAnswerIsDoneAndNotRepeated() throws Exception {
        var wrong = new IllegalStateException("planned");
        Completion.Writes effect = connection -> effect(connection, key);
        for (Completion.Writes writes : new Completion.Writes[] {null, effect, connection -> {
            effect.run(connection);
            throw new IdempotencyException.NoAnswer(wrong, Duration.ofDays(90), effect);
        }}) {
            String own = key + System.nanoTime();
            int before = effects(key);
            LeasedWork<Exception> work = lease -> {
                throw new IdempotencyException.NoAnswer(wrong, Duration.ofDays(90), writes);
            };
            assertSame(wrong, assertThrows(RuntimeException.class, () -> once.lease(Call.of(own), work)));
            assertThrows(IdempotencyException.Unstorable.class, () -> once.lease(Call.of(own), work));
            Operation stored = once.lookup(Call.of(own));
            assertEquals(90, Duration.between(stored.createdAt(), stored.expiresAt()).toDays());
            assertEquals(writes == effect ? 1 : 0, effects(key) - before);
        }
    }

    @Test
    void whatCannotBeStoredIsKeptAwayForAsLongAsItAskedFor() {
        Response answer = new Response(0, null, LARGE, null, Duration.ofDays(90));
        LeasedWork<RuntimeException> declines = lease -> {
            throw new Declined(answer, null);
        };
        for (LeasedWork<RuntimeException> work : List.<LeasedWork<RuntimeException>>of(lease -> Completion.of(answer),
                declines)) {
            Call call = Call.of(key + work.hashCode());
            assertThrows(IdempotencyException.TooLarge.class, () -> once.lease(call, work));
            Operation stored = once.lookup(call);
            assertEquals(90, Duration.between(stored.createdAt(), stored.expiresAt()).toDays());
        }
    }

    @Test
    void anAnswerWithTheCode500IsOne() {
        for (Response answer : List.of(Response.of(500, "1"), new Response(500, null, null, new byte[0], null),
                new Response(500, Map.of(), null, null, null), Response.of(501, null))) {
            String own = key + answer.code() + answer.payload() + answer.headers();
            once.lease(Call.of(own), lease -> Completion.of(answer));
            assertEquals(answer.code(), once.lease(Call.of(own), lease -> done()).response().code());
        }
    }

    @Test
    void whatTheFinderHasFoundAndCannotBeStoredItIsAskedForAgain() throws Exception {
        abandon(key);
        for (String found : List.of("{", LARGE)) {
            runOut(key);
            assertThrows(IdempotencyException.class,
                    () -> once.lease(Call.of(key), lease -> done(), operation -> new Reconciled.Done(Response.json(found))));
        }
        runOut(key);
        assertEquals("1", once.lease(Call.of(key), lease -> done(), operation -> new Reconciled.Done(Response.json("1")))
                .response().payload());
        assertEquals(0, effects());
    }

    @Test
    void anAnswerThatCannotBeStoredAndOtherEnds() throws Exception {
        for (boolean isEnded : new boolean[] {true, false}) {
            String own = key + isEnded;
            LeasedWork<Exception> late = lease -> {
                runOut(own);
                if (isEnded) {
                    once.lease(Call.of(own), other -> Completion.of(Response.of(202, null)));
                } else {
                    abandon(own);
                }
                return Completion.of(Response.json(LARGE));
            };
            if (isEnded) {
                assertEquals(202, once.lease(Call.of(own), late).response().code());
            } else {
                assertThrows(IdempotencyException.class, () -> once.lease(Call.of(own), late));
            }
        }
        Declined refusal = new Declined(402, null);
        assertEquals(Outcome.FAILED, once.lease(Call.of(key + "d"), lease -> new Completion(Response.json(LARGE), c -> {
            throw refusal;
        })).outcome());
        int[] calls = new int[1];
        for (Response answer : List.of(Response.EMPTY, Response.json(null))) {
            assertThrows(IdempotencyException.Other.class, () -> once.<Exception>lease(Call.of(key + ++calls[0]), lease -> new Completion(answer, c -> {
                calls[0]++;
                c.createStatement().execute("SELECT 'x'::int");
            })));
        }
        assertEquals(4, calls[0]);
    }
}
