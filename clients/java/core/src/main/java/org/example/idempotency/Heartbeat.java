package org.example.idempotency;

import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Extends a lease until it is stopped. When the lease is lost, it interrupts the thread that works:
 * when the server says so, or when the lease could not be extended before it ran out.
 */
final class Heartbeat implements Lease, AutoCloseable {
    private static final ExecutorService THREADS = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task, "idempotency-heartbeat");
        thread.setDaemon(true);
        return thread;
    });

    private final Idempotency client;
    private final Call call;
    private final Operation operation;
    private final Thread worker = Thread.currentThread();
    private final CountDownLatch stopped = new CountDownLatch(1);
    private volatile long until; // of System.nanoTime()
    private volatile boolean lost;
    private boolean interrupted;

    private Heartbeat(Idempotency client, Call call, Operation operation, long until) {
        this.client = client;
        this.call = call;
        this.operation = operation;
        this.until = until;
    }

    static Heartbeat start(Idempotency client, Call call, Operation operation, long until) {
        Heartbeat heartbeat = new Heartbeat(client, call, operation, until);
        THREADS.execute(heartbeat::beat);
        return heartbeat;
    }

    @Override
    public Operation operation() {
        return operation;
    }

    @Override
    public boolean isLost() {
        return lost || left() <= 0;
    }

    /** Whether the listener knows of the loss. */
    boolean hasTold() {
        return lost;
    }

    private long left() {
        return until - System.nanoTime();
    }

    /** An interrupt that came from here ends with the work. */
    @Override
    public synchronized void close() {
        stopped.countDown();
        if (interrupted) {
            Thread.interrupted();
        }
    }

    private synchronized void lose(Throwable error) {
        if (stopped.getCount() > 0) {
            lost = true;
            interrupted = true;
            worker.interrupt();
            client.tell(Event.Type.LEASE_LOST, call, operation.attempt(), error);
        }
    }

    /** A beat comes after a third of what is left, so one that failed is tried again sooner. */
    private void beat() {
        try {
            while (!stopped.await(left() / 3, TimeUnit.NANOSECONDS)) {
                try {
                    extend(left());
                } catch (IdempotencyException | TimeoutException error) {
                    if (error instanceof IdempotencyException.LeaseLost || left() <= 0) {
                        lose(error);
                        return;
                    }
                }
            }
        } catch (InterruptedException impossible) {
            Thread.currentThread().interrupt(); // nobody knows this thread
        }
    }

    /** Asks for a whole lease again, and gives up when the present one is over. */
    private void extend(long left) throws InterruptedException, TimeoutException {
        long asked = System.nanoTime();
        until = asked + within(left, () -> client.alone(Duration.ofNanos(left),
                connection -> client.statements().extend(connection, operation, call.lease()))).toNanos();
    }

    /** Asks the database on another thread, as a pool, or a network that hangs, may hold it up for longer. */
    static <T> T within(long nanos, Callable<T> question) throws InterruptedException, TimeoutException {
        Future<T> answer = THREADS.submit(question);
        try {
            return answer.get(nanos, TimeUnit.NANOSECONDS);
        } catch (ExecutionException error) {
            throw IdempotencyException.of(error.getCause());
        } finally {
            answer.cancel(true);
        }
    }
}
