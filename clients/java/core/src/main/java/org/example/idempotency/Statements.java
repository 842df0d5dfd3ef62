package org.example.idempotency;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/** The statements of the extension. Each argument is text, and null is NULL: the statement casts it. */
class Statements {
    private static final String COLUMNS = """
            o.outcome::text, o.scope, o.idempotency_key, o.attempt, o.taken_over, o.replayed, o.fence,
            extract(epoch FROM o.lease_expires_at - clock_timestamp()), extract(epoch FROM o.retry_after),
            o.response_code, o.response_headers::text, o.response_payload::text, o.response_body,
            extract(epoch FROM o.created_at), nullif(extract(epoch FROM o.expires_at), 'infinity')""";
    private static final String END = "(?::text, ?::text::jsonb, scope => ?::text, fence => ?::text::bigint, code => ?::text::int,"
            + " headers => ?::text::jsonb, body => decode(?::text, 'hex'), retention => ?::text::interval";

    /** Behind a begin: what the work has written is rolled back to here where it refuses, also after a failed statement. */
    static final String SAVEPOINT = "; SAVEPOINT idempotency_work";
    /** Behind an end: one trip in place of two, and the driver's commit() afterwards sends nothing. */
    static final String COMMIT = "; COMMIT";
    /** In the one statement, as a begin with a lease is in no transaction block; the key makes the begin come after it. */
    private static final String LIMIT = "pg_catalog.set_config('idempotency.max_lost_attempts', ?::text, true) AS setting(value), LATERAL ";

    private final String begin;
    private final String beginLimited;
    private final String beginMany;
    private final String completeMany;
    private final String complete;
    private final String fail;
    private final String release;
    private final String undo;
    private final String extend;
    private final String progress;
    private final String lookup;

    Statements(String schema) {
        String prefix = schema == null ? "" : '"' + schema.replace("\"", "\"\"") + "\".";
        String arguments = ", ?::text::jsonb, scope => ?::text, request_hash => decode(?::text, 'hex'),"
                + " lease => ?::text::interval, wait => ?::text::interval, max_attempts => ?::text::int) o";
        begin = "SELECT " + COLUMNS + " FROM " + prefix + "idem_begin(?::text" + arguments;
        beginLimited = "SELECT " + COLUMNS + " FROM " + LIMIT + prefix
                + "idem_begin(CASE WHEN setting.value IS NOT NULL THEN ?::text END" + arguments;
        beginMany = "SELECT " + COLUMNS + " FROM " + prefix + "idem_begin_batch(?::text[], ?::text[]::jsonb[], scope => ?::text) o";
        completeMany = "SELECT " + prefix + "idem_complete_batch(?::text[], ?::text[]::jsonb[], scope => ?::text)";
        complete = "SELECT " + prefix + "idem_complete" + END + ")::text";
        fail = "SELECT " + prefix + "idem_fail" + END + ", retryable => ?::text::boolean, retry_after => ?::text::interval)::text";
        release = "SELECT " + prefix + "idem_release(?::text, scope => ?::text, fence => ?::text::bigint)::text";
        undo = "ROLLBACK TO SAVEPOINT idempotency_work; " + release;
        extend = "SELECT extract(epoch FROM " + prefix + "idem_extend(?::text, ?::text::interval, scope => ?::text,"
                + " fence => ?::text::bigint) - clock_timestamp())";
        progress = "SELECT " + prefix + "idem_progress(?::text, ?::text::jsonb, scope => ?::text, fence => ?::text::bigint)::text";
        lookup = "SELECT " + COLUMNS + " FROM " + prefix + "idem_lookup(?::text, scope => ?::text) o WHERE o.outcome IS NOT NULL";
    }

    Operation begin(Connection connection, Call call, Duration lease, Duration wait) throws SQLException {
        String[] arguments = {limit(call.maxLostAttempts()), call.key(), call.request(), call.scope(), hex(call.requestHash()),
            interval(lease), interval(wait), limit(call.maxAttempts())};
        boolean isLimited = arguments[0] != null;
        String sql = isLimited ? beginLimited : begin;
        return operation(connection, lease == null ? sql + SAVEPOINT : sql,
                isLimited ? arguments : Arrays.copyOfRange(arguments, 1, arguments.length));
    }

    List<Operation> beginMany(Connection connection, String scope, List<String> keys, List<String> requests) throws SQLException {
        return ask(prepareMany(connection, beginMany, keys, requests, scope), row -> {
            List<Operation> operations = new ArrayList<>();
            while (row.next()) {
                operations.add(operation(row));
            }
            return operations;
        });
    }

    int completeMany(Connection connection, String scope, List<String> keys, List<String> payloads) throws SQLException {
        return ask(prepareMany(connection, completeMany, keys, payloads, scope), row -> {
            row.next();
            return row.getInt(1);
        });
    }

    private static PreparedStatement prepareMany(Connection connection, String sql, List<String> keys, List<String> values,
            String scope)
            throws SQLException {
        PreparedStatement statement = connection.prepareStatement(sql);
        statement.setArray(1, array(connection, keys));
        statement.setArray(2, values == null ? null : array(connection, values));
        statement.setString(3, whole(scope));
        return statement;
    }

    private static Array array(Connection connection, List<String> texts) throws SQLException {
        for (String text : texts) {
            whole(text);
        }
        return connection.createArrayOf("text", texts.toArray());
    }

