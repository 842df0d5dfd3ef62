package org.example.idempotency.servlet;

import java.sql.SQLTransientConnectionException;
import java.time.Duration;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Identity;

/**
 * An answer of the filter itself, as RFC 9457 has it. It says nothing that comes from an exception: a key, a scope or SQL.
 *
 * @param status of HTTP, the same in the body
 * @param type an address that names the kind of problem; null: that of {@link FilterOptions#describedBy}, or {@code about:blank}
 * @param title the same each time, and in all languages
 * @param detail what the client can do; null: none
 * @param retryAfter becomes a header, in whole seconds, at least 1; null: none
 */
public record Problem(int status, String type, String title, String detail, Duration retryAfter) {
    private static final String AGAIN = "Send it again, with the same key, after the time in Retry-After.";
    private static final Duration SECOND = Duration.ofSeconds(1);

    static final Problem NOBODY = new Problem(401, "Authentication is required", "It is not known who asks.", null);
    static final Problem BODY_BROKEN = new Problem(400, "The body cannot be read", "It did not arrive as a whole.", null);
    static final Problem BODY_UNCLEAR = new Problem(411, "The body cannot be read",
            "It is empty, and no Content-Length says that it should be.", null);
    static final Problem NOT_JSON = new Problem(400, "The body cannot be read", "It is not what its Content-Type says.", null);
    static final Problem TOO_LARGE = new Problem(413, "The request is too large",
            "The body of the request is larger than this service takes.", null);
    static final Problem FAILED = new Problem(500, "Internal Server Error", "The service could not handle the request.", null);

    private Problem(int status, String title, String detail, Duration retryAfter) {
        this(status, null, title, detail, retryAfter);
    }

    static Problem missing(String header) {
        return new Problem(400, header + " is missing", "This request needs a key that is new for each new request.", null);
    }

    static Problem malformed(String header) {
        return new Problem(400, header + " is malformed",
                "The request needs one idempotency key: 1 to 255 characters of ASCII, in double quotes.", null);
    }

    static Problem inProgress(Duration retryAfter) {
        return new Problem(409, "A request is outstanding for this Idempotency-Key", AGAIN,
                retryAfter == null ? SECOND : retryAfter);
    }

    static Problem of(Throwable error) {
        if (error instanceof IdempotencyException.BadArgument || error instanceof ReceivedRequest.Unreadable) {
            return new Problem(400, "The request is not acceptable", "The idempotency key or the request cannot be used.", null);
        } else if (error instanceof IdempotencyException.Forbidden) {
            return new Problem(403, "This Idempotency-Key may not be used here", "The service has no right to it.", null);
        } else if (error instanceof IdempotencyException.LeaseLost) {
            return inProgress(null);
        } else if (error instanceof IdempotencyException.InProgress running) {
            return inProgress(running.retryAfter());
        } else if (error instanceof IdempotencyException.TooLarge) {
            return new Problem(413, "The answer is too large to be stored", "Nothing was stored.", null);
        } else if (error instanceof IdempotencyException.Unstorable) {
            return new Problem(500, "The answer could not be stored", "The request was done, and is not repeated.", null);
        } else if (error instanceof IdempotencyException.KeyReused) {
            return new Problem(422, "Idempotency-Key is already used",
                    "It was used with another request. Use a new key for a new request.", null);
        } else if (error instanceof IdempotencyException.Unknown unknown) {
            return new Problem(503, "It is not known yet whether an earlier attempt took effect", AGAIN, unknown.retryAfter());
        } else if (error instanceof IdempotencyException.NotDone released) {
            return released.getCause() != null ? of(released.getCause())
                    : new Problem(503, "The request was not processed", AGAIN, SECOND);
        } else if (error instanceof TimeLimit.Over) {
            return new Problem(503, "The request took too long", AGAIN, SECOND);
        } else if (isBusy(error)) {
            return new Problem(503, "The service is busy", AGAIN, SECOND);
        } else if (error instanceof RecordedResponse.TooLarge || error.getCause() instanceof RecordedResponse.TooLarge) {
            return new Problem(500, "The answer is too large to be stored", "There is no answer to this request.", null);
        }
        return FAILED;
    }

    /** The same request may succeed later. */
    private static boolean isBusy(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof SQLTransientConnectionException) {
                return true; // the pool had no connection in time
            }
        }
        return switch (IdempotencyException.sqlState(error)) {
            case "25006", "53300", "55P03", "57014" -> true;
            default -> IdempotencyException.isTransient(error);
        };
    }

    String json(String usualType) {
        return "{\"type\": " + Identity.quote(type == null ? usualType : type) + ", \"title\": " + Identity.quote(title) + ", \"status\": "
                + status + (detail == null ? "" : ", \"detail\": " + Identity.quote(detail)) + '}';
    }
}
