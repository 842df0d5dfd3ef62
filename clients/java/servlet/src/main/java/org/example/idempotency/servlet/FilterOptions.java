package org.example.idempotency.servlet;

import jakarta.servlet.http.HttpServletRequest;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.IntFunction;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import org.example.idempotency.Call;
import org.example.idempotency.Reconciled;

/** Settings of an {@link IdempotencyFilter}. Routes and principal have to be given; each other is safe. */
public final class FilterOptions {
    static final Duration LONGEST = Duration.ofDays(36_500);

    final Function<HttpServletRequest, Route> route;
    final Function<HttpServletRequest, String> principal;
    String header = "Idempotency-Key";
    String marker = "Idempotency-Replayed";
    String lifetime;
    String describedBy;
    boolean isStrict;
    boolean isOptional;
    Set<String> methods = Set.of("POST", "PATCH");
    List<String> headers = List.of();
    IntFunction<Keep> statuses = Keep::byDefault;
    int maxRequest = 1 << 20;
    int maxResponse = 1 << 20;
    Duration timeout = Duration.ofSeconds(60);
    Duration wait = Duration.ZERO;
    Duration maxWait = Duration.ofSeconds(10);
    UnaryOperator<Call> call = UnaryOperator.identity();
    Function<HttpServletRequest, String> makeKey = request -> null;
    BiFunction<Throwable, Problem, Problem> problem = (error, usual) -> usual;
    Predicate<Throwable> passOn = error -> false;
    Function<HttpServletRequest, String> fingerprint;
    BiFunction<HttpServletRequest, Route, String> scope;
    Reconciled.Finder finder;

    /**
     * Settings.
     *
     * @param route the route of a request; null: the filter does not cover it
     * @param principal names who sends a request, as a user or a tenant. Keys of different
     *     principals are different keys; null or "" is nobody: the answer is 401, and nothing runs or
     *     is replayed. Authentication has to come before the filter, and this reads what it found.
     *     {@code request -> "anyone"} where all clients are one
     */
    public FilterOptions(Function<HttpServletRequest, Route> route, Function<HttpServletRequest, String> principal) {
        this.route = Objects.requireNonNull(route, "route");
        this.principal = Objects.requireNonNull(principal, "principal: who asks, as clients must not get the answers of others");
    }

    /**
     * The header that has the key.
     *
     * @param name by default Idempotency-Key
     * @return this
     */
    public FilterOptions header(String name) {
        header = checkedHeader(name);
        return this;
    }

    /**
     * The header that marks a replay.
     *
     * @param name by default Idempotency-Replayed
     * @return this
     */
    public FilterOptions marker(String name) {
        marker = checkedHeader(name);
        return this;
    }

    /**
     * A header with the time until which an answer is kept. It costs one more trip.
     *
     * @param name null: none
     * @return this
     */
    public FilterOptions lifetime(String name) {
        lifetime = name == null ? null : checkedHeader(name);
        return this;
    }

    /**
     * The documentation of your keys, to which each problem points.
     *
     * @param address its address; null: none
     * @return this
     */
    public FilterOptions describedBy(String address) {
        if (address != null) {
            Answer.check("Link", address);
        }
        describedBy = address;
        return this;
    }

    /**
     * Refuses a key without quotes.
     *
     * @return this
     */
    public FilterOptions strict() {
        isStrict = true;
        return this;
    }

    /**
     * Lets a request without a key run, each time anew.
     *
     * @return this
     */
    public FilterOptions optional() {
        isOptional = true;
        return this;
    }

    /**
     * Makes the key of a request that has none.
     *
     * @param function gives a key; null: there is none
     * @return this
     */
    public FilterOptions makeKey(Function<HttpServletRequest, String> function) {
        makeKey = Objects.requireNonNull(function, "function");
        return this;
    }

    /**
     * Problems of your own. What they say, clients read: no message of an exception, which may show a key, a scope or SQL.
     *
     * @param function is given the exception, null where the filter itself refuses, and the usual problem, and gives
     *     the one to send. If it throws, the usual one is sent
     * @return this
     */
    public FilterOptions problem(BiFunction<Throwable, Problem, Problem> function) {
        problem = Objects.requireNonNull(function, "function");
        return this;
    }

