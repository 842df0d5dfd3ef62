package org.example.idempotency.servlet;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.postgresql.PGConnection;

/** When the time of a handler is over, its statement is cancelled and its thread interrupted. */
final class TimeLimit {
    private static final System.Logger LOG = System.getLogger(TimeLimit.class.getName());
    /** Few are ever late at once; a network that hangs holds up the others for the time that the driver gives a cancel request. */
    private static final ScheduledThreadPoolExecutor CLOCK = new ScheduledThreadPoolExecutor(2, task -> {
        Thread thread = new Thread(task, "idempotency-time-limit");
        thread.setDaemon(true);
        return thread;
    });

    static {
        CLOCK.setRemoveOnCancelPolicy(true);
        CLOCK.setKeepAliveTime(1, TimeUnit.SECONDS); // a program that its container starts anew leaves none behind
        CLOCK.allowCoreThreadTimeOut(true);
    }

    private final Thread worker = Thread.currentThread();
    private final Connection connection;
    private boolean isEnded;
    private boolean isOver;

    /** The handler gave no answer in time: all is rolled back, or its lease runs out. */
    static final class Over extends CancellationException {
        /** What the handler threw is no cause: a conflict would be repeated. */
        Over(Throwable thrown) {
            super("the handler took too long");
            if (thrown != null) {
                addSuppressed(thrown);
            }
        }
    }

    /** What has a time limit. */
    @FunctionalInterface
    interface Handler {
        void run() throws Exception;
    }

    private TimeLimit(Connection connection) {
        this.connection = connection;
    }

    /** Runs a handler; zero: without a limit. Whatever it gave or threw behind its time is an Over. */
    static void run(Duration limit, Connection connection, Handler handler) throws Exception {
        if (limit.isZero()) {
            handler.run();
            return;
        }
        TimeLimit time = new TimeLimit(connection);
        var alarm = CLOCK.schedule(time::ring, limit.toMillis(), TimeUnit.MILLISECONDS);
        Throwable thrown = null;
        try {
            handler.run();
        } catch (Throwable error) {
            thrown = error;
            throw error;
        } finally {
            alarm.cancel(false);
            if (time.end()) {
                throw new Over(thrown);
            }
        }
    }

    /** An interrupt that came from here ends with the handler. No cancel request goes out behind this. */
    private synchronized boolean end() {
        isEnded = true;
        if (isOver) {
            Thread.interrupted();
        }
        return isOver;
    }

    private synchronized void ring() {
        if (isEnded) {
            return;
        }
        isOver = true;
        worker.interrupt();
        try {
            if (connection != null && connection.isWrapperFor(PGConnection.class)) {
                connection.unwrap(PGConnection.class).cancelQuery();
            }
        } catch (SQLException error) {
            LOG.log(System.Logger.Level.WARNING, "the statement of a handler that took too long could not be cancelled", error);
        }
    }
}
