package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import javax.sql.DataSource;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The code of README.md. */
class ExampleTest extends OnServer {
    private final Gateway gateway = new Gateway();

    /** A gateway that charges, and then loses its first answer. */
    private static final class Gateway {
        private final List<String> charges = new ArrayList<>();

        void charge(String key, int amount) throws IOException {
            charges.add(key + amount);
            if (charges.size() == 1) {
                throw new IOException("lost");
            }
        }

        boolean knows(String key) {
            return charges.stream().anyMatch(charge -> charge.startsWith(key));
        }
    }

    @BeforeEach
    void prepare() throws SQLException {
        sql("CREATE TABLE IF NOT EXISTS account (id text PRIMARY KEY, balance int NOT NULL)",
                "INSERT INTO account VALUES ('" + key + "', 100)");
        once = connect(pool);
    }

    private static Idempotency connect(DataSource dataSource) {
        var once = new Idempotency(Transactions.of(dataSource), Options.DEFAULT.withScope("payments"));
        return once;
    }

    /** Takes money from an account, once for each key. */
    Result pay(String key, String account, int amount) throws SQLException {
        Call call = Call.of(key).withRequest("[\"" + account + "\", " + amount + "]");
        return once.transaction(call, (connection, operation) -> {
            try (var update = connection.prepareStatement(
                    "UPDATE account SET balance = balance - ? WHERE id = ? AND balance >= ?")) {
                update.setInt(1, amount);
                update.setString(2, account);
                update.setInt(3, amount);
                if (update.executeUpdate() == 0) {
                    throw new Declined(402, "{\"reason\": \"not enough money\"}");
                }
                return Response.of(201, "{\"paid\": " + amount + "}");
            }
        });
    }

    /** Calls a gateway, with no connection held, and books what it did. */
    Result charge(String key, int amount) throws IOException {
        Response charged = Response.of(201, "{\"charged\": " + amount + "}");
        return once.lease(Call.of(key).withRequest(String.valueOf(amount)).withLease(Duration.ofMinutes(1)),
                lease -> {
                    gateway.charge(key, amount); // an exception is unclear: the next attempt finds out
                    return new Completion(charged, connection -> book(connection, amount));
                },
                operation -> gateway.knows(key) // an earlier attempt ran out of its lease
                        ? new Reconciled.Done(charged)
                        : new Reconciled.NotDone());
    }

    /** Books the messages of one delivery, each once, in one transaction. */
    int deliver(Map<String, Integer> messages) throws SQLException {
        return once.batch("deposits", batch -> {
            var ours = new ArrayList<String>();
            for (Operation message : batch.beginMany(List.copyOf(messages.keySet()), null)) {
                if (message.outcome() == Outcome.ACQUIRED) {
                    book(batch.connection(), -messages.get(message.key()));
                    ours.add(message.key());
                }
            }
            return batch.completeMany(ours, null);
        });
    }

    private void book(Connection connection, int amount) throws SQLException {
        execute(connection, "UPDATE account SET balance = balance - " + amount + " WHERE id = '" + key + "'");
    }

    @Test
    void paysOnce() throws SQLException {
        for (int i = 0; i < 2; i++) {
            assertEquals("{\"paid\": 60}", pay(key, key, 60).orThrow().payload());
        }
        assertThrows(Declined.class, () -> pay(key + "x", key, 60).orThrow());
    }

    @Test
    void chargesOnce() throws Exception {
        sql("SELECT idem_set_policy('payments', max_lease => '1 second')");
        assertThrows(IOException.class, () -> charge(key, 7));
        Result result = charge(key, 7);
        while (result.outcome() == Outcome.IN_PROGRESS) {
            Thread.sleep(result.retryAfter().toMillis() + 1);
            result = charge(key, 7);
        }
        assertEquals("{\"charged\": 7}", result.orThrow().payload());
        assertEquals(1, gateway.charges.size());
    }

    @Test
    void deliversOnce() throws SQLException {
        assertEquals(2, deliver(Map.of(key + 1, 5, key + 2, 7)));
        assertEquals(1, deliver(Map.of(key + 2, 7, key + 3, 11)));
        assertEquals("123", one("SELECT balance FROM account WHERE id = '" + key + "'"));
    }

    @Test
    void theCodeOfThePageIsThatOfTheExamples() throws IOException {
        String examples = flat(Files.readString(Path.of(System.getenv("EXAMPLES"))));
        List<String> blocks = Arrays.stream(Files.readString(Path.of(System.getenv("README"))).split("```java\n"))
                .skip(1).map(block -> flat(block.split("```")[0])).toList();
        assertTrue(blocks.size() >= 3);
        blocks.forEach(block -> assertTrue(examples.contains(block), () -> "not in the examples:\n" + block));
    }

    private static String flat(String code) {
        return code.lines().map(String::strip).filter(line -> !line.isEmpty()).collect(Collectors.joining("\n"));
    }
}