    /**
     * Exceptions of a handler that a filter in front of this one answers, as Spring Security's answers AccessDeniedException.
     * All is rolled back, or the lease is released; nothing is stored, it is no lost attempt, and the filter throws the exception on.
     *
     * @param decision is asked about the exception and each of its causes; by default no exception. In Spring Boot: those of
     *     Spring Security
     * @return this
     */
    public FilterOptions passOn(Predicate<Throwable> decision) {
        passOn = Objects.requireNonNull(decision, "decision");
        return this;
    }

    /**
     * How long a handler may take. Behind that its statement is cancelled and its thread interrupted, the client gets
     * 503, and all is rolled back, or the lease runs out. A handler that heeds neither is waited for.
     *
     * @param limit by default 60 s; zero: no limit
     * @return this
     */
    public FilterOptions timeout(Duration limit) {
        timeout = checked("timeout", limit);
        return this;
    }

    /**
     * The methods that need a key.
     *
     * @param names by default POST and PATCH; "*": all
     * @return this
     */
    public FilterOptions methods(String... names) {
        methods = Set.of(names).stream().map(name -> name.toUpperCase(Locale.ROOT)).collect(Collectors.toUnmodifiableSet());
        return this;
    }

    /**
     * Headers of an answer that are stored beside Content-Type, Content-Encoding, Content-Language,
     * Location and ETag. Set-Cookie never is.
     *
     * @param names may end with "*"
     * @return this
     */
    public FilterOptions headers(String... names) {
        headers = List.of(names);
        return this;
    }

    /**
     * What becomes of an answer.
     *
     * @param decision by status; by default {@link Keep#byDefault}
     * @return this
     */
    public FilterOptions statuses(IntFunction<Keep> decision) {
        statuses = decision;
        return this;
    }

    /**
     * The largest bodies.
     *
     * @param request of a request, in bytes; by default 1 MB
     * @param response of an answer, in bytes; by default 1 MB
     * @return this
     */
    public FilterOptions limits(int request, int response) {
        maxRequest = request;
        maxResponse = response;
        return this;
    }

    /**
     * How long a retry waits for the first request before its 409.
     *
     * @param usual by default not at all
     * @param longest what a client may ask for by {@code Prefer: wait=n}; by default 10 s. No
     *     connection is held meanwhile, but a thread is
     * @return this
     */
    public FilterOptions waits(Duration usual, Duration longest) {
        wait = checked("wait", usual);
        maxWait = checked("maxWait", longest);
        return this;
    }

    private static String checkedHeader(String name) {
        Answer.check(name, "");
        return name;
    }

    private static Duration checked(String name, Duration time) {
        if (time.isNegative() || time.compareTo(LONGEST) > 0) {
            throw new IllegalArgumentException(name + " must be between 0 and 36500 days");
        }
        return time;
    }

    /**
     * What is compared of a request in place of media type and body. Method and target always are.
     *
     * @param function gives JSON of a request, whose body it may read; anything else is a 500. null:
     *     media type and body
     * @return this
     */
    public FilterOptions fingerprint(Function<HttpServletRequest, String> function) {
        fingerprint = function;
        return this;
    }

    /**
     * The scope of a key in place of method, route and principal. The scope of the client stands before
     * it, and the principal is asked all the same.
     *
     * @param function gives a scope; null or "" is nobody, and the answer is 401. null: method, route
     *     and principal
     * @return this
     */
    public FilterOptions scope(BiFunction<HttpServletRequest, Route, String> function) {
        scope = function;
        return this;
    }

    /**
     * Changes each call, as by {@link Call#withRetention}. Key, scope and request stay what they are.
     *
     * @param change gives the changed call
     * @return this
     */
    public FilterOptions call(UnaryOperator<Call> change) {
        call = change;
        return this;
    }

    /**
     * Finds out what a leased attempt did whose lease ran out. An answer that HTTP does not carry is not stored: the
     * outcome is unknown then, which is a 503.
     *
     * @param function is asked in place of the handler
     * @return this
     */
    public FilterOptions reconcile(Reconciled.Finder function) {
        finder = function;
        return this;
    }
}
