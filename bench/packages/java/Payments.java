import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.zaxxer.hikari.HikariDataSource;
import java.lang.management.CompilationMXBean;
import java.lang.management.ManagementFactory;
import java.security.MessageDigest;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import org.example.idempotency.Call;
import org.example.idempotency.Declined;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Options;
import org.example.idempotency.Response;
import org.example.idempotency.Transactions;

/** Payments by the package of Java, and by hand. See ../__init__.py. */
public final class Payments {
    private final JsonNode order;
    private final String request;
    private final String response;
    private final int accounts;
    private final HikariDataSource pool = new HikariDataSource();
    private final Idempotency once = new Idempotency(Transactions.of(pool), Options.DEFAULT.withScope("payments"));

    private interface Delivery {
        void deliver(String key) throws Exception;
    }

    /** Does one operation in an open transaction. */
    private interface Work {
        void run(Connection connection, String key) throws Exception;
    }

    private Payments(JsonNode order) {
        this.order = order;
        request = order.get("request").toString();
        response = order.get("response").toString();
        accounts = order.get("accounts").intValue();
        String socket = System.getenv("PGHOST") + "/.s.PGSQL." + System.getenv("PGPORT");
        pool.setJdbcUrl("jdbc:postgresql://localhost/" + System.getenv("PGDATABASE") + "?sslmode=disable&gssEncMode=disable"
                + "&socketFactory=org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg&socketFactoryArg=" + socket);
        pool.setUsername(System.getenv("PGUSER"));
        pool.setMaximumPoolSize(order.get("clients").intValue());
    }

    public static void main(String... arguments) throws Exception {
        new Payments(new ObjectMapper().readTree(arguments[0])).measure();
    }

    private void measure() throws Exception {
        Delivery one = switch (order.get("variant").textValue()) {
            case "package" -> this::byPackage;
            case "glue" -> inTransaction(this::glue);
            case "hand" -> inTransaction(this::hand);
            default -> inTransaction((connection, key) -> pay(connection));
        };
        int before = warmUp(one);
        long began = System.nanoTime();
        int timed = until(one, began + (long) (order.get("seconds").doubleValue() * 1e9));
        double throughput = timed / ((System.nanoTime() - began) / 1e9);
        pool.close();
        System.out.println("{\"transactions\": " + (before + timed) + ", \"throughput\": " + throughput + "}");
        System.exit(0);
    }

    /**
     * A service runs for days, and the virtual machine compiles beside the work for its first ten or twenty seconds only. So it
     * is warm when a second of work has the compiler busy for less than a tenth of it, or after the sixfold of a run.
     */
    private int warmUp(Delivery one) throws Exception {
        CompilationMXBean compiler = ManagementFactory.getCompilationMXBean();
        long latest = System.nanoTime() + (long) (order.get("seconds").doubleValue() * 6e9);
        int count = until(one, System.nanoTime() + (long) (order.get("warmup").doubleValue() * 6e9));
        for (long compiled = 0; compiler.getTotalCompilationTime() - compiled > 100 && System.nanoTime() < latest;) {
            compiled = compiler.getTotalCompilationTime();
            count += until(one, System.nanoTime() + 1_000_000_000);
        }
        return count;
    }

    /** How many operations end until a time. */
    private int until(Delivery one, long end) throws Exception {
        int clients = order.get("clients").intValue();
        ExecutorService threads = Executors.newFixedThreadPool(clients);
        List<Future<Integer>> counts = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            counts.add(threads.submit(() -> {
                int count = 0;
                for (; System.nanoTime() < end; count++) {
                    one.deliver(UUID.randomUUID().toString());
                }
                return count;
            }));
        }
        int sum = 0;
        for (Future<Integer> count : counts) {
            sum += count.get();
        }
        threads.shutdown();
        return sum;
    }

    private static PreparedStatement prepare(Connection connection, String sql, Object... values) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) {
            statement.setObject(i + 1, values[i]);
        }
        return statement;
    }

    private static void run(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = prepare(connection, sql, values)) {
            statement.execute();
        }
    }

    /** Its first column; null: there is no row. */
    private static String one(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = prepare(connection, sql, values); var row = statement.executeQuery()) {
            return row.next() ? row.getString(1) : null;
        }
    }

    private void pay(Connection connection) throws SQLException {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        int account = random.nextInt(1, accounts + 1);
        int amount = random.nextInt(1, 101);
        run(connection, "UPDATE accounts SET balance = balance - ? WHERE id = ?", amount, account);
        run(connection, "INSERT INTO payments (account, amount) VALUES (?, ?)", account, amount);
    }

    private void byPackage(String key) throws SQLException {
        once.transaction(Call.of(key).withRequest(request), (connection, operation) -> {
            pay(connection);
            return Response.of(201, response);
        });
    }

    /** What the package does, in the way that people write it: a statement at a time. */
    private void glue(Connection connection, String key) throws SQLException {
        String outcome = one(connection, "SELECT outcome, response_code, response_payload FROM idem_begin(?, ?::jsonb, scope => ?)",
                key, request, "payments");
        if (!outcome.equals("ACQUIRED")) {
            return;
        }
        Savepoint work = connection.setSavepoint();
        try {
            pay(connection);
            one(connection, "SELECT idem_complete(?, ?::jsonb, scope => ?, code => ?)", key, response, "payments", 201);
        } catch (Declined refusal) {
            connection.rollback(work);
            one(connection, "SELECT idem_fail(?, ?::jsonb, scope => ?, code => ?)", key, null, "payments", 402);
        }
    }

    /** A table of one's own: lock or insert, later update. */
    private void hand(Connection connection, String key) throws Exception {
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(request.getBytes());
        if (one(connection, "SELECT status, request_hash, response_payload FROM hand_store WHERE scope = '' AND idempotency_key = ? FOR UPDATE",
                key) != null) {
            return;
        }
        run(connection, "INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at)"
                + " VALUES (?, ?, 'PENDING', now() + interval '1 day')", key, hash);
        pay(connection);
        run(connection, "UPDATE hand_store SET status = 'COMPLETED', response_payload = ?::jsonb, updated_at = clock_timestamp()"
                + " WHERE scope = '' AND idempotency_key = ?", response, key);
    }

    /** Begins and commits, and repeats what may be repeated. pgjdbc takes a COMMIT that answers ROLLBACK for an error. */
    private Delivery inTransaction(Work work) {
        return key -> {
            for (int attempt = 1;; attempt++) {
                try (Connection connection = pool.getConnection()) {
                    connection.setAutoCommit(false);
                    try {
                        work.run(connection, key);
                        connection.commit();
                        return;
                    } catch (Exception error) {
                        connection.rollback();
                        throw error;
                    }
                } catch (SQLException error) {
                    if (attempt == 5 || !String.valueOf(error.getSQLState()).matches("40001|40P01|08...|57P0[123]")) {
                        throw error;
                    }
                }
                Thread.sleep(ThreadLocalRandom.current().nextLong(50L << attempt));
            }
        };
    }
}
