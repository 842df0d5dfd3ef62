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
    FAILED
}
