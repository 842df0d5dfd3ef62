package org.example.idempotency;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Predicate;

/**
 * Runs operations once, in one database. It is safe for use by many threads.
 *
 * <pre>{@code
 * var once = new Idempotency(Transactions.of(dataSource), Options.DEFAULT);
 * Result result = once.transaction(Call.of(key).withRequest(json), (connection, operation) -> {
 *     insert(connection, payment);
 *     return Response.of(201, answer);
 * });
 * }</pre>
 */
public final class Idempotency {
    private static final System.Logger LOG = System.getLogger(Idempotency.class.getName());
    private static final Duration LONGEST_POLL = Duration.ofMillis(500);
    /** More connections than a pool has, so that a server that was started again does not use the attempts up. */
    private static final int MAX_DEAD = 100;

    private final Transactions transactions;
    private final Options options;
    private final Statements statements;

    /**
     * A client.
     *
     * @param transactions how transactions are opened
     * @param options the settings
     */
    public Idempotency(Transactions transactions, Options options) {
        this(transactions, options, new Statements(options.schema()));
    }

    private Idempotency(Transactions transactions, Options options, Statements statements) {
        this.transactions = transactions;
        this.options = options;
        this.statements = statements;
    }

    /**
     * A client for tests that keeps nothing, on any database, without the extension: work runs each time
     * it is called, in a transaction or under a lease as usual, and what it throws means the same.
     * Nothing is replayed, compared or in progress, and {@link #lookup} finds nothing.
     *
     * @param transactions how transactions are opened
     * @param options the settings
     * @return the client. It warns in the log that it is off
     */
    public static Idempotency off(Transactions transactions, Options options) {
        LOG.log(System.Logger.Level.WARNING, "idempotency is off: work runs as often as it is called, and no answer is stored");
        return new Idempotency(transactions, options, new NoStatements());
    }

    /** {@return the settings of the client} */
    public Options options() {
        return options;
    }

    /** {@return how the client opens transactions} */
    public Transactions transactions() {
        return transactions;
    }

    /**
     * Runs the work at most once for the key, in one transaction with the record of its answer.
     * 40001, 40P01 and a lost connection repeat the whole, work included, unless the work throws NotDone
     * or a CancellationException; after the last attempt the exception is thrown.
     *
     * @param <X> what the work may throw
     * @param call the key and what belongs to it
     * @param work the work
     * @return the work's answer or the stored one, a refusal included; in progress while somebody
     *     else owns the operation; failed where too many attempts were lost
     * @throws X what the work has thrown: everything is rolled back, and nothing is stored
     * @throws IdempotencyException what was wrong with the call or the database
     */
    public <X extends Exception> Result transaction(Call call, Work<X> work) throws X {
        Call full = call.over(options);
        Result result = await(full.maxWait(), Result::outcome,
                () -> repeat(full, afterLoss -> transact(full, work, afterLoss)));
        if (result.outcome() == Outcome.IN_PROGRESS) {
            tell(Event.Type.IN_PROGRESS, full, result.attempt(), null);
        }
        return result;
    }

    /**
     * Runs work that cannot sit in one transaction, under a lease. No connection is held meanwhile:
     * a heartbeat extends the lease on connections of its own, at each third of it.
     *
     * <p>The answer and its writes commit together, under the fence of the attempt. If that is
     * refused because the attempt has ended already, as after an answer that was lost, the stored
     * answer is returned. So it is where the lease was lost and another attempt has ended, whatever the work throws.
     *
     * <p>An answer that cannot be stored ends the operation without one, and with the writes: no attempt repeats it. So does
     * such a {@link Declined}, without writes. This call throws what was wrong, and calls after it Unstorable. After such an answer of a function the lease runs out.
     *
     * @param <X> what the work may throw
     * @param call the key and what belongs to it
     * @param work the work
     * @return as of {@link #transaction}
     * @throws X what the work has thrown: the lease runs out, and the next attempt takes over
     * @throws IdempotencyException as of {@link #transaction}, and LeaseLost, Unknown, Unstorable, NotDone
     */
    public <X extends Exception> Result lease(Call call, LeasedWork<X> work) throws X {
        return lease(call, work, null);
    }

