package org.example.idempotency;

import java.net.SocketTimeoutException;
import java.sql.SQLException;
import java.sql.SQLNonTransientConnectionException;
import java.sql.SQLRecoverableException;
import java.sql.SQLTransientConnectionException;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.function.Function;

/**
 * What may go wrong. Each is found by its SQLSTATE, never by a message; the driver's exception is
 * the cause. Of one about data that the server cannot read (22xxx), the cause has the first line and
 * the SQLSTATE: below, the server quotes the data.
 */
public abstract sealed class IdempotencyException extends RuntimeException {
    private IdempotencyException(String message, Throwable cause) {
        super(message, cause);
    }

    /** An argument is missing, too long, out of range or no JSON (ID400, and data that the server cannot read). */
    public static final class BadArgument extends IdempotencyException {
        BadArgument(Throwable cause) {
            super("bad argument", cause);
        }
    }

    /** The role may not use the scope (ID403). */
    public static final class Forbidden extends IdempotencyException {
        Forbidden(Throwable cause) {
            super("the role may not use this scope", cause);
        }
    }

    /** This transaction does not own the operation (ID404): the work ended the transaction, or the operation, itself. */
    public static final class NotOwned extends IdempotencyException {
        NotOwned(Throwable cause) {
            super("the transaction does not own the operation", cause);
        }
    }

    /** The lease was lost (ID409, or it could not be extended in time). */
    public static final class LeaseLost extends IdempotencyException {
        LeaseLost(Throwable cause) {
            super("the lease was lost", cause);
        }
    }

    /** The answer is larger than the server stores (ID413). */
    public static final class TooLarge extends IdempotencyException {
        TooLarge(Throwable cause) {
            super("the response is too large", cause);
        }
    }

    /** The key was used before with a different request (ID422). */
    public static final class KeyReused extends IdempotencyException {
        KeyReused(Throwable cause) {
            super("the key was used before with a different request", cause);
        }
    }

    /** COMMIT was refused, as the work began an operation and did not end it (ID428). */
    public static final class NotEnded extends IdempotencyException {
        NotEnded(Throwable cause) {
            super("an operation was begun and not ended", cause);
        }
    }

    /** The extension, its schema or the right to use it is missing. The message says what to do. */
    public static final class NotReady extends IdempotencyException {
        NotReady(String advice, Throwable cause) {
            super(advice, cause);
        }
    }

    /** The transaction was rolled back at its end, because a failure in it was swallowed. Nothing is stored. */
    public static final class RolledBack extends IdempotencyException {
        /**
         * For implementations of {@link Transactions}.
         *
         * @param cause what the framework said
         */
        public RolledBack(Throwable cause) {
            super("the transaction was rolled back at its end, as a failure in it was swallowed", cause);
        }
    }

    /** The connection was lost, and so were those of the repetitions. */
    public static final class ConnectionLost extends IdempotencyException {
        private boolean isOnArrival;

        /**
         * For implementations of {@link Transactions}.
         *
         * @param cause what the framework said
         */
        public ConnectionLost(Throwable cause) {
            super("the connection was lost", cause);
        }

        /** True once: to the operation in whose work the call was, the connection is one that was lost. */
        boolean takeOnArrival() {
            boolean was = isOnArrival;
            isOnArrival = false;
            return was;
        }
    }

    /** Another failure of a statement of this package, or of COMMIT; or the pool had no connection in time. */
    public static final class Other extends IdempotencyException {
        Other(Throwable cause) {
            super("the database refused a statement, or the pool had no connection", cause);
        }
    }

    /** Nobody knows whether an earlier attempt took effect. The next begin finds out again. */
    public static final class Unknown extends IdempotencyException {
        private final Duration retryAfter;

        Unknown(Duration retryAfter, Throwable cause) {
            super("the outcome of the operation is unknown", cause);
            this.retryAfter = retryAfter;
        }

        /** {@return how long to wait before trying again} */
        public Duration retryAfter() {
            return retryAfter;
        }
    }

    /**
     * The work of a lease was done, and its answer could not be stored: the operation has ended without one, and no attempt repeats it.
     * The call that did the work gets what was wrong with the answer; this one is for the calls after it.
     */
    public static final class Unstorable extends IdempotencyException {
        Unstorable() {
            super("the work was done, and its answer could not be stored", null);
        }
    }

    /** Somebody else owns the operation. */
    public static final class InProgress extends IdempotencyException {
        private final Duration retryAfter;

        InProgress(Duration retryAfter) {
            super("the operation is in progress", null);
            this.retryAfter = retryAfter;
        }

        /** {@return when to try again: what is left of the owner's lease; null: the owner is an open transaction} */
        public Duration retryAfter() {
            return retryAfter;
        }
    }

    /**
     * Thrown by leased work, or its writes: nothing has happened outside of the database. Thrown in a transaction: it is rolled back,
     * and is no lost attempt.
     */
    public static final class NotDone extends IdempotencyException {
        /**
         * Says that nothing was done.
         *
         * @param cause why, or null
         */
        public NotDone(Throwable cause) {
            super("nothing was done", cause);
        }
    }

