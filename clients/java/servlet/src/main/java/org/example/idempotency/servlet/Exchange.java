package org.example.idempotency.servlet;

import jakarta.servlet.ServletRequest;
import java.sql.Connection;
import org.example.idempotency.Completion;
import org.example.idempotency.Lease;
import org.example.idempotency.Operation;

/** What a handler may use of its operation: an attribute of its request. */
public final class Exchange {
    private final Connection connection;
    private final Operation operation;
    private final Lease lease;
    private Completion.Writes writes;

    Exchange(Connection connection, Operation operation, Lease lease) {
        this.connection = connection;
        this.operation = operation;
        this.lease = lease;
    }

    /**
     * {@return the exchange of a request}
     *
     * @param request the request, as the handler got it
     * @throws IllegalStateException if the filter does not cover the request
     */
    public static Exchange of(ServletRequest request) {
        if (request.getAttribute(Exchange.class.getName()) instanceof Exchange exchange) {
            return exchange;
        }
        throw new IllegalStateException("no route of the filter covers this request");
    }

    /** {@return the open transaction: a connection that the handler neither commits nor closes; null: under a lease} */
    public Connection connection() {
        return connection;
    }

    /** {@return what the server knew of the operation when it was begun; null: the request has no key} */
    public Operation operation() {
        return operation;
    }

    /** {@return the lease, which says whether it is lost; null: there is none} */
    public Lease lease() {
        return lease;
    }

    /**
     * Under a lease: writes that commit together with the answer.
     *
     * @param value what to write. An exception of it discards the answer
     */
    public void completeWith(Completion.Writes value) {
        writes = value;
    }

    Completion.Writes writes() {
        return writes;
    }
}
