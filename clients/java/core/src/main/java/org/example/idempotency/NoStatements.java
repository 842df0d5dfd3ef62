package org.example.idempotency;

import java.sql.Connection;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** In place of the statements, where the client is off: each operation is new, and none is stored. */
final class NoStatements extends Statements {
    NoStatements() {
        super(null);
    }

    private static Operation acquired(String scope, String key, Duration lease) {
        return new Operation(Outcome.ACQUIRED, scope, key, 1, false, false, lease == null ? 0 : 1, lease, null,
                Response.EMPTY, null, null);
    }

    @Override
    Operation begin(Connection connection, Call call, Duration lease, Duration wait) {
        return acquired(call.scope(), call.key(), lease);
    }

    @Override
    List<Operation> beginMany(Connection connection, String scope, List<String> keys, List<String> requests) {
        List<Operation> operations = new ArrayList<>();
        Set<String> seen = new HashSet<>();
        for (String key : keys) {
            operations.add(seen.add(key) ? acquired(scope, key, null)
                    : new Operation(Outcome.IN_PROGRESS, scope, key, 0, false, false, 0, null, null, Response.EMPTY, null, null));
        }
        return operations;
    }

    @Override
    int completeMany(Connection connection, String scope, List<String> keys, List<String> payloads) {
        return keys.size();
    }

    @Override
    Operation lookup(Connection connection, Call call) {
        return null;
    }

    @Override
    void complete(Connection connection, Call call, long fence, Response response, String then) {
    }

    @Override
    void setSavepoint(Connection connection) {
    }

    @Override
    void releaseSavepoint(Connection connection, String then) {
    }

    @Override
    void fail(Connection connection, Call call, long fence, Declined refusal) {
    }

    @Override
    void release(Connection connection, Operation o) {
    }

    @Override
    void undo(Connection connection, Operation o) {
    }

    @Override
    Duration extend(Connection connection, Operation o, Duration lease) {
        return lease;
    }

    @Override
    void progress(Connection connection, Operation o, String note) {
    }
}
