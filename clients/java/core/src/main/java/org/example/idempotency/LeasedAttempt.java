package org.example.idempotency;

import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.TimeoutException;

/** One leased attempt of this process. */
final class LeasedAttempt {
    private static final Duration SECOND = Duration.ofSeconds(1);
    /** What is stored in place of an answer that cannot be. */
    private static final Response WITHOUT_ANSWER = Response.of(500, null);

    private final Idempotency client;
    private final Call call;
    private final Operation operation;
    private final Heartbeat heartbeat;
    /** Then an Unknown may be the work's, as of another operation: nobody knows what happened outside. */
    private boolean hasBegun;
    private boolean hasWritten;
    /** Meanwhile it is not: what has happened outside must not go unrecorded. */
    private boolean isInterruptedAtTheEnd;

    /** Until when the lease lasts is a time of System.nanoTime(). */
    LeasedAttempt(Idempotency client, Call call, Operation operation, long until) {
        this.client = client;
        this.call = call;
        this.operation = operation;
        heartbeat = Heartbeat.start(client, call, operation, until);
    }

    <X extends Exception> Result run(LeasedWork<X> work, Reconciled.Finder finder) throws X {
        try {
            return workAndEnd(work, finder);
        } finally {
            if (isInterruptedAtTheEnd) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private <X extends Exception> Result workAndEnd(LeasedWork<X> work, Reconciled.Finder finder) throws X {
        Completion completion;
        try (heartbeat) { // which is closed before what is caught
            completion = reconcileAndWork(work, finder);
        } catch (Declined refusal) {
            return refuse(refusal);
        } catch (IdempotencyException.NoAnswer done) {
            return withoutAnswer(done.retention(), done.writes(), (RuntimeException) done.getCause());
        } catch (Exception error) {
            if (!hasBegun || error instanceof IdempotencyException.NotDone) {
                release(error);
            }
            if (heartbeat.isLost()) {
                return replay(new IdempotencyException.LeaseLost(error));
            }
            throw error;
        }
        return finish(completion);
    }

    private <X extends Exception> Completion reconcileAndWork(LeasedWork<X> work, Reconciled.Finder finder) throws X {
        if (!operation.takenOver() || finder == null) {
            return begin(work);
        }
        Reconciled found;
        try {
            found = finder.find(operation);
        } catch (Exception error) {
            throw new IdempotencyException.Unknown(SECOND, error);
        }
        if (found instanceof Reconciled.Done done) {
            return Completion.of(done.response());
        }
        if (found instanceof Reconciled.NotDone) {
            return begin(work);
        }
        throw new IdempotencyException.Unknown(found instanceof Reconciled.Unknown unknown ? unknown.retryAfter() : SECOND, null);
    }

    /** The answer to the begin may come after the lease, and that of the finder, too. */
    private <X extends Exception> Completion begin(LeasedWork<X> work) throws X {
        if (heartbeat.isLost()) {
            throw new IdempotencyException.LeaseLost(null);
        }
        hasBegun = true;
        return work.run(heartbeat);
    }

    /** The stored answer. Throws Unstorable where there is none. */
    static Result known(Operation o) {
        if (o.outcome() == Outcome.COMPLETED && WITHOUT_ANSWER.equals(o.response())) {
            throw new IdempotencyException.Unstorable();
        }
        return Result.of(o);
    }

    /** Ends what was done. What the finder has found and cannot be stored, it is asked for again. */
    private Result finish(Completion completion) {
        try {
            return complete(completion);
        } catch (RuntimeException error) {
            if (!hasBegun || hasWritten || !isOfAnswer(error)) {
                throw error;
            }
            Response answer = completion == null ? null : completion.response();
            return withoutAnswer(answer == null ? null : answer.retention(), completion == null ? null : completion.writes(),
                    error);
        }
    }

    /** Whether an answer cannot be stored: there is none, or the server cannot read it, or it is more than it holds. */
    private static boolean isOfAnswer(RuntimeException error) {
        String state = IdempotencyException.sqlState(error);
        return error instanceof IdempotencyException.TooLarge || error instanceof IdempotencyException.BadArgument
                || state.startsWith("22") || state.startsWith("54") || error instanceof IllegalArgumentException
                || IdempotencyException.has(NullPointerException.class, error);
    }

    /**
     * Ends work with its writes, so that no attempt repeats it. Throws what was wrong with its answer, unless another end is
     * stored: that of the writes, or of who had the lease meanwhile.
     */
    private Result withoutAnswer(Duration retention, Completion.Writes writes, RuntimeException wrong) {
        Result result;
        try {
            result = complete(new Completion(new Response(WITHOUT_ANSWER.code(), null, null, null,
                    Durations.positiveOrNull(retention)), writes));
        } catch (IdempotencyException.NotDone reason) {
            throw reason;
        } catch (RuntimeException failure) {
            throw wrong;
        }
        if (result.outcome() == Outcome.COMPLETED && !result.replayed()) {
            throw wrong;
        }
        return result;
    }

    private Result complete(Completion completion) {
        Result result = Result.ran(operation, Outcome.COMPLETED, completion.response(), null);
        try {
            return store(result, () -> completion.writes() != null ? completeWith(completion) : client.alone(call.patience(), c -> {
                client.statements().complete(c, call, operation.fence(), completion.response(), "");
                return null;
            }));
        } catch (Declined refusal) {
            return refuse(refusal);
        } catch (IdempotencyException.NoAnswer done) {
            return withoutAnswer(done.retention(), null, (RuntimeException) done.getCause());
        } catch (IdempotencyException.NotDone reason) {
            release(reason);
            throw reason;
        }
    }

    /** The end comes first: a stale fence is refused before anything is written. */
    private Void completeWith(Completion completion) throws SQLException {
        Throwable[] failure = new Throwable[1];
        return client.<Void, SQLException>inTransaction(call, failure, c -> {
            client.statements().complete(c, call, operation.fence(), completion.response(), Statements.SAVEPOINT);
            hasWritten = true;
            client.<Void, SQLException>called(failure, () -> {
                completion.writes().run(WorkConnection.of(c));
                return null;
            });
            client.statements().releaseSavepoint(c, client.commit());
            return null;
        });
    }

    /** Who declines has done the work, too, also where the refusal cannot be stored. */
    private Result refuse(Declined refusal) {
        try {
            return storeRefusal(refusal);
        } catch (RuntimeException error) {
            if (!isOfAnswer(error)) {
                throw error;
            }
            return withoutAnswer(refusal.response().retention(), null, error);
        }
    }

    private Result storeRefusal(Declined refusal) {
        Result result = Result.ran(operation, Outcome.FAILED, refusal.response(), refusal.retryAfter());
        Result stored = store(result, () -> client.alone(call.patience(), c -> {
            client.statements().fail(c, call, operation.fence(), refusal);
            return null;
        }));
        if (!stored.replayed()) {
            client.tell(Event.Type.DECLINED, call, operation.attempt(), null);
        }
        return stored;
    }

    /** Repeats an end by fence. If the attempt has ended already, what is stored is the answer. */
    private Result store(Result result, Idempotency.Callable<Void, SQLException> end) {
        try {
            repeat(end);
            return result;
        } catch (IdempotencyException.LeaseLost | IdempotencyException.NotOwned lost) {
            return replay(lost);
        } catch (SQLException error) {
            throw IdempotencyException.of(error);
        }
    }

    /** What is stored is the answer, whichever attempt has ended. The loss is thrown where there is no end yet, or the database does not say. */
    private Result replay(IdempotencyException lost) {
        Operation stored = stored();
        if (stored != null && !stored.createdAt().equals(operation.createdAt())) {
            stored = null; // the key was used anew, maybe for another request
        }
        boolean isOurs = stored != null && stored.attempt() == operation.attempt() && stored.outcome() != Outcome.IN_PROGRESS;
        if (!isOurs && lost instanceof IdempotencyException.LeaseLost && !heartbeat.hasTold()) {
            client.tell(Event.Type.LEASE_LOST, call, operation.attempt(), lost);
        }
        if (stored == null || stored.outcome() != Outcome.COMPLETED && stored.outcome() != Outcome.FAILED) {
            throw lost;
        }
        client.tellBegun(stored);
        return known(stored);
    }

    /** Null where there is no record, or none could be read within the time of a lease: it may be the database that lost the lease. */
    private Operation stored() {
        try {
            return Heartbeat.within(call.lease().toNanos(), () -> client.lookup(call));
        } catch (IdempotencyException | TimeoutException unknown) {
            return null;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return null;
        }
    }

    /** Takes the begin back. If that fails, the lease runs out: the same, only later. */
    private void release(Exception reason) {
        try {
            repeat(() -> client.alone(call.patience(), c -> {
                client.statements().release(c, operation);
                return null;
            }));
        } catch (IdempotencyException failure) {
            reason.addSuppressed(failure);
        }
    }

    /** Once more where somebody interrupts the thread: pools heed that, and sockets of virtual threads. */
    private <X extends Exception> void repeat(Idempotency.Callable<Void, X> end) throws X {
        for (int n = 1;; n++) {
            isInterruptedAtTheEnd |= Thread.interrupted();
            try {
                client.repeat(call, afterLoss -> end.call());
                return;
            } catch (Exception error) {
                if (!Thread.currentThread().isInterrupted() || n == client.options().attempts()) {
                    throw error;
                }
            }
        }
    }
}
