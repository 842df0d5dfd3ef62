package org.example.idempotency.servlet;

import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.IntPredicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.example.idempotency.Call;
import org.example.idempotency.Completion;
import org.example.idempotency.Declined;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Identity;
import org.example.idempotency.Lease;
import org.example.idempotency.Operation;
import org.example.idempotency.Outcome;
import org.example.idempotency.Reconciled;
import org.example.idempotency.Response;
import org.example.idempotency.Result;
import org.example.idempotency.Transactions;

/**
 * Makes routes idempotent: a request with an {@code Idempotency-Key} runs once, and a retry gets the
 * first answer, byte for byte.
 *
 * <ul>
 *   <li>400: the key is missing or malformed, or there are two; or the body is not the JSON that its type says,
 *       or the parameters cannot be read
 *   <li>401: nobody asks
 *   <li>409: the first request is still running; Retry-After says when to come again
 *   <li>411: the body is empty, and no Content-Length says that it should be
 *   <li>413: the request is too large
 *   <li>422: the key was used before with a different request
 *   <li>500: the handler failed, and nothing is stored
 *   <li>503: the database is away, the handler took too long, or nobody knows the outcome; with Retry-After
 * </ul>
 *
 * <p>It has to be the last filter, behind authentication: the handler may run more than once, and
 * what is between it and this filter may not.
 */
public final class IdempotencyFilter extends HttpFilter {
    private static final System.Logger LOG = System.getLogger(IdempotencyFilter.class.getName());
    private static final Pattern WAIT = Pattern.compile("(?:^|,)\\s*wait\\s*=\\s*\"?([0-9]{1,9})\"?\\s*(?=$|[,;])",
            Pattern.CASE_INSENSITIVE);
    private static final Set<String> ALWAYS_STORED = Set.of("content-type", "content-encoding", "content-language",
            "location", "etag");

    /** What a flush has thrown that a framework made before its answer: the one behind the handler would have thrown it as it is. */
    private static final String FLUSH = Exchange.class.getName() + ".flush";
    /** Whether an answer of a status is stored with what the handler wrote: an IntPredicate, for who flushes before the answer. */
    private static final String STORES = Exchange.class.getName() + ".stores";

    private final transient Idempotency once;
    private final transient FilterOptions options;

    /**
     * A filter.
     *
     * @param once the client, whose scope is part of each request's
     * @param options the settings
     */
    public IdempotencyFilter(Idempotency once, FilterOptions options) {
        this.once = once;
        this.options = options;
    }