    /**
     * Thrown by leased work, or its writes, that is done and has no answer that could be stored. The operation ends without one, so that
     * no attempt repeats it. The call throws the cause, and calls after it throw Unstorable. It is for adapters, such as the servlet filter.
     */
    public static final class NoAnswer extends IdempotencyException {
        private final Duration retention;
        private final transient Completion.Writes writes;

        /**
         * Says that there is no answer.
         *
         * @param cause what is wrong with the answer
         * @param retention how long the record is kept; null: as the call says
         * @param writes are made in one transaction with the record, unless they are what throws; null: none
         */
        public NoAnswer(RuntimeException cause, Duration retention, Completion.Writes writes) {
            super("the work was done, and has no answer that could be stored", cause);
            this.retention = retention;
            this.writes = writes;
        }

        Duration retention() {
            return retention;
        }

        Completion.Writes writes() {
            return writes;
        }
    }

    private static final Map<String, Function<Throwable, IdempotencyException>> BY_STATE = Map.of(
            "ID400", BadArgument::new, "ID403", Forbidden::new, "ID404", NotOwned::new, "ID409", LeaseLost::new,
            "ID413", TooLarge::new, "ID422", KeyReused::new, "ID428", NotEnded::new, "25P02", RolledBack::new,
            "25P01", NotOwned::new, "3B001", NotOwned::new); // the savepoint is gone, with its transaction

    private static final Set<String> LOST = Set.of("57P01", "57P02", "57P03", "57P05", "25P03", "25P04");
    private static final Set<String> NO_CONNECTION = Set.of("08001", "08004", "57P03");

    private static final Map<String, String> NOT_READY = Map.of(
            "42883", "the functions of the extension were not found: run CREATE EXTENSION idempotency in this database, "
                    + "or name its schema in the options; a role without idem_grant does not find them in a schema of their own",
            "3F000", "the schema of the options does not exist: it is the one in which the extension idempotency was created",
            "42501", "the role may not use the extension: let its owner run SELECT idem_grant('the role')");

    /**
     * {@return the SQLSTATE of the first SQLException among an exception and its causes; "" where there is none}
     *
     * @param error any exception
     */
    public static String sqlState(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof SQLException sql && sql.getSQLState() != null) {
                return sql.getSQLState();
            }
        }
        return "";
    }

    /**
     * Whether the same call may succeed a moment later: 40001, 40P01 and a lost connection. The
     * client has repeated the call before it throws such an exception.
     *
     * @param error any exception
     * @return whether it is one of these
     */
    public static boolean isTransient(Throwable error) {
        String state = sqlState(error);
        return isConflict(state) || error instanceof ConnectionLost || endsConnection(state);
    }

    /**
     * Whether an exception stands where its transaction could not be rolled back, rather than a lost connection: NotDone and a
     * CancellationException, the work's own word, and what the server has said, as pools end a connection for that, HikariCP after 0A000.
     * For implementations of {@link Transactions}.
     *
     * @param error any exception
     * @return whether it is one of these
     */
    public static boolean stands(Throwable error) {
        return error instanceof ConnectionLost || error instanceof NotDone || error instanceof CancellationException
                || !sqlState(error).isEmpty() && !isTransient(error);
    }

    /** Whether the exception, or one of its causes, is of a class. */
    static boolean has(Class<?> type, Throwable error) {
        return error != null && (type.isInstance(error) || has(type, error.getCause()));
    }

    /**
     * The exception of the first statement on a connection. One that is lost then was dead when it came from the pool, so nothing was
     * asked of it. That is not so where the pool or the server had none; nor where the time is over, as the session may be alive and wait.
     */
    static IdempotencyException onArrival(IdempotencyException error) {
        if (error instanceof ConnectionLost lost) {
            lost.isOnArrival = !NO_CONNECTION.contains(sqlState(error)) && !has(SQLTransientConnectionException.class, error)
                    && !has(SocketTimeoutException.class, error);
        }
        return error;
    }

    static boolean isConflict(String state) {
        return state.equals("40001") || state.equals("40P01");
    }

    private static boolean endsConnection(String state) {
        return state.startsWith("08") || LOST.contains(state);
    }

    /** The exception of this package for an error of one of its own statements, or of COMMIT. */
    static IdempotencyException of(Throwable error) {
        if (error instanceof IdempotencyException known) {
            return known;
        }
        String state = sqlState(error);
        if (BY_STATE.containsKey(state)) {
            return BY_STATE.get(state).apply(error);
        }
        return endsConnection(state) || isUnstatedLoss(error) ? new ConnectionLost(error) : new Other(error);
    }

    /** Some pools close a connection, and say so without a SQLSTATE. */
    private static boolean isUnstatedLoss(Throwable error) {
        return error instanceof SQLNonTransientConnectionException || error instanceof SQLRecoverableException;
    }

    /** The same for a begin: what is missing can be nothing but what belongs to the extension. */
    static IdempotencyException ofBegin(SQLException error) {
        String state = sqlState(error);
        if (NOT_READY.containsKey(state)) {
            return new NotReady(NOT_READY.get(state), error);
        }
        return switch (state) {
            case "22P02", "22P05", "22021", "22003", "54001" -> new BadArgument(error);
            default -> of(error);
        };
    }
}
