package org.example.idempotency;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.time.Duration;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.postgresql.ds.PGSimpleDataSource;

/** How long a lease is kept, and who learns that it is lost. */
@Timeout(60)
class LeaseLossTest extends OnServer {
    @Test
    void thePolicysLeaseIsKeptAlive() throws Exception {
        sql("SELECT idem_set_policy('short', max_lease => '5 seconds')");
        Result result = once.lease(Call.of(key).withScope("short"), lease -> {
            Thread.sleep(6000);
            assertTrue(isLeased());
            assertFalse(lease.isLost());
            return done();
        });
        assertFalse(result.replayed());
        assertEquals(1, effects());
        assertFalse(events.contains(Event.Type.LEASE_LOST));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aNetworkThatHangsOrAPoolThatHasNothingLosesTheLeaseInTime(boolean isPool) throws Exception {
        pool.setMaximumPoolSize(1);
        long start = System.nanoTime();
        var lost = assertThrows(IdempotencyException.LeaseLost.class,
                () -> once.lease(Call.of(key).withLease(Duration.ofSeconds(1)), lease -> {
                    if (isPool) {
                        pool.getConnection();
                    } else {
                        proxy.order("hang");
                    }
                    new CountDownLatch(1).await();
                    return done();
                }));
        Duration took = Duration.ofNanos(System.nanoTime() - start);
        assertTrue(took.compareTo(Duration.ofSeconds(5)) < 0, took::toString);
        assertTrue(lost.getCause() instanceof InterruptedException);
        assertFalse(Thread.currentThread().isInterrupted());
        assertTrue(events.contains(Event.Type.LEASE_LOST));
    }

    /** Of each answer that another attempt gave meanwhile, and of work that ends as if nothing were, or heeds the interrupt. */
    @ParameterizedTest
    @CsvSource(delimiter = '!', value = {"idem_complete(o, '1') ! done", "idem_fail(o, '1') ! declined", "idem_extend(o, '1 minute') ! done",
        "idem_release(o) ! done", "idem_complete(o, '1') ! interrupted", "idem_fail(o, '1') ! not done",
        "idem_extend(o, '1 minute') ! interrupted", "idem_release(o) ! not done", "idem_complete(o, '1') ! declined late"})
    void whoWasTakenOverGetsTheAnswerOfTheOtherIfThereIsOne(String end, String how) throws Exception {
        LeasedWork<Exception> overtaken = lease -> {
            sql("UPDATE idempotency_store SET lease_expires_at = clock_timestamp() WHERE idempotency_key = '" + key + "'",
                    "SELECT " + end + " FROM idem_begin('" + key + "', lease => '1 minute') o");
            try {
                if (!how.equals("done") && !how.equals("declined")) {
                    new CountDownLatch(1).await();
                }
            } catch (InterruptedException loss) {
                if (how.equals("interrupted")) {
                    throw loss;
                } else if (how.equals("not done")) {
                    throw new IdempotencyException.NotDone(loss);
                }
            }
            if (how.startsWith("declined")) {
                throw new Declined(402, null);
            }
            return done();
        };
        Call call = Call.of(key).withLease(Duration.ofSeconds(1));
        if (end.endsWith("'1')")) {
            Result other = once.lease(call, overtaken);
            assertEquals("1", other.response().payload());
            assertTrue(other.replayed());
            assertTrue(events.contains(Event.Type.REPLAYED));
        } else {
            var lost = assertThrows(IdempotencyException.LeaseLost.class, () -> once.lease(call, overtaken));
            assertTrue(how.equals("done") ? "ID409".equals(IdempotencyException.sqlState(lost))
                    : IdempotencyException.has(InterruptedException.class, lost), lost::toString);
        }
        assertFalse(Thread.interrupted());
        assertFalse(events.contains(Event.Type.DECLINED));
        assertEquals(1, Collections.frequency(events, Event.Type.LEASE_LOST));
        assertEquals(0, effects());
    }

    /** The record has gone since, by its expiry or by idem_forget. */
    @Test
    void aLostLeaseGetsNoAnswerOfAnotherOperationWithItsKey() {
        assertThrows(IdempotencyException.LeaseLost.class, () -> once.lease(Call.of(key).withRequest("\"mine\""), lease -> {
            sql("DELETE FROM idempotency_store WHERE idempotency_key = '" + key + "'");
            once.lease(Call.of(key).withRequest("\"another\""), other -> done());
            return done();
        }));
    }

    /** The pool had no connection for so long. */
    @Test
    void noWorkBeginsAfterTheLease() {
        var slow = (DataSource) java.lang.reflect.Proxy.newProxyInstance(DataSource.class.getClassLoader(), new Class<?>[] {DataSource.class},
                (self, method, arguments) -> {
                    LockSupport.parkNanos(Duration.ofMillis(600).toNanos());
                    return method.invoke(pool, arguments);
                });
        var client = new Idempotency(Transactions.of(slow), once.options());
        assertThrows(IdempotencyException.LeaseLost.class, () -> client.lease(Call.of(key).withLease(Duration.ofMillis(500)), lease -> {
            throw new AssertionError("the work has begun");
        }));
        assertNull(once.lookup(Call.of(key)));
    }

    @Test
    void aLeaseThatIsOverBeforeItsBeginIsAnsweredIsLostAndNoConnectionIs() throws Exception {
        var client = new Idempotency(Transactions.of(pool), once.options().withLease(Duration.ofNanos(1000)));
        assertThrows(IdempotencyException.LeaseLost.class, () -> client.lease(Call.of(key), lease -> {
            throw new AssertionError("the work has begun");
        }));
        assertNull(client.lookup(Call.of(key)));
        once.lease(Call.of(key), lease -> {
            client.progress(lease.operation(), "1");
            return done();
        });
    }

    /** The work does not heed the interrupt, which ends with it. */
    @Test
    void aLossIsToldOnceAndBeforeTheLeaseIsOver() throws Exception {
        long start = System.nanoTime();
        assertThrows(IdempotencyException.LeaseLost.class, () -> once.lease(Call.of(key).withLease(Duration.ofSeconds(6)), lease -> {
            sql("SELECT idem_release('" + key + "', fence => " + lease.operation().fence() + ")");
            while (System.nanoTime() - start < Duration.ofSeconds(4).toNanos()) { // the next beat would come within
                LockSupport.parkNanos(10_000_000);
            }
            assertTrue(lease.isLost());
            return done();
        }));
        assertFalse(Thread.interrupted());
        assertEquals(1, Collections.frequency(events, Event.Type.LEASE_LOST));
        assertEquals(0, effects());
    }

    @Test
    void anInterruptOfTheWorksOwnStaysAndNoneComesBehindIt() throws Exception {
        var plain = new PGSimpleDataSource(); // a pool would not wait for a connection
        plain.setUrl(proxy.url());
        var client = new Idempotency(Transactions.of(plain), once.options());
        client.lease(Call.of(key).withLease(Duration.ofSeconds(1)), lease -> {
            Thread.currentThread().interrupt();
            return done();
        });
        assertTrue(Thread.interrupted());
        Thread.sleep(700); // a beat would come after a third of a second, and lose
        assertFalse(events.contains(Event.Type.LEASE_LOST));
    }

    @Test
    void aBeatThatIsUnderWayWhenTheWorkEndsLosesNothing() throws Exception {
        IOException broken = new IOException();
        assertSame(broken, assertThrows(IOException.class, () -> once.lease(Call.of(key).withLease(Duration.ofSeconds(1)), lease -> {
            proxy.order("hang");
            Thread.sleep(500); // the first beat has come
            throw broken;
        })));
        Thread.sleep(700); // its time is over
        assertFalse(events.contains(Event.Type.LEASE_LOST));
    }
}