    @Override
    protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        Route route = needsKey(request) ? options.route.apply(request) : null;
        if (route == null) {
            chain.doFilter(request, response);
            return;
        }
        answer(request, response, chain, route).send(response);
    }

    /** What a handler forwards to belongs to its operation. */
    private boolean needsKey(HttpServletRequest request) {
        return request.getAttribute(Exchange.class.getName()) == null
                && (options.methods.contains("*") || options.methods.contains(request.getMethod().toUpperCase(Locale.ROOT)));
    }

    private Answer answer(HttpServletRequest request, HttpServletResponse response, FilterChain chain, Route route)
            throws ServletException {
        try {
            return new Handling(request, response, chain, route).answer();
        } catch (Refused refused) {
            return refuse(null, refused.problem);
        } catch (PassedOn passed) {
            throw passed.unwrapped();
        } catch (Exception error) {
            report(error);
            return refuse(error, Problem.of(error));
        }
    }

    private static void report(Exception error) {
        int status = Problem.of(error).status();
        if (status >= 500) {
            LOG.log(System.Logger.Level.ERROR, "a request failed with " + status, error);
        }
    }

    private Answer refuse(Exception error, Problem problem) {
        try {
            return rendered(options.problem.apply(error, problem)).checked();
        } catch (RuntimeException failure) {
            LOG.log(System.Logger.Level.ERROR, "the option problem gave no problem that can be sent", failure);
            return rendered(problem);
        }
    }

    private Answer rendered(Problem problem) {
        String type = options.describedBy == null ? "about:blank" : options.describedBy;
        Answer answer = new Answer(problem.status(), Answer.noHeaders(), problem.json(type).getBytes(StandardCharsets.UTF_8));
        answer.set("Content-Type", "application/problem+json");
        answer.retryAfter(problem.retryAfter());
        if (options.describedBy != null) {
            answer.set("Link", '<' + options.describedBy + ">; rel=\"describedby\"");
        }
        return answer;
    }

    /** The request is not admitted. */
    private static final class Refused extends Exception {
        private final transient Problem problem;

        Refused(Problem problem) {
            super(problem.title(), null, false, false);
            this.problem = problem;
        }
    }

    /** The handler's answer is sent and not stored, so all is rolled back. */
    private static final class Unstored extends RuntimeException {
        private final transient Answer answer;

        Unstored(Answer answer) {
            super("the status " + answer.status() + " is not stored", null, false, false);
            this.answer = answer;
        }
    }

    /** What the handler has thrown is for a filter in front of this one. */
    private static final class PassedOn extends Exception {
        PassedOn(Exception error) {
            super(null, error, false, false);
        }

        RuntimeException unwrapped() throws ServletException {
            if (getCause() instanceof ServletException error) {
                throw error;
            }
            return (RuntimeException) getCause();
        }
    }

    // ---- what a request asks for ----

    /** Who asks is known before anything else, and a part of what is looked up. */
    private String principal(HttpServletRequest request) throws Refused {
        String principal = options.principal.apply(request);
        if (principal == null || principal.isEmpty()) {
            throw new Refused(Problem.NOBODY);
        }
        return principal;
    }

    private String scope(HttpServletRequest request, Route route, String principal) throws Refused {
        String service = once.options().scope();
        if (options.scope == null) {
            return Identity.scope(service, request.getMethod(), route.template(), principal);
        }
        String own = options.scope.apply(request, route);
        if (own == null || own.isEmpty()) {
            throw new Refused(Problem.NOBODY);
        }
        return Identity.scope(service, own);
    }

    private String fingerprint(HttpServletRequest request, byte[] body) throws Refused {
        String query = request.getQueryString();
        String target = request.getRequestURI() + (query == null || query.isEmpty() ? "" : '?' + query);
        if (options.fingerprint != null) {
            return Identity.fingerprint(request.getMethod(), target,
                    options.fingerprint.apply(new ReceivedRequest(request, body)));
        }
        boolean isEncoded = Collections.list(request.getHeaders("Content-Encoding")).stream()
                .anyMatch(encoding -> !encoding.isEmpty() && !encoding.equalsIgnoreCase("identity"));
        try {
            return Identity.fingerprint(request.getMethod(), target, request.getContentType(), isEncoded, body);
        } catch (IllegalArgumentException notJson) {
            throw new Refused(Problem.NOT_JSON);
        }
    }

    /** Null: the request runs without. */
    private String key(HttpServletRequest request) throws Refused {
        List<String> values = Collections.list(request.getHeaders(options.header));
        String made = values.isEmpty() ? options.makeKey.apply(request) : null;
        if (made != null) {
            return made;
        }
        if (values.isEmpty() && options.isOptional) {
            return null;
        }
        String key = Key.of(values, options.isStrict);
        if (key == null) {
            throw new Refused(values.isEmpty() ? Problem.missing(options.header) : Problem.malformed(options.header));
        }
        return key;
    }

    /** If somebody has read the body before, as getParameter() does of a form, other bodies would seem to be the same request. */
    private byte[] body(HttpServletRequest request) throws Refused {
        long length = request.getContentLengthLong();
        byte[] body;
        try {
            int most = (int) Math.min(options.maxRequest + 1L, Integer.MAX_VALUE);
            body = length > options.maxRequest ? null : request.getInputStream().readNBytes(most);
        } catch (IOException | IllegalStateException broken) {
            throw new Refused(Problem.BODY_BROKEN);
        }
        if (body == null || body.length > options.maxRequest) {
            throw new Refused(Problem.TOO_LARGE);
        }
        if (length > 0 && body.length == 0) {
            throw new IllegalStateException("the body was read before the filter, as getParameter() does: let the filter come first");
        }
        if (length > 0 && body.length != length) {
            throw new Refused(Problem.BODY_BROKEN);
        }
        if (length < 0 && body.length == 0 && mayHaveHadBody(request)) {
            throw new Refused(Problem.BODY_UNCLEAR);
        }
        return body;
    }

    /** Of HTTP/2 nothing but the type tells that a body without a length was there. */
    private static boolean mayHaveHadBody(HttpServletRequest request) {
        return request.getHeader("Transfer-Encoding") != null
                || request.getContentType() != null && !request.getProtocol().startsWith("HTTP/1");
    }

    /** "Prefer: wait=n" (RFC 7240), up to the limit. */
    private Duration preferredWait(HttpServletRequest request) {
        Matcher wait = WAIT.matcher(String.join(",", Collections.list(request.getHeaders("Prefer"))));
        if (!wait.find()) {
            return options.wait;
        }
        Duration asked = Duration.ofSeconds(Long.parseLong(wait.group(1)));
        return asked.compareTo(options.maxWait) < 0 ? asked : options.maxWait;
    }

    // ---- one request ----

    private final class Handling {
        private final HttpServletRequest request;
        private final HttpServletResponse response;
        private final FilterChain chain;
        private final boolean isLeased;
        private final Call call;
        private final byte[] body;
        private Answer fresh;
        private Exception thrown;
        private Answer toThrown;

        Handling(HttpServletRequest request, HttpServletResponse response, FilterChain chain, Route route) throws Refused {
            this.request = request;
            this.response = response;
            this.chain = chain;
            isLeased = route.isLeased();
            String principal = principal(request);
            String key = key(request);
            String scope = scope(request, route, principal);
            body = body(request);
            Call own = options.call.apply(Call.of(key).withWait(preferredWait(request)));
            call = new Call(key, scope, fingerprint(request, body), null, own.maxWait(), own.lease(), own.maxAttempts(),
                    own.maxLostAttempts(), own.retention(), own.isolation());
        }

        Answer answer() throws Exception {
            try {
                return isLeased ? lease() : transact();
            } catch (Declined withoutKey) {
                return fresh;
            } catch (Unstored unstored) {
                return unstored.answer;
            } catch (IdempotencyException.NotDone released) {
                return answerOf(released);
            } catch (Exception error) {
                if (error != thrown) {
                    throw error;
                }
                report(error);
                return toThrown;
            }
        }

        private Answer transact() throws Exception {
            if (call.key() == null) {
                once.transactions().run(call.isolation(), connection ->
                        Transactions.runSound(connection, c -> handle(new Exchange(c, null, null))));
                return fresh;
            }
            return conclude(once.<Exception>transaction(call, this::work));
        }

        /** An answer below 500 is the handler's own, also where it is one to an exception: its rollback is no lost attempt. */
        private Response work(Connection connection, Operation operation) throws Exception {
            try {
                Response answer = handle(new Exchange(connection, operation, null));
                once.transactions().flush();
                return answer;
            } catch (Unstored unstored) {
                throw unstored.answer.status() < 500 ? new IdempotencyException.NotDone(unstored) : unstored;
            } catch (Declined | IdempotencyException.NotDone own) {
                throw own;
            } catch (Exception error) {
                if (IdempotencyException.isTransient(error)) {
                    throw error;
                }
                // The option problem is asked once.
                thrown = error;
                toThrown = refuse(error, Problem.of(error));
                if (toThrown.status() < 500) {
                    report(error);
                    throw new IdempotencyException.NotDone(new Unstored(toThrown));
                }
                throw error;
            }
        }

        private Answer lease() throws Exception {
            if (call.key() != null) {
                return conclude(leased());
            }
            Exchange exchange = new Exchange(null, null, null);
            handle(exchange);
            if (exchange.writes() != null) {
                once.transactions().run(call.isolation(), connection -> Transactions.runSound(connection, c -> {
                    write(exchange, c);
                    return null;
                }));
            }
            return fresh;
        }

        private Result leased() throws Exception {
            try {
                return once.<Exception>lease(call, this::leased, options.finder == null ? null : this::find);
            } catch (IdempotencyException.TooLarge error) {
                // To a client a 413 says that nothing was done.
                throw tooLarge();
            }
        }

        private static Answer answerOf(IdempotencyException.NotDone released) throws PassedOn {
            if (released.getCause() instanceof Unstored unstored) {
                return unstored.answer;
            }
            if (released.getCause() instanceof PassedOn passed) {
                throw passed;
            }
            throw released;
        }

        /** It is Unknown, and not stored, where HTTP does not carry the answer: no replay could be sent. */
        private Reconciled find(Operation operation) throws Exception {
            Reconciled found = options.finder.find(operation);
            return found instanceof Reconciled.Done done ? new Reconciled.Done(storable(done.response())) : found;
        }

        /** Without Set-Cookie, which would go to whoever asks. */
        private Response storable(Response response) {
            bounded(Answer.of(response, 200));
            if (response.headers() == null) {
                return response;
            }
            Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
            headers.putAll(response.headers());
            headers.remove("Set-Cookie");
            return new Response(response.code(), headers, response.payload(), response.body(), response.retention());
        }

        private Answer bounded(Answer answer) {
            if (answer.body().length > options.maxResponse) {
                throw tooLarge();
            }
            return answer.checked();
        }

        private static RuntimeException tooLarge() {
            return new UncheckedIOException(new RecordedResponse.TooLarge());
        }

        private Completion leased(Lease lease) throws Exception {
            Exchange exchange = new Exchange(null, lease.operation(), lease);
            Response stored = handle(exchange);
            return new Completion(stored, writesOf(exchange));
        }

        private Completion.Writes writesOf(Exchange exchange) {
            return exchange.writes() == null ? null : connection -> write(exchange, connection);
        }

        /** What the writes refuse is the answer, in place of the handler's. */
        private void write(Exchange exchange, Connection connection) throws SQLException {
            try {
                exchange.writes().run(connection);
            } catch (Declined declined) {
                throw refusal(declined);
            }
        }

        /** Calls the handler once, and decides what becomes of its answer. */
        private Response handle(Exchange exchange) throws Exception {
            RecordedResponse recorded = new RecordedResponse(response, options.maxResponse);
            Answer answer;
            boolean hasAnswered = false;
            try {
                call(exchange, recorded);
                hasAnswered = true;
                answer = recorded.finish().checked();
            } catch (Exception error) {
                if (exchange.lease() == null || error instanceof IdempotencyException || !hasAnswered && !isTooLarge(error)) {
                    throw error;
                }
                throw withoutAnswer(exchange, recorded.getStatus(), error);
            }
            return keep(answer);
        }

        /** Frameworks wrap what its stream has told a handler. */
        private static boolean isTooLarge(Throwable error) {
            return error instanceof RecordedResponse.TooLarge || error.getCause() != null && isTooLarge(error.getCause());
        }

        /** A handler that has answered is done. But a lease that would have run out after its answer does so. */
        private Exception withoutAnswer(Exchange exchange, int status, Exception error) {
            Keep keep = status < 200 || status > 999 ? new Keep(Keep.Kind.STORED, null) : options.statuses.apply(status);
            if (keep.as() != Keep.Kind.STORED && keep.as() != Keep.Kind.REFUSAL) {
                return error;
            }
            return new IdempotencyException.NoAnswer(error instanceof RuntimeException wrong ? wrong : tooLarge(), keep.retention(),
                    keep.as() == Keep.Kind.REFUSAL ? null : writesOf(exchange));
        }

        private void call(Exchange exchange, RecordedResponse recorded) throws Exception {
            Set<String> before = new HashSet<>(Collections.list(request.getAttributeNames()));
            request.setAttribute(Exchange.class.getName(), exchange);
            request.setAttribute(STORES, (IntPredicate) status -> options.statuses.apply(status).as() == Keep.Kind.STORED);
            try {
                TimeLimit.run(options.timeout, exchange.connection(),
                        () -> chain.doFilter(new ReceivedRequest(request, body), recorded));
                if (request.getAttribute(FLUSH) instanceof RuntimeException refused
                        && IdempotencyException.isTransient(refused)) {
                    throw refused; // the program has answered it, but its repetition may succeed
                }
            } catch (ServletException | RuntimeException error) {
                throw own(error);
            } finally {
                // Another attempt starts anew.
                Collections.list(request.getAttributeNames()).stream().filter(name -> !before.contains(name))
                        .forEach(request::removeAttribute);
            }
        }

        /** Frameworks wrap what a handler has thrown. */
        private Exception own(Exception error) {
            if (error instanceof TimeLimit.Over) {
                return error;
            }
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof Declined declined) {
                    return refusal(declined);
                }
                if (cause == request.getAttribute(FLUSH)) {
                    return (RuntimeException) cause;
                }
                if (cause instanceof IdempotencyException || cause instanceof ReceivedRequest.Unreadable) {
                    return (RuntimeException) cause;
                }
                if (options.passOn.test(cause)) {
                    return new IdempotencyException.NotDone(new PassedOn(error));
                }
            }
            return error;
        }

        /** The bytes that are sent are stored. A leased handler is done, also where they cannot be sent. */
        private RuntimeException refusal(Declined declined) {
            try {
                fresh = bounded(Answer.of(declined.response(), 422));
                fresh.retryAfter(declined.retryAfter());
            } catch (RuntimeException error) {
                if (!isLeased || call.key() == null) {
                    throw error;
                }
                return new IdempotencyException.NoAnswer(error, declined.response().retention(), null);
            }
            return new Declined(fresh.stored(this::isStored, declined.response().retention()), declined.retryAfter());
        }

        private Response keep(Answer answer) {
            Keep keep = options.statuses.apply(answer.status());
            fresh = answer;
            return switch (keep.as()) {
                case STORED -> answer.stored(this::isStored, keep.retention());
                case REFUSAL -> throw new Declined(answer.stored(this::isStored, keep.retention()), answer.retryAfter());
                case DISCARDED -> throw new Unstored(answer);
                case RELEASED -> throw isLeased ? new IdempotencyException.NotDone(new Unstored(answer)) : new Unstored(answer);
            };
        }

        /** Set-Cookie never is: it is one client's, and a session's. */
        private boolean isStored(String name) {
            String low = name.toLowerCase(Locale.ROOT);
            return ALWAYS_STORED.contains(low) || !low.equals("set-cookie") && options.headers.stream().anyMatch(pattern ->
                    pattern.endsWith("*") ? low.startsWith(pattern.toLowerCase(Locale.ROOT).substring(0, pattern.length() - 1))
                            : low.equalsIgnoreCase(pattern));
        }

        private Answer conclude(Result result) throws Refused {
            if (result.outcome() == Outcome.IN_PROGRESS) {
                throw new Refused(Problem.inProgress(result.retryAfter()));
            }
            Answer answer = fresh == null || result.replayed() ? Answer.of(result, options.marker).checked() : fresh;
            if (options.lifetime != null) {
                lifetime(answer);
            }
            return answer;
        }

        /** Until when the answer is kept. It is true without that. */
        private void lifetime(Answer answer) {
            try {
                Operation stored = once.lookup(call);
                if (stored != null && stored.expiresAt() != null) {
                    answer.set(options.lifetime, RecordedResponse.httpDate(stored.expiresAt()));
                }
            } catch (IdempotencyException unknown) {
                LOG.log(System.Logger.Level.WARNING, "until when an answer is kept could not be read", unknown);
            }
        }
    }
}
