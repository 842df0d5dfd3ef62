package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class FilterOptionsTest {
    private record Option(String name, Consumer<Duration> give) { }

    private static final FilterOptions OPTIONS = new FilterOptions(request -> null, request -> null);

    @Test
    void whatCannotBeMissingIsNotNull() {
        for (Executable missing : List.<Executable>of(() -> new FilterOptions(null, request -> null), () -> new FilterOptions(request -> null, null),
                () -> OPTIONS.makeKey(null), () -> OPTIONS.problem(null), () -> OPTIONS.passOn(null))) {
            assertThrows(NullPointerException.class, missing);
        }
    }

    @Test
    void whatHttpDoesNotCarryIsNoHeader() {
        for (Executable wrong : List.<Executable>of(() -> OPTIONS.header("a b"), () -> OPTIONS.marker(""), () -> OPTIONS.lifetime("a\n"),
                () -> OPTIONS.describedBy("https://example.com/\u2603"))) {
            assertThrows(IllegalArgumentException.class, wrong);
        }
        OPTIONS.lifetime(null).describedBy("\t \u00ff~").describedBy(null);
    }

    @Test
    void whatIsStoredDependsOnTheStatus() {
        Map.of(Keep.Kind.STORED, List.of(200, 399), Keep.Kind.REFUSAL, List.of(400, 402, 404, 407, 410, 422, 424, 426, 428, 430, 499),
                Keep.Kind.DISCARDED, List.of(199, 401, 403, 408, 409, 425, 429, 500))
                .forEach((kind, statuses) -> statuses.forEach(status -> assertEquals(kind, Keep.byDefault(status).as(), status::toString)));
    }

    @Test
    void aTimeThatIsOutOfRangeIsNamed() {
        for (Option option : List.of(new Option("timeout", OPTIONS::timeout), new Option("wait", time -> OPTIONS.waits(time, Duration.ZERO)),
                new Option("maxWait", time -> OPTIONS.waits(Duration.ZERO, time)))) {
            option.give.accept(Duration.ofDays(36_500));
            option.give.accept(Duration.ZERO);
            for (Duration time : List.of(Duration.ofSeconds(Long.MAX_VALUE), Duration.ofNanos(-1),
                    Duration.ofDays(36_500).plusNanos(1))) {
                String message = assertThrows(IllegalArgumentException.class, () -> option.give.accept(time), option::name)
                        .getMessage();
                assertTrue(message.startsWith(option.name), message);
            }
        }
    }
}