    /**
     * Runs work under a lease; what an attempt did whose lease ran out, a function finds out.
     *
     * @param <X> what the work may throw
     * @param call the key and what belongs to it
     * @param work the work
     * @param finder is asked in place of the work, where an earlier attempt's lease ran out
     * @return as of {@link #transaction}
     * @throws X what the work has thrown: the lease runs out, and the next attempt takes over
     * @throws IdempotencyException as of {@link #transaction}, and LeaseLost, Unknown, Unstorable, NotDone
     */
    public <X extends Exception> Result lease(Call call, LeasedWork<X> work, Reconciled.Finder finder) throws X {
        transactions.requireNone();
        Call full = call.over(options);
        long[] asked = new long[1]; // the lease may run since then, however long the answer took
        Operation o = await(full.maxWait(), Operation::outcome, () -> repeat(full, afterLoss -> {
            asked[0] = System.nanoTime();
            return alone(full.patience(), c -> began(full, () -> statements.begin(c, full, full.lease(), Duration.ZERO)));
        }));
        tellBegun(o);
        return o.outcome() == Outcome.ACQUIRED
                ? new LeasedAttempt(this, full, o, asked[0] + o.leaseLeft().toNanos()).run(work, finder)
                : LeasedAttempt.known(o);
    }

    /**
     * Leaves a note of how far the work of a lease came. It is stored when this returns, and repeated
     * as a transaction is. If the lease runs out, the next owner gets it as the payload of its
     * operation's response, where {@code takenOver} is true.
     *
     * @param operation what the work was given
     * @param note JSON, which takes the place of the note before
     * @throws IdempotencyException LeaseLost where somebody else owns the operation; TooLarge; what was
     *     wrong with the note or the database
     */
    public void progress(Operation operation, String note) {
        if (note == null) {
            throw new IllegalArgumentException("a note is JSON, and not null");
        }
        Call call = Call.of(operation.key()).withScope(operation.scope()).over(options);
        this.<Void, IdempotencyException>repeat(call, afterLoss -> alone(call.patience(), c -> {
            statements.progress(c, operation, note);
            return null;
        }));
    }

    /**
     * Runs work in one transaction in which it begins and completes many operations, such as the
     * messages of one delivery. It is repeated as {@link #transaction} is; but if it has acquired none, not
     * where the answer to COMMIT is lost, as its writes might be made twice.
     *
     * @param <T> what the work returns
     * @param <X> what the work may throw
     * @param scope the name space of the keys; null: that of the client
     * @param work the work. It completes what it acquires, or throws
     * @return what the work returned, after the commit
     * @throws X what the work has thrown: everything is rolled back, and nothing is stored
     * @throws IdempotencyException NotEnded where an operation was begun and not completed; NotOwned where the work has ended
     *     the transaction; what was wrong with a call or the database
     */
    public <T, X extends Exception> T batch(String scope, Batch.Work<T, X> work) throws X {
        Call call = Call.of(null).withScope(scope).over(options);
        boolean[] isUnknown = new boolean[1]; // what became of a COMMIT without an answer
        return this.<T, X>repeat(call, error -> isUnknown[0] && !IdempotencyException.isConflict(IdempotencyException.sqlState(error)), afterLoss -> {
            Throwable[] failure = new Throwable[1];
            isUnknown[0] = false;
            return inTransaction(call, failure, connection -> {
                statements.setSavepoint(connection);
                Batch batch = new Batch(this, connection, call.scope());
                T value = called(failure, () -> work.run(batch));
                statements.releaseSavepoint(connection, "");
                isUnknown[0] = !batch.hasAcquired();
                return value;
            });
        });
    }

    /**
     * Reads the record of a key.
     *
     * @param call the key and its scope
     * @return the operation; null: there is no record
     * @throws IdempotencyException what was wrong with the call or the database
     */
    public Operation lookup(Call call) {
        Call full = call.over(options);
        return repeat(full, afterLoss -> alone(full.patience(), c -> statements.lookup(c, full)));
    }

    // ---- one transaction ----

    private <X extends Exception> Result transact(Call call, Work<X> work, boolean afterLoss) throws X {
        Throwable[] failure = new Throwable[1];
        try {
            return inTransaction(call, failure, connection -> {
                Operation o = begin(connection, call, afterLoss);
                if (o.outcome() != Outcome.ACQUIRED) {
                    return Result.of(o);
                }
                Response response = workOn(connection, o, failure, work);
                statements.complete(connection, call, 0, response, commit());
                return Result.ran(o, Outcome.COMPLETED, response, null);
            });
        } catch (Declined refusal) {
            return refuse(call, refusal);
        }
    }

    /** Frameworks commit themselves. */
    String commit() {
        return transactions instanceof JdbcTransactions ? Statements.COMMIT : "";
    }

