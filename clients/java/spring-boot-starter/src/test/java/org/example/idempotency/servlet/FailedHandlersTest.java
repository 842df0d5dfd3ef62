package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import jakarta.servlet.Filter;
import jakarta.servlet.ServletException;
import java.io.IOException;
import java.net.http.HttpResponse;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.apache.catalina.startup.Tomcat;
import org.example.idempotency.Call;
import org.example.idempotency.Declined;
import org.example.idempotency.Idempotency;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Options;
import org.example.idempotency.Response;
import org.example.idempotency.Transactions;
import org.example.idempotency.spring.SpringTransactions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.jdbc.support.JdbcTransactionManager;

/** Handlers that fail, refuse or take too long. */
class FailedHandlersTest extends FilterFixture {
    @Test
    void anErrorThatIsAnsweredBelow500IsNoLostAttempt() throws Exception {
        List<Throwable> asked = new ArrayList<>();
        protect(false, options -> options.scope((request, route) -> request.getHeader("X-User") + key).statuses(
                status -> new Keep(Keep.Kind.RELEASED, null)).problem((error, usual) -> {
            asked.add(error);
            return error instanceof IllegalArgumentException ? usual : new Problem(409, null, "Sold out", null, null);
        }));
        jdbc.execute("SELECT idem_set_policy('shop ann" + key + "', max_lost_attempts => 3)");
        Exception none = new IOException();
        RuntimeException soldOut = new IllegalStateException();
        RuntimeException broken = new IllegalArgumentException();
        Deque<Exception> errors = new ArrayDeque<>(List.of(soldOut, soldOut, new SQLException("no", "40001"), soldOut, broken, none,
                new Declined(402, null)));
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            Exception error = errors.pop();
            if (error == none) {
                response.setStatus(500);
                return;
            }
            if (error instanceof RuntimeException unchecked) {
                throw unchecked;
            }
            throw new ServletException(error);
        };
        // The third is repeated: that one is lost, and the one that is broken, and the one that is answered so.
        for (int status : new int[] {409, 409, 409, 500, 500, 422}) {
            assertEquals(status, post("/orders", "ann", "1").statusCode());
        }
        assertEquals(402, post("/orders", "bob", "1").statusCode());
        assertEquals(List.of(soldOut, soldOut, soldOut, broken), asked);
        assertEquals(0, effects());
    }

    /** Frameworks wrap what the call of another operation has thrown. */
    @ParameterizedTest
    @CsvSource({"1, 409", "2, 422"})
    void anErrorOfAnotherOperationIsAnsweredAsOneOfTheFilter(String asked, int status) throws Exception {
        jdbc.execute("SELECT idem_begin('" + key + "', '1', scope => 'another', lease => '1 minute')");
        Call another = Call.of(key).withScope("another").withRequest(asked);
        handler = (request, response) -> {
            try {
                once.transaction(another, (connection, operation) -> Response.EMPTY).orThrow();
            } catch (IdempotencyException error) {
                throw new ServletException(error);
            }
        };
        protect(false, options -> { });
        assertEquals(status == 409, twice(status, false).headers().firstValue("Retry-After").isPresent());
    }

    @Test
    void whatTheWritesOfALeaseRefuseIsTheAnswer() throws Exception {
        handler = (request, response) -> {
            response.setStatus(201);
            response.getWriter().write("booked");
            Exchange.of(request).completeWith(connection -> {
                effect(connection);
                throw new Declined(402, "{\"no\":1}");
            });
        };
        protect(true, FilterOptions::optional);
        assertEquals("{\"no\":1}", twice(402, true).body());
        assertEquals(402, send(withoutKey("")).statusCode());
        assertEquals(0, effects());
    }

    /** Without a key nothing is stored, and so no end meets the transaction that has failed, or is over. */
    @ParameterizedTest
    @ValueSource(strings = {"SELECT 1 / 0", "ROLLBACK", "ROLLBACK; BEGIN"})
    void aRequestWithoutAKeyWhoseWorkIsRolledBackIsNoSuccess(String how) throws Exception {
        for (boolean isLeased : new boolean[] {false, true}) {
            protect(isLeased, FilterOptions::optional);
            handler = (request, response) -> {
                if (isLeased) {
                    Exchange.of(request).completeWith(connection -> spoil(connection, how));
                } else {
                    spoil(Exchange.of(request).connection(), how);
                }
            };
            assertEquals(500, send(withoutKey("")).statusCode());
        }
        assertEquals(0, effects());
    }

    private void spoil(Connection connection, String how) throws SQLException {
        effect(connection);
        try {
            execute(connection, how);
        } catch (SQLException caught) {
            assertEquals("22012", caught.getSQLState());
        }
    }

    @Test
    void anotherAttemptFindsNoAttributeOfTheOneBefore() throws Exception {
        protect(false, options -> options.timeout(Duration.ZERO)); // no limit
        handler = (request, response) -> {
            assertNull(request.getAttribute("seen"));
            assertEquals(1, request.getAttribute("before"));
            request.setAttribute("seen", true);
            effect(Exchange.of(request).connection());
            if (runs.incrementAndGet() == 1) {
                throw new SQLException("conflict", "40001");
            }
        };
        Filter protecting = filter;
        filter = (request, response, chain) -> {
            request.setAttribute("before", 1);
            protecting.doFilter(request, response, chain);
        };
        twice(200, true);
        assertEquals(2, runs.get());
        assertEquals(1, effects());
    }

    @Test
    void whatALeasedHandlerHasNotDoneIsFreeAtOnce() throws Exception {
        protect(true, options -> { });
        handler = (request, response) -> {
            assertFalse(Exchange.of(request).lease().isLost());
            assertEquals(key, Exchange.of(request).operation().key());
            int run = runs.incrementAndGet();
            if (run < 3) {
                throw new ServletException(new IdempotencyException.NotDone(run == 1 ? null : new IOException()));
            }
        };
        HttpResponse<String> first = post("/orders", "ann", "1");
        assertTrue(first.body().contains("The request was not processed"), first::body);
        assertEquals(List.of(503, "1"), List.of(first.statusCode(), first.headers().firstValue("Retry-After").orElse("")));
        for (int status : new int[] {500, 200}) {
            assertEquals(status, post("/orders", "ann", "1").statusCode());
        }
    }

    @Test
    void aHandlerThatTakesTooLongIsStoppedAndRolledBack() throws Exception {
        String[] cancelled = new String[1];
        protect(false, options -> options.timeout(Duration.ofSeconds(2)));
        handler = (request, response) -> {
            effect(Exchange.of(request).connection());
            if (runs.incrementAndGet() == 1) {
                try {
                    execute(Exchange.of(request).connection(), "SELECT pg_sleep(20)");
                } catch (SQLException error) {
                    cancelled[0] = error.getSQLState();
                    throw new Declined(402, null); // behind its time it has nothing to say
                }
            }
            response.setStatus(201);
        };
        HttpResponse<String> late = post("/orders", "ann", "1");
        assertEquals(503, late.statusCode());
        assertEquals("57014", cancelled[0]);
        assertEquals("1", late.headers().firstValue("Retry-After").orElseThrow());
        assertTrue(late.body().contains("\"The request took too long\""), late.body());
        assertEquals(0, effects());
        protect(false, options -> { });
        assertEquals(201, post("/orders", "ann", "1").statusCode());
        assertEquals(1, effects());
    }

    /** Behind its time a conflict is none that is repeated, nor is a lost connection: on a virtual thread the interrupt closes the socket. */
    @ParameterizedTest
    @ValueSource(strings = {"DO $$BEGIN RAISE 'conflict' USING ERRCODE = '40001'; END$$", "SELECT pg_terminate_backend(pg_backend_pid())"})
    void aHandlerThatTookTooLongIsNotRepeated(String late) throws Exception {
        handler = (request, response) -> {
            runs.incrementAndGet();
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException interrupted) {
                execute(Exchange.of(request).connection(), late);
            }
        };
        for (Transactions transactions : new Transactions[] {Transactions.of(pool),
                new SpringTransactions(new JdbcTransactionManager(pool), pool)}) {
            FilterOptions options = new FilterOptions(request -> new Route("/orders", false), request -> "ann")
                    .timeout(Duration.ofMillis(200));
            filter = new IdempotencyFilter(new Idempotency(transactions, Options.DEFAULT), options);
            runs.set(0);
            HttpResponse<String> answer = post("/orders", "ann", "1");
            assertTrue(answer.body().contains("\"The request took too long\""), answer.body());
            assertEquals(1, runs.get());
        }
    }

    /** What it does with the interrupt is its own affair: it said nothing in time. */
    @Test
    void aLeasedHandlerThatTakesTooLongIsInterrupted() throws Exception {
        boolean[] isInterrupted = new boolean[2];
        handler = (request, response) -> {
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException late) {
                isInterrupted[0] = true;
                Thread.currentThread().interrupt();
            }
            response.setStatus(201);
        };
        protect(true, options -> options.timeout(Duration.ofMillis(200)).passOn(error -> true));
        Filter protecting = filter;
        filter = (request, response, chain) -> {
            protecting.doFilter(request, response, chain);
            isInterrupted[1] = Thread.currentThread().isInterrupted();
        };
        assertEquals(503, post("/orders", "ann", "1").statusCode());
        assertEquals(409, post("/orders", "ann", "1").statusCode());
        assertTrue(isInterrupted[0]);
        assertFalse(isInterrupted[1]);
    }

    /** Nobody else says why: the client gets no message of an exception. */
    @Test
    void aFailureIsLoggedAndARefusalIsNot() throws Exception {
        List<Throwable> logged = new CopyOnWriteArrayList<>();
        var log = Logger.getLogger(IdempotencyFilter.class.getName());
        log.setFilter(entry -> logged.add(entry.getThrown()));
        try {
            RuntimeException broken = new IllegalStateException("broken");
            handler = (request, response) -> {
                throw broken;
            };
            for (boolean isLeased : new boolean[] {false, true}) {
                protect(isLeased, options -> { });
                post("/orders", "ann", "1");
                assertSame(broken, logged.remove(0));
            }
            protect(false, options -> options.problem((error, usual) -> new Problem(409, null, "Sold out", null, null)));
            assertEquals(409, post("/orders", "bob", "1").statusCode());
            assertSame(broken, logged.remove(0));
            protect(true, options -> { });
            assertEquals(422, post("/orders", "ann", "2").statusCode());
            post("/orders", "", "1");
            RuntimeException own = new IllegalArgumentException("own");
            protect(false, options -> options.problem((error, usual) -> {
                throw own;
            }));
            assertEquals(401, post("/orders", "", "1").statusCode());
            assertEquals(List.of(own), logged);
        } finally {
            log.setFilter(null);
        }
    }

    /** Tomcat, which stands in front, makes a page of it. */
    @Test
    void whatIsPassedOnIsNotAnsweredHere() throws Exception {
        List<Class<?>> passed = new ArrayList<>();
        handler = (request, response) -> {
            Connection connection = Exchange.of(request).connection();
            if (connection != null) {
                effect(connection);
            }
            if (runs.incrementAndGet() % 2 == 0) {
                throw new IllegalStateException();
            }
            throw new ServletException(new IllegalStateException());
        };
        for (boolean isLeased : new boolean[] {false, true}) {
            protect(isLeased, options -> options.optional().passOn(error -> error instanceof IllegalStateException));
            Filter protecting = filter;
            filter = (request, response, chain) -> {
                try {
                    protecting.doFilter(request, response, chain);
                } catch (ServletException | RuntimeException error) {
                    passed.add(error.getClass());
                    throw error;
                }
            };
            for (HttpResponse<String> answer : List.of(post("/orders", "ann", "1"), post("/orders", "ann", "1"),
                    send(withoutKey("1")), send(withoutKey("1")))) {
                assertEquals(500, answer.statusCode());
                assertTrue(answer.headers().firstValue("Content-Type").orElseThrow().startsWith("text/html"), answer.body());
            }
        }
        List<Class<?>> thrown = List.of(ServletException.class, IllegalStateException.class);
        assertEquals(Stream.generate(() -> thrown).limit(4).flatMap(List::stream).toList(), passed);
        assertEquals(0, effects());
    }
}