    /** The driver would send "?" for half of a character of two, and two keys could become one. */
    private static String whole(String text) throws SQLException {
        if (text != null && !text.equals(new String(text.getBytes(StandardCharsets.UTF_8), StandardCharsets.UTF_8))) {
            throw new SQLException("half of a character of two is no Unicode", "22021");
        }
        return text;
    }

    /** Null where there is no record. */
    Operation lookup(Connection connection, Call call) throws SQLException {
        return operation(connection, lookup, call.key(), call.scope());
    }

    /** What comes then is SAVEPOINT, COMMIT or empty. */
    void complete(Connection connection, Call call, long fence, Response response, String then) throws SQLException {
        run(connection, complete + then, call.key(), response.payload(), call.scope(), number(fence),
                number(response.code()), headers(response.headers()), hex(response.body()), interval(retention(call, response)));
    }

    /** Before a batch. */
    void setSavepoint(Connection connection) throws SQLException {
        run(connection, "SAVEPOINT idempotency_work");
    }

    /**
     * Behind a batch, or the writes of an end with a SAVEPOINT. That is gone where they have ended its transaction: what they did may be
     * rolled back, and COMMIT would not say so.
     */
    void releaseSavepoint(Connection connection, String then) throws SQLException {
        run(connection, "RELEASE SAVEPOINT idempotency_work" + then);
    }

    void fail(Connection connection, Call call, long fence, Declined refusal) throws SQLException {
        Response response = refusal.response();
        Durations.check("retryAfter", refusal.retryAfter());
        run(connection, fail, call.key(), response.payload(), call.scope(), number(fence), number(response.code()),
                headers(response.headers()), hex(response.body()), interval(retention(call, response)),
                String.valueOf(refusal.retryAfter() != null), interval(refusal.retryAfter()));
    }

    void release(Connection connection, Operation o) throws SQLException {
        run(connection, release, o.key(), o.scope(), number(o.fence()));
    }

    /** Takes a begin in a transaction back, which is rolled back then: so it is no lost attempt. */
    void undo(Connection connection, Operation o) throws SQLException {
        run(connection, undo, o.key(), o.scope(), null);
    }

    /** How long the lease runs from the server's answer on, which a policy may have shortened. */
    Duration extend(Connection connection, Operation o, Duration lease) throws SQLException {
        return ask(prepare(connection, extend, o.key(), interval(lease), o.scope(), number(o.fence())), row -> {
            row.next();
            return duration(row.getBigDecimal(1));
        });
    }

    void progress(Connection connection, Operation o, String note) throws SQLException {
        run(connection, progress, o.key(), note, o.scope(), number(o.fence()));
    }

    private static Duration retention(Call call, Response response) {
        Durations.checkPositive("retention", response.retention());
        return response.retention() != null ? response.retention() : call.retention();
    }

    private static void run(Connection connection, String sql, String... arguments) throws SQLException {
        ask(prepare(connection, sql, arguments), row -> null);
    }

    private static Operation operation(Connection connection, String sql, String... arguments) throws SQLException {
        return ask(prepare(connection, sql, arguments), row -> row.next() ? operation(row) : null);
    }

    /** Reads the first answer. */
    @FunctionalInterface
    private interface Reader<T> {
        T read(ResultSet row) throws SQLException;
    }

    private static <T> T ask(PreparedStatement prepared, Reader<T> reader) throws SQLException {
        try (prepared) {
            prepared.execute();
            return reader.read(prepared.getResultSet());
        } catch (SQLException error) {
            throw withoutData(error);
        }
    }

    /** Below its message the server quotes the JSON that it cannot read, and that is nothing for a log. */
    private static SQLException withoutData(SQLException error) {
        if (error.getSQLState() == null || !error.getSQLState().startsWith("22")) {
            return error;
        }
        String message = error.getMessage().lines().findFirst().orElse("");
        return new SQLException(message, error.getSQLState(), error.getErrorCode());
    }

    private static PreparedStatement prepare(Connection connection, String sql, String... arguments) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(sql);
        for (int i = 0; i < arguments.length; i++) {
            statement.setString(i + 1, whole(arguments[i]));
        }
        return statement;
    }

    private static Operation operation(ResultSet row) throws SQLException {
        Map<String, String> headers = row.getString(11) == null ? null : Json.headers(row.getString(11));
        Response response = new Response(row.getInt(10), headers, row.getString(12), row.getBytes(13), null);
        return new Operation(Outcome.valueOf(row.getString(1)), row.getString(2), row.getString(3), row.getInt(4),
                row.getBoolean(5), row.getBoolean(6), row.getLong(7), duration(row.getBigDecimal(8)),
                duration(row.getBigDecimal(9)), response, instant(row.getBigDecimal(14)), instant(row.getBigDecimal(15)));
    }

    private static Duration duration(BigDecimal seconds) {
        return seconds == null ? null : Duration.of(seconds.movePointRight(6).longValue(), ChronoUnit.MICROS);
    }

    private static Instant instant(BigDecimal seconds) {
        return seconds == null ? null : Instant.EPOCH.plus(duration(seconds));
    }

    private static String interval(Duration duration) {
        return duration == null ? null : ChronoUnit.MICROS.between(Instant.EPOCH, Instant.EPOCH.plus(duration)) + " microseconds";
    }

    private static String number(long number) {
        return number == 0 ? null : String.valueOf(number);
    }

    /** Null is the server's setting, and 0 no limit. */
    private static String limit(int most) {
        return most < 0 ? "0" : number(most);
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }

    private static String headers(Map<String, String> headers) {
        return headers == null ? null : Json.object(headers);
    }
}