    private <X extends Exception> Response workOn(Connection connection, Operation o, Throwable[] failure,
            Work<X> work) throws X {
        try {
            return called(failure, () -> work.run(WorkConnection.of(connection), o));
        } catch (Declined | IdempotencyException.NotDone reason) {
            undo(connection, o);
            throw reason;
        }
    }

    /** Work that refuses has come to its end: its rollback must not bring the operation nearer to max_lost_attempts. */
    private void undo(Connection connection, Operation o) {
        try {
            statements.undo(connection, o);
        } catch (SQLException gone) {
            LOG.log(System.Logger.Level.DEBUG, "a begin could not be taken back before its rollback", gone);
        }
    }

    /**
     * Stores a refusal in a transaction of its own, as that of the work is gone: a framework may
     * have marked it, or an ORM may still have what it would write.
     */
    private Result refuse(Call call, Declined refusal) {
        Result result = inTransaction(call, new Throwable[1], connection -> {
            Operation o = begin(connection, call, true);
            if (o.outcome() != Outcome.ACQUIRED) {
                return Result.of(o);
            }
            statements.fail(connection, call, 0, refusal);
            return Result.ran(o, Outcome.FAILED, refusal.response(), refusal.retryAfter());
        });
        if (!result.replayed() && result.outcome() == Outcome.FAILED) {
            tell(Event.Type.DECLINED, call, result.attempt(), null);
        }
        return result;
    }

    /** After a lost connection the session that it belonged to may still be ending: so the begin waits for it a little. */
    private Operation begin(Connection connection, Call call, boolean afterLoss) {
        Operation o = began(call, () -> statements.begin(connection, call, null, afterLoss ? options.cap() : Duration.ZERO));
        if (o.outcome() != Outcome.IN_PROGRESS) {
            tellBegun(o);
        }
        return o;
    }

    private Operation began(Call call, Callable<Operation, SQLException> begin) {
        try {
            return begin.call();
        } catch (SQLException error) {
            IdempotencyException known = IdempotencyException.ofBegin(error);
            if (known instanceof IdempotencyException.KeyReused) {
                tell(Event.Type.MISMATCH, call, 0, known);
            }
            throw IdempotencyException.onArrival(known);
        }
    }

    /** Calls what is the caller's, and writes what its framework held back. Notes what they threw: that is thrown as it is. */
    <T, X extends Exception> T called(Throwable[] failure, Callable<T, X> body) throws X {
        try {
            T value = body.call();
            transactions.flush();
            return value;
        } catch (Throwable error) {
            failure[0] = error;
            throw error;
        }
    }

    /** As the one of java.util.concurrent, with the exception's type. */
    @FunctionalInterface
    interface Callable<T, X extends Exception> {
        T call() throws X;
    }

    /** Runs a body; an exception of the database that is not the one of the caller's code becomes one of this package. */
    <T, X extends Exception> T inTransaction(Call call, Throwable[] failure, Transactions.Body<T> body) throws X {
        boolean[] isOpen = new boolean[1];
        try {
            return transactions.run(call.isolation(), connection -> {
                isOpen[0] = true;
                return body.run(connection);
            });
        } catch (Exception error) {
            if (error != failure[0] && IdempotencyException.has(SQLException.class, error)) {
                IdempotencyException known = IdempotencyException.of(error);
                // The isolation level is the first that is asked for; without one it was the pool that had no connection.
                throw isOpen[0] || call.isolation() == 0 ? known : IdempotencyException.onArrival(known);
            }
            throw Idempotency.<X>asThrown(error);
        }
    }

    /** The exception came from code that may throw X and no other checked one. */
    @SuppressWarnings("unchecked")
    private static <X extends Exception> X asThrown(Exception error) {
        return (X) error;
    }

    // ---- statements of a lease ----

    Statements statements() {
        return statements;
    }

    /** Runs one statement on a connection of its own, whose network may hang no longer than the limit. */
    <T> T alone(Duration limit, Transactions.Body<T> body) {
        try (Connection connection = transactions.dataSource().getConnection()) {
            boolean autoCommit = JdbcTransactions.requireFree(connection);
            int usual = connection.getNetworkTimeout();
            connection.setNetworkTimeout(Runnable::run, (int) Math.min(Math.max(limit.toMillis(), 1), Integer.MAX_VALUE));
            try {
                return body.run(connection);
            } finally {
                restore(connection, usual, autoCommit);
            }
        } catch (IllegalArgumentException wrong) {
            throw wrong; // a time that the program has given
        } catch (Exception error) {
            throw IdempotencyException.of(error);
        }
    }

