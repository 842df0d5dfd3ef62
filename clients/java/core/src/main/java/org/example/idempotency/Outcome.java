package org.example.idempotency;

/** What became of an operation, as the answer to a begin says. */
public enum Outcome {
    /** The caller owns the operation and must run it. */
    ACQUIRED,
    /** Somebody else owns it. */
    IN_PROGRESS,
    /** It has ended with success. */
    COMPLETED,
    /** It has ended with a refusal. */
    FAILED,
    /** Its key was used with another request. Only a batch answers so; elsewhere it is {@link IdempotencyException.KeyReused}. */
    MISMATCH
}
