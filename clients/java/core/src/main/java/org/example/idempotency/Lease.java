package org.example.idempotency;

/** A leased attempt, as its work sees it. */
public interface Lease {
    /** {@return what the server knew of the operation when it was begun} */
    Operation operation();

    /**
     * Whether the lease is lost, so that somebody else may run the operation.
     *
     * @return true when the server said so, or the lease could not be extended in time
     */
    boolean isLost();
}
