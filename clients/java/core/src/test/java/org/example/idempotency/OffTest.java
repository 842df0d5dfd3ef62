package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.postgresql.ds.PGSimpleDataSource;

@Timeout(60)
class OffTest extends OnServer {
    private final Call call = Call.of(key).withRequest("1");

    /** In a schema where the extension is not, so a statement of it would fail. */
    @BeforeEach
    void switchOff() throws Exception {
        sql("CREATE SCHEMA IF NOT EXISTS nowhere", "CREATE OR REPLACE VIEW nowhere.effect AS SELECT * FROM public.effect");
        var plain = new PGSimpleDataSource();
        plain.setUrl(proxy.url() + "&currentSchema=nowhere");
        once = Idempotency.off(Transactions.of(plain), once.options().withSchema("nowhere"));
    }

    @Test
    void eachCallRunsAndCommits() throws Exception {
        for (int i = 0; i < 2; i++) {
            Result result = once.transaction(call.withRequest(String.valueOf(i)), (connection, operation) -> {
                effect(connection);
                return Response.of(201, "1");
            });
            assertEquals(Outcome.COMPLETED, result.outcome());
            assertFalse(result.replayed());
            assertFalse(once.lease(call.withLease(Duration.ofMillis(300)), lease -> {
                once.progress(lease.operation(), "1");
                Thread.sleep(400);
                assertFalse(lease.isLost());
                assertTrue(lease.operation().fence() > 0);
                return new Completion(Response.EMPTY, this::effect);
            }).replayed());
        }
        assertEquals(3, once.<Integer, SQLException>batch(null, batch -> {
            List<Operation> operations = batch.beginMany(List.of("a", "a", "b"), null);
            assertEquals(List.of(Outcome.ACQUIRED, Outcome.IN_PROGRESS, Outcome.ACQUIRED),
                    operations.stream().map(Operation::outcome).toList());
            effect(batch.connection());
            return batch.completeMany(List.of("a", "b"), null) + 1;
        }));
        assertEquals(5, effects());
        assertNull(once.lookup(call));
    }

    @Test
    void whatIsThrownMeansTheSame() throws Exception {
        Result refused = once.transaction(call, (connection, operation) -> {
            effect(connection);
            throw new Declined(402, null);
        });
        assertEquals(402, refused.response().code());
        assertEquals(Outcome.FAILED, once.lease(call, lease -> {
            throw new Declined(402, null);
        }).outcome());
        assertEquals(0, assertThrows(IdempotencyException.NotDone.class, () -> once.lease(call, lease -> {
            throw new IdempotencyException.NotDone(null);
        })).getSuppressed().length);
        assertThrows(SQLException.class, () -> once.transaction(call, (connection, operation) -> {
            effect(connection);
            execute(connection, "SELECT 1/0");
            return Response.EMPTY;
        }));
        assertEquals(0, effects());
    }
}
