package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.sql.SQLException;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class BatchTest extends OnServer {
    private List<String> keys(String... names) {
        return Arrays.stream(names).map(name -> key + name).toList();
    }

    private int deliver(String scope, List<String> keys) throws SQLException {
        return once.batch(scope, batch -> {
            List<String> mine = batch.beginMany(keys, null).stream().filter(o -> o.outcome() == Outcome.ACQUIRED)
                    .map(Operation::key).toList();
            for (int i = 0; i < mine.size(); i++) {
                effect(batch.connection());
            }
            return batch.completeMany(mine, null);
        });
    }

    @Test
    void eachMessageTakesEffectOnce() throws Exception {
        assertEquals(2, deliver(null, keys("1", "2", "1")));
        assertEquals(1, deliver(null, keys("2", "3")));
        assertEquals(1, deliver("other", keys("2")));
        assertEquals(4, effects());
        assertEquals(List.of(Event.Type.ACQUIRED, Event.Type.ACQUIRED, Event.Type.IN_PROGRESS, Event.Type.REPLAYED,
                Event.Type.ACQUIRED, Event.Type.ACQUIRED), events);
    }

    @Test
    void anotherRequestFailsNoOther() {
        List<Operation> operations = once.batch(null, batch -> {
            batch.beginMany(keys("1", "2"), Arrays.asList("{\"n\": 1}", null));
            assertEquals(2, batch.completeMany(keys("1", "2"), List.of("\"a\"", "null")));
            return batch.beginMany(keys("1"), List.of("{\"n\": 1}"));
        });
        assertEquals("\"a\"", operations.get(0).response().payload());
        assertEquals(List.of(Outcome.MISMATCH, Outcome.ACQUIRED), once.batch(null, batch -> {
            List<Operation> begun = batch.beginMany(keys("1", "3"), List.of("2", "2"));
            batch.completeMany(keys("3"), null);
            return begun.stream().map(Operation::outcome).toList();
        }));
        assertTrue(events.contains(Event.Type.MISMATCH));
    }

    @Test
    void whatIsNotCompletedIsNotStored() throws Exception {
        assertThrows(IdempotencyException.NotEnded.class, () -> once.batch(null, batch -> batch.beginMany(keys("1"), null)));
        assertThrows(IdempotencyException.NotOwned.class, () -> once.batch(null, batch -> batch.completeMany(keys("1"), null)));
        assertThrows(IdempotencyException.BadArgument.class,
                () -> once.batch(null, batch -> batch.beginMany(keys("1"), List.of("{"))));
        assertThrows(IOException.class, () -> once.batch(null, batch -> {
            batch.beginMany(keys("1"), null);
            effect(batch.connection());
            assertEquals("2D000", assertThrows(SQLException.class, batch.connection()::commit).getSQLState());
            throw new IOException("broken");
        }));
        assertEquals(0, effects());
        assertNull(once.lookup(Call.of(key + "1")));
    }

    /** COMMIT would answer ROLLBACK, and the driver says nothing of it. */
    @Test
    void aFailureThatWasCaughtIsNoSuccess() throws Exception {
        assertThrows(IdempotencyException.RolledBack.class, () -> once.batch(null, batch -> {
            batch.beginMany(keys("1"), null);
            effect(batch.connection());
            int done = batch.completeMany(keys("1"), null);
            assertThrows(SQLException.class, () -> execute(batch.connection(), "SELECT 1 / 0"));
            return done;
        }));
        assertEquals(0, effects());
        assertNull(once.lookup(Call.of(key + "1")));
    }

    /** COMMIT would have nothing to end, or something else, and the effects are gone. */
    @ParameterizedTest
    @ValueSource(strings = {"ROLLBACK", "ROLLBACK; BEGIN"})
    void aTransactionThatTheWorkHasEndedIsNoSuccess(String ending) throws Exception {
        assertThrows(IdempotencyException.NotOwned.class, () -> once.batch(null, batch -> {
            batch.beginMany(keys("1"), null);
            effect(batch.connection());
            int done = batch.completeMany(keys("1"), null);
            execute(batch.connection(), ending);
            return done;
        }));
        assertEquals(0, effects());
    }

    @Test
    void aConflictRepeatsTheWhole() throws Exception {
        AtomicInteger runs = new AtomicInteger();
        assertEquals(1, once.<Integer, SQLException>batch(null, batch -> {
            batch.beginMany(keys("1"), null);
            effect(batch.connection());
            if (runs.incrementAndGet() == 1) {
                execute(batch.connection(), "DO $$BEGIN RAISE 'conflict' USING ERRCODE = '40P01'; END$$");
            }
            return batch.completeMany(keys("1"), null);
        }));
        assertEquals(2, runs.get());
        assertEquals(1, effects());
    }

    @Test
    void aConflictAtTheCommitRepeatsWhatHasBegunNothing() throws Exception {
        sql("CREATE SEQUENCE tries", "CREATE TABLE conflicting (key text)",
                "CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS"
                + " $$BEGIN IF nextval('tries') = 1 THEN RAISE SQLSTATE '40001'; END IF; RETURN NULL; END$$",
                "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON conflicting DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION conflict()");
        AtomicInteger runs = new AtomicInteger();
        once.<Void, SQLException>batch(null, batch -> {
            effect(batch.connection());
            execute(batch.connection(), runs.incrementAndGet() == 2 ? "SELECT pg_terminate_backend(pg_backend_pid())"
                    : "INSERT INTO conflicting VALUES (NULL)");
            return null;
        });
        assertEquals(3, runs.get());
        assertEquals(1, effects());
    }

    /** Where it has acquired none, nothing would tell its repeat that its writes are there. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aLostAnswerToTheCommitIsRepeatedIfAnOperationWasBegun(boolean isBegun) throws Exception {
        AtomicInteger runs = new AtomicInteger();
        proxy.order("arm", "lose");
        Batch.Work<Integer, SQLException> work = batch -> {
            runs.incrementAndGet();
            List<Operation> begun = batch.beginMany(isBegun ? keys("1") : List.of(), null);
            if (begun.stream().anyMatch(Operation::replayed)) {
                return 0;
            }
            effect(batch.connection());
            return isBegun ? batch.completeMany(keys("1"), null) : 0;
        };
        if (isBegun) {
            once.batch(null, work);
        } else {
            assertThrows(IdempotencyException.ConnectionLost.class, () -> once.batch(null, work));
        }
        assertEquals(List.of(isBegun ? 2 : 1, 1), List.of(runs.get(), effects()));
        assertTrue(proxy.order("state").startsWith("{\"hits\": 1,"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"before idem_begin_batch", "after INSERT INTO effect", "before commit"})
    void aLostConnectionLeavesOneEffect(String where) throws Exception {
        String[] fault = where.split(" ", 2);
        proxy.order("arm", fault[0], fault[1]);
        deliver(null, keys("1"));
        while (effects() == 0) { // the lost session may still own the message, which comes again
            deliver(null, keys("1"));
        }
        deliver(null, keys("1"));
        assertEquals(1, effects());
        assertTrue(proxy.order("state").startsWith("{\"hits\": 1,"));
    }
}