    /** Not every pool does so. A connection that refuses is lost, as the statement has said already. */
    private static void restore(Connection connection, int networkTimeout, boolean autoCommit) {
        try {
            connection.setNetworkTimeout(Runnable::run, networkTimeout);
            connection.setAutoCommit(autoCommit);
        } catch (SQLException lost) {
            LOG.log(System.Logger.Level.DEBUG, "a connection could not be given back as it was", lost);
        }
    }

    // ---- repetition ----

    /** One attempt at a call. */
    @FunctionalInterface
    interface Attempt<T, X extends Exception> {
        T run(boolean afterLoss) throws X;
    }

    /**
     * Makes attempts until one does not fail with 40001, 40P01 or a lost connection. Of a connection
     * that was dead when it came from the pool nothing was asked, so it is no attempt. NotDone and a
     * CancellationException are never repeated, whatever their cause is.
     */
    <T, X extends Exception> T repeat(Call call, Attempt<T, X> attempt) throws X {
        return repeat(call, error -> false, attempt);
    }

    private <T, X extends Exception> T repeat(Call call, Predicate<Exception> isLast, Attempt<T, X> attempt) throws X {
        boolean afterLoss = false;
        int dead = 0;
        for (int n = 1;; n++) {
            try {
                return attempt.run(afterLoss);
            } catch (Exception error) {
                if (error instanceof IdempotencyException.NotDone || error instanceof CancellationException
                        || !IdempotencyException.isTransient(error) || isLast.test(error)) {
                    throw error;
                }
                afterLoss |= !IdempotencyException.isConflict(IdempotencyException.sqlState(error));
                if (error instanceof IdempotencyException.ConnectionLost lost && lost.takeOnArrival() && dead < MAX_DEAD) {
                    dead++;
                    n--;
                    continue;
                }
                if (n >= options.attempts()) {
                    throw error;
                }
                Duration delay = backoff(n);
                tell(new Event(Event.Type.RETRIED, call.scope(), call.key(), 0, error, delay));
                if (!sleep(delay)) {
                    throw error;
                }
            }
        }
    }

    private Duration backoff(int attempt) {
        double grown = Math.scalb((double) options.base().toNanos(), attempt - 1);
        long longest = (long) Math.min(grown, options.cap().toNanos());
        return Duration.ofNanos(ThreadLocalRandom.current().nextLong(longest + 1));
    }

    /** False where the thread is interrupted, as it stays. */
    private static boolean sleep(Duration delay) {
        try {
            TimeUnit.NANOSECONDS.sleep(delay.toNanos());
            return true;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /**
     * Asks again until the operation is not in progress, or the time to wait is over. It waits here: a
     * begin that waits in the server would hold a connection, which the owner may need for its end.
     */
    private static <T, X extends Exception> T await(Duration wait, Function<T, Outcome> outcomeOf,
            Callable<T, X> ask) throws X {
        long start = System.nanoTime();
        for (Duration delay = Duration.ofMillis(50);; delay = delay.multipliedBy(2)) {
            T answer = ask.call();
            Duration left = wait.minusNanos(System.nanoTime() - start);
            if (outcomeOf.apply(answer) != Outcome.IN_PROGRESS || left.isNegative() || left.isZero()) {
                return answer;
            }
            delay = shorter(delay, LONGEST_POLL);
            if (!sleep(shorter(delay, left))) {
                return answer;
            }
        }
    }

    private static Duration shorter(Duration a, Duration b) {
        return a.compareTo(b) < 0 ? a : b;
    }

    // ---- events ----

    /** What a listener throws may not end an operation between its steps. */
    private void tell(Event event) {
        try {
            options.listener().accept(event);
        } catch (RuntimeException failure) {
            LOG.log(System.Logger.Level.WARNING, "the listener failed at " + event.type(), failure);
        }
    }

    void tell(Event.Type type, Call call, int attempt, Throwable error) {
        tell(new Event(type, call.scope(), call.key(), attempt, error, null));
    }

    void tellBegun(Operation o) {
        Event.Type type = switch (o.outcome()) {
            case ACQUIRED -> Event.Type.ACQUIRED;
            case IN_PROGRESS -> Event.Type.IN_PROGRESS;
            case MISMATCH -> Event.Type.MISMATCH;
            default -> Event.Type.REPLAYED;
        };
        tell(new Event(type, o.scope(), o.key(), o.attempt(), null, null));
        if (type == Event.Type.ACQUIRED && o.takenOver()) {
            tell(new Event(Event.Type.TAKEN_OVER, o.scope(), o.key(), o.attempt(), null, null));
        }
    }
}
