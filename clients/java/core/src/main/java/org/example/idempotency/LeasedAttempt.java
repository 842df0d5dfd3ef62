package org.example.idempotency;

import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;

/** One leased attempt of this process. */
final class LeasedAttempt {
    /** How long a lost answer, or a network that hangs, may hold up the end. */
    private static final Duration END = Duration.ofSeconds(5);

    private final Idempotency client;
    private final Call call;
    private final Operation operation;
    private final long asked;
    /** Then an Unknown may be the work's, as of another operation: nobody knows what happened outside. */
    private boolean hasBegun;

    /** What a begin answered. The lease may run since it was asked, however long the answer took. */
    record Begun(Operation operation, long asked) { }

    LeasedAttempt(Idempotency client, Call call, Begun begun) {
        this.client = client;
        this.call = call;
        this.operation = begun.operation();
        this.asked = begun.asked();
    }

    <X extends Exception> Result run(LeasedWork<X> work, Reconciled.Finder finder) throws X {
        Completion completion;
        Heartbeat heartbeat = Heartbeat.start(client, call, operation, asked + operation.leaseLeft().toNanos());
        try (heartbeat) { // which is closed before what is caught
            completion = reconcileAndWork(heartbeat, work, finder);
        } catch (Declined refusal) {
            return refuse(refusal);
        } catch (Exception error) {
            if (!hasBegun || error instanceof IdempotencyException.NotDone) {
                release(error);
            }
            if (heartbeat.isLost()) {
                return replay(new IdempotencyException.LeaseLost(error), true);
            }
            throw error;
        }
        return complete(completion, heartbeat);
    }

    private <X extends Exception> Completion reconcileAndWork(Lease lease, LeasedWork<X> work, Reconciled.Finder finder) throws X {
        if (!operation.takenOver() || finder == null) {
            return begin(lease, work);
        }
        Reconciled found;
        try {
            found = finder.find(operation);
        } catch (Exception error) {
            throw new IdempotencyException.Unknown(Duration.ofSeconds(1), error);
        }
        if (found instanceof Reconciled.Done done) {
            return Completion.of(done.response());
        }
        if (found instanceof Reconciled.Unknown unknown) {
            throw new IdempotencyException.Unknown(unknown.retryAfter(), null);
        }
        return begin(lease, work);
    }

    /** The answer to the begin may come after the lease, and that of the finder, too. */
    private <X extends Exception> Completion begin(Lease lease, LeasedWork<X> work) throws X {
        if (lease.isLost()) {
            throw new IdempotencyException.LeaseLost(null);
        }
        hasBegun = true;
        return work.run(lease);
    }

    private Result complete(Completion completion, Heartbeat heartbeat) {
        Result result = Result.ran(operation, Outcome.COMPLETED, completion.response(), null);
        try {
            return store(result, heartbeat.isLost(), () -> completion.writes() != null ? completeWith(completion) : client.alone(limit(), c -> {
                client.statements().complete(c, call, operation.fence(), completion.response(), false);
                return null;
            }));
        } catch (Declined refusal) {
            return refuse(refusal);
        } catch (IdempotencyException.NotDone reason) {
            release(reason);
            throw reason;
        }
    }

    private Void completeWith(Completion completion) throws SQLException {
        Throwable[] failure = new Throwable[1];
        return client.<Void, SQLException>inTransaction(call, failure, c -> {
            client.<Void, SQLException>called(failure, () -> {
                completion.writes().run(WorkConnection.of(c));
                return null;
            });
            client.statements().complete(c, call, operation.fence(), completion.response(),
                    client.transactions() instanceof JdbcTransactions);
            return null;
        });
    }

    private Result refuse(Declined refusal) {
        Result result = Result.ran(operation, Outcome.FAILED, refusal.response(), refusal.retryAfter());
        Result stored = store(result, false, () -> client.alone(limit(), c -> {
            client.statements().fail(c, call, operation.fence(), refusal);
            return null;
        }));
        if (!stored.replayed()) {
            client.tell(Event.Type.DECLINED, call, operation.attempt(), null);
        }
        return stored;
    }

    /** Repeats an end by fence. If the attempt has ended already, what is stored is the answer. */
    private Result store(Result result, boolean isTold, Idempotency.Callable<Void, SQLException> end) {
        try {
            client.repeat(call, afterLoss -> end.call());
            return result;
        } catch (IdempotencyException.LeaseLost lost) {
            return replay(lost, isTold);
        } catch (SQLException error) {
            throw IdempotencyException.of(error);
        }
    }

    /** What is stored is the answer, whichever attempt has ended. The loss is thrown where there is no end yet, or the database does not say. */
    private Result replay(IdempotencyException.LeaseLost lost, boolean isTold) {
        Operation stored = stored();
        if (stored != null && !stored.createdAt().equals(operation.createdAt())) {
            stored = null; // the key was used anew, maybe for another request
        }
        boolean isOurs = stored != null && stored.attempt() == operation.attempt() && stored.outcome() != Outcome.IN_PROGRESS;
        if (!isOurs && !isTold) {
            client.tell(Event.Type.LEASE_LOST, call, operation.attempt(), lost);
        }
        if (stored == null || stored.outcome() != Outcome.COMPLETED && stored.outcome() != Outcome.FAILED) {
            throw lost;
        }
        client.tellBegun(stored);
        return Result.of(stored).asReplay();
    }

    /** Null where there is no record, or none could be read within the time of a lease: it may be the database that lost the lease. */
    private Operation stored() {
        try {
            return Heartbeat.within(call.lease().toNanos(), () -> client.lookup(call));
        } catch (ExecutionException | TimeoutException unknown) {
            return null;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return null;
        }
    }

    /** Takes the begin back. If that fails, the lease runs out: the same, only later. */
    private void release(Exception reason) {
        try {
            client.repeat(call, afterLoss -> client.alone(limit(), c -> {
                client.statements().release(c, operation);
                return null;
            }));
        } catch (IdempotencyException failure) {
            reason.addSuppressed(failure);
        }
    }

    private Duration limit() {
        return call.lease().plus(END);
    }
}
