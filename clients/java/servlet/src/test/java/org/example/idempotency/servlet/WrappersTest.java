package org.example.idempotency.servlet;

import static org.junit.jupiter.api.Assertions.*;

import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** The request and the response as a handler has them. */
class WrappersTest {
    private static final Object NOTHING = new Object();

    @FunctionalInterface
    private interface Handler {
        void handle(RecordedResponse response) throws IOException;
    }

    /** What the container would say; where that is nothing, the call must not come to it. */
    private static <T> T container(Class<T> type, Map<String, Object> answers) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> {
            assertTrue(answers.containsKey(method.getName()), () -> method.getName() + " came to the container");
            return answers.get(method.getName()) == NOTHING ? null : answers.get(method.getName());
        }));
    }

    private static Answer answer(Handler handler) throws IOException {
        RecordedResponse response = new RecordedResponse(container(HttpServletResponse.class, Map.of()), 20);
        handler.handle(response);
        return response.finish();
    }

    private static void assertAnswer(int status, String type, String body, Handler handler) throws IOException {
        Answer answer = answer(handler);
        assertEquals(status, answer.status());
        assertEquals(type == null ? null : List.of(type), answer.headers().get("Content-Type"));
        assertEquals(body, new String(answer.body(), StandardCharsets.ISO_8859_1).replace("\0", ""));
    }

    @Test
    void headersAreKeptUntilTheCommit() throws IOException {
        Cookie cookie = new Cookie("id", "1");
        Map.of("Path", "/", "Flag", "true", "Partitioned", "").forEach(cookie::setAttribute);
        Answer answer = answer(response -> {
            response.setHeader("One", "0");
            response.setHeader("ONE", "1");
            response.addHeader("one", "2");
            response.addHeader("one", null);
            response.setIntHeader("Int", 1);
            response.addIntHeader("Int", 2);
            response.setDateHeader("Date", 0);
            response.addDateHeader("Date", 1_793_696_700_000L);
            response.setLocale(Locale.GERMANY);
            response.addCookie(cookie);
            response.setContentLength(7);
            response.setContentLengthLong(7);
            response.setBufferSize(7);
            assertEquals(List.of(true, false), List.of(response.containsHeader("one"), response.containsHeader("two")));
            assertEquals(Arrays.asList("1", null), Arrays.asList(response.getHeader("one"), response.getHeader("two")));
            assertEquals(List.of(List.of("1", "2"), List.of()), List.of(response.getHeaders("one"), response.getHeaders("two")));
            assertEquals(Set.of("ONE", "Int", "Date", "Content-Language", "Set-Cookie"), Set.copyOf(response.getHeaderNames()));
            assertEquals(List.of(Locale.GERMANY, 20, false, 200),
                    List.of(response.getLocale(), response.getBufferSize(), response.isCommitted(), response.getStatus()));
            assertThrows(IllegalArgumentException.class, () -> response.setHeader("Two", "\u2603"));
            assertThrows(IllegalArgumentException.class, () -> response.setHeader("O ne", "1"));
        });
        assertEquals(Map.of("ONE", List.of("1", "2"), "Int", List.of("1", "2"), "Content-Language", List.of("de-DE"),
                "Date", List.of("Thu, 01 Jan 1970 00:00:00 GMT", "Tue, 03 Nov 2026 09:05:00 GMT"),
                "Set-Cookie", List.of("id=1; Flag; Partitioned; Path=/")), answer.headers());
    }

    @Test
    void anErrorARedirectAndAResetStartAnew() throws IOException {
        Handler broken = response -> {
            response.setStatus(201);
            response.getOutputStream().write('x');
        };
        assertAnswer(201, null, "x", broken);
        assertAnswer(404, null, "", response -> {
            broken.handle(response);
            response.sendError(404);
        });
        assertAnswer(302, null, "", response -> {
            broken.handle(response);
            response.sendRedirect("/done");
            assertEquals("/done", response.getHeader("Location"));
        });
        assertAnswer(303, null, "x", response -> {
            broken.handle(response);
            response.sendRedirect("/done", 303, false);
        });
        assertAnswer(200, "text/plain;charset=ISO-8859-1", "!\u00e9", response -> {
            broken.handle(response);
            response.reset();
            response.setStatus(201);
            response.setHeader("One", "1");
            response.setCharacterEncoding("UTF-16");
            var held = response.getWriter();
            held.write("broken");
            response.reset();
            assertEquals("UTF-8", response.getCharacterEncoding());
            assertFalse(response.containsHeader("One"));
            response.setContentType("text/plain;charset=ISO-8859-1");
            response.getWriter().write("\u00e9");
            held.write('!');
        });
    }

    @Test
    void theTypeSaysTheCharsetOfTheWriter() throws IOException {
        assertAnswer(200, null, "\u00c3\u00a9", response -> response.getWriter().write("\u00e9"));
        assertAnswer(200, "a/b;charset=UTF-8", "\u00c3\u00a9", response -> {
            response.setContentType("a/b");
            response.setContentType(null);
            response.setCharacterEncoding((String) null);
            assertSame(response.getWriter(), response.getWriter());
            response.getWriter().write("\u00e9");
        });
        assertAnswer(200, "a/b; CHARSET=\"ISO-8859-1\" ; c=d", "\u00e9", response -> {
            response.setContentType("a/b; CHARSET=\"ISO-8859-1\" ; c=d");
            response.getWriter().write("\u00e9");
        });
        for (Handler named : List.<Handler>of(response -> response.setCharacterEncoding("ISO-8859-1"),
                response -> response.setCharacterEncoding(StandardCharsets.ISO_8859_1))) {
            assertAnswer(200, null, "\u00e9", response -> {
                named.handle(response);
                response.getWriter().write("\u00e9");
            });
        }
    }

    /** Tomcat and Undertow ask for the writer when a forward ends, and take the stream where that throws. */
    @Test
    void anAnswerHasAWriterOrAStream() throws IOException {
        assertAnswer(200, "image/png", "x", response -> {
            response.setContentType("image/png");
            response.getOutputStream().write('x');
            assertThrows(IllegalStateException.class, response::getWriter);
        });
        assertAnswer(200, null, "x", response -> {
            response.getWriter().write('x');
            assertThrows(IllegalStateException.class, response::getOutputStream);
        });
    }

    /** A writer says nothing of what its stream has thrown. */
    @Test
    void whatIsTooLargeIsSaidAtTheLatestAtTheEnd() throws IOException {
        assertAnswer(200, null, "x".repeat(20), response -> response.getWriter().write("x".repeat(20)));
        assertThrows(RecordedResponse.TooLarge.class, () -> answer(response -> response.getWriter().write("x".repeat(21))));
        assertThrows(RecordedResponse.TooLarge.class, () -> answer(response -> {
            response.getOutputStream().write(new byte[20]);
            response.getOutputStream().write('x');
        }));
        assertThrows(RecordedResponse.TooLarge.class, () -> answer(response -> assertThrows(RecordedResponse.TooLarge.class,
                () -> response.getOutputStream().write(new byte[21]))));
    }

    private static ReceivedRequest request(String type, String encoding, String body) {
        return new ReceivedRequest(container(HttpServletRequest.class, Map.of("getContentType", type == null ? NOTHING : type,
                "getCharacterEncoding", encoding == null ? NOTHING : encoding, "getParameterMap", Map.of("a", new String[] {"0"}))),
                body.getBytes(StandardCharsets.ISO_8859_1));
    }

    @Test
    void parametersAreThoseOfTheQueryAndOfAForm() {
        ReceivedRequest form = request("Application/X-WWW-Form-urlencoded ; charset=x; y", null, "a=1&b&&c=%C3%A4+=y&a=2");
        assertEquals(List.of("a", "b", "c"), Collections.list(form.getParameterNames()));
        assertEquals(List.of("0", "1", "2"), List.of(form.getParameterValues("a")));
        assertEquals(List.of("0", "", "\u00e4 =y"), Stream.of("a", "b", "c").map(form::getParameter).toList());
        assertNull(form.getParameter("d"));
        assertEquals("\u00e4", request("application/x-www-form-urlencoded", "ISO-8859-1", "b=%E4").getParameter("b"));
        assertEquals("\u00e4", request("application/x-www-form-urlencoded", null, "b=\u00c3%A4").getParameter("b")); // as curl sends it
        for (String other : new String[] {null, "text/plain"}) {
            assertEquals(Set.of("a"), request(other, null, "b=1").getParameterMap().keySet());
        }
    }

    @Test
    void whatTheContainerCannotReadIsNoMistakeOfTheHandler() {
        var broken = new HttpServletRequestWrapper(container(HttpServletRequest.class, Map.of())) {
            @Override
            public Map<String, String[]> getParameterMap() {
                throw new IllegalStateException("as Tomcat throws it");
            }
        };
        assertThrows(ReceivedRequest.Unreadable.class, () -> new ReceivedRequest(broken, new byte[0]).getParameter("a"));
    }

    /** Each took a copy of all before it, and each question read the whole body again. */
    @Test
    void aFormOfManyParametersIsReadOnce() {
        assertTimeoutPreemptively(Duration.ofSeconds(20), () -> {
            ReceivedRequest one = request("application/x-www-form-urlencoded", null, "a=&".repeat(300_000));
            assertEquals(300_001, one.getParameterValues("a").length);
            String body = IntStream.range(0, 100_000).mapToObj(n -> "a" + n).collect(Collectors.joining("&"));
            ReceivedRequest many = request("application/x-www-form-urlencoded", null, body);
            Collections.list(many.getParameterNames()).forEach(name -> assertNotNull(many.getParameter(name)));
        });
    }

    @Test
    void theBodyIsReadByAReaderOrAStream() throws IOException {
        ReceivedRequest latin = request(null, "ISO-8859-1", "\u00e9\n2");
        assertEquals("\u00e9", latin.getReader().readLine());
        assertEquals("2", latin.getReader().readLine());
        assertEquals("\u00e9", request(null, null, "\u00c3\u00a9").getReader().readLine());
        var stream = request(null, null, "12").getInputStream();
        assertTrue(stream.isReady());
        assertEquals('1', stream.read());
        assertFalse(stream.isFinished());
        assertEquals(1, stream.readAllBytes().length);
        assertTrue(stream.isFinished());
    }

    @Test
    void anAnswerThatWouldComeLaterIsRefused() {
        ReceivedRequest request = request(null, null, "");
        RecordedResponse response = new RecordedResponse(container(HttpServletResponse.class, Map.of()), 20);
        for (Executable late : List.<Executable>of(request::startAsync, () -> request.startAsync(request, response), request::getParts,
                () -> request.getPart("a"), () -> request.getInputStream().setReadListener(null),
                () -> response.getOutputStream().setWriteListener(null), () -> response.setTrailerFields(Map::of))) {
            assertThrows(IllegalStateException.class, late);
        }
        assertFalse(request.isAsyncSupported());
        assertTrue(response.getOutputStream().isReady());
    }
}
