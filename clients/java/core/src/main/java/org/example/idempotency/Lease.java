package org.example.idempotency;

/** A leased attempt, as its work sees it. */
public interface Lease {
    /**
     * The operation.
     *
     * @return what the server knew when it was begun
     */
    Operation operation();

    /**
     * Whether the lease is lost, so that somebody else may run the operation.
     *
     * @return true when the server said so, or the lease could not be extended in time
     */
    boolean isLost();
}
