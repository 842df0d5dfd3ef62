package org.example.idempotency;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.Set;

/** The connection as work sees it: it cannot end the transaction, which is the operation's. */
final class WorkConnection {
    private static final Set<String> REFUSED = Set.of("commit", "close", "setAutoCommit", "abort");

    private WorkConnection() {
    }

    static Connection of(Connection connection) {
        return (Connection) Proxy.newProxyInstance(WorkConnection.class.getClassLoader(), new Class<?>[] {Connection.class},
                (proxy, method, arguments) -> call(connection, method, arguments));
    }

    private static Object call(Connection connection, Method method, Object[] arguments) throws Throwable {
        if (REFUSED.contains(method.getName()) || method.getName().equals("rollback") && arguments == null) {
            throw new SQLException(method.getName() + "() is not the work's to call: the transaction is the operation's",
                    "2D000");
        }
        try {
            return method.invoke(connection, arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }
}
