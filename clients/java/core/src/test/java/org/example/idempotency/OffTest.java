package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.sql.SQLException;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class OffTest extends OnServer {
    private final Call call = Call.of(key).withRequest("1");

    /** No such schema, so a statement of the extension would fail. */
    @BeforeEach
    void switchOff() {
        once = Idempotency.off(Transactions.of(pool), once.options().withSchema("nowhere"));
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
            assertFalse(once.lease(call, lease -> {
                once.progress(lease.operation(), "1");
                assertFalse(lease.isLost());
                return new Completion(Response.EMPTY, this::effect);
            }).replayed());
        }
        assertEquals(3, once.<Integer, SQLException>batch(null, batch -> {
            List<Operation> operations = batch.beginMany(List.of("a", "a", "b"), null);
            assertEquals(Outcome.IN_PROGRESS, operations.get(1).outcome());
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
        assertThrows(IdempotencyException.NotDone.class, () -> once.lease(call, lease -> {
            throw new IdempotencyException.NotDone(null);
        }));
        assertThrows(SQLException.class, () -> once.transaction(call, (connection, operation) -> {
            effect(connection);
            execute(connection, "SELECT 1/0");
            return Response.EMPTY;
        }));
        assertEquals(0, effects());
    }
}
