package org.example.idempotency.servlet;

import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Supplier;

/** Holds a handler's answer back until it is committed. */
final class RecordedResponse extends HttpServletResponseWrapper {
    private final Map<String, List<String>> headers = Answer.noHeaders();
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    private final int max;
    private int status = 200;
    private String encoding;
    private TooLarge failure;
    private Locale locale = Locale.getDefault();
    private PrintWriter writer;
    private final List<PrintWriter> writers = new ArrayList<>();     // a handler may hold one from before a reset
    private final ServletOutputStream stream = new Body();
    private boolean isStreamed;

    /** The answer is larger than the option says. */
    static final class TooLarge extends IOException {
        TooLarge() {
            super("the handler's answer is larger than maxResponse");
        }
    }

    RecordedResponse(HttpServletResponse response, int max) {
        super(hidden(response));
        this.max = max;
    }

    /** Tomcat looks for the response behind a wrapper, and ends it, when a forward returns. */
    private static HttpServletResponse hidden(HttpServletResponse response) {
        return (HttpServletResponse) Proxy.newProxyInstance(RecordedResponse.class.getClassLoader(), new Class<?>[] {HttpServletResponse.class},
                (proxy, method, arguments) -> {
                    try {
                        return method.invoke(response, arguments);
                    } catch (InvocationTargetException error) {
                        throw error.getCause();
                    }
                });
    }

    /** The answer; an exception where it became too large, even if the handler has swallowed that. */
    Answer finish() throws TooLarge {
        flushBuffer();
        if (failure != null) {
            throw failure;
        }
        return new Answer(status, headers, body.toByteArray());
    }

    private final class Body extends ServletOutputStream {
        @Override
        public void write(int b) throws IOException {
            write(new byte[] {(byte) b}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int length) throws IOException {
            if (body.size() + length > max) {
                failure = new TooLarge();
                throw failure;
            }
            body.write(bytes, from, length);
        }

        @Override
        public boolean isReady() {
            return true;
        }

        @Override
        public void setWriteListener(WriteListener listener) {
            throw new IllegalStateException("a handler behind this filter is not asynchronous");
        }
    }

    @Override
    public ServletOutputStream getOutputStream() {
        if (writer != null) {
            throw new IllegalStateException("getWriter() was called before");
        }
        isStreamed = true;
        return stream;
    }

    /** None behind a stream: the container asks for one at the end of each forward, and a charset would come into the type. */
    @Override
    public PrintWriter getWriter() {
        if (isStreamed) {
            throw new IllegalStateException("getOutputStream() was called before");
        }
        if (writer == null) {
            setCharacterEncoding(getCharacterEncoding());
            writer = new PrintWriter(new OutputStreamWriter(stream, Charset.forName(getCharacterEncoding())));
            writers.add(writer);
        }
        return writer;
    }

    @Override
    public void setStatus(int value) {
        status = value;
    }

    @Override
    public int getStatus() {
        return status;
    }

    /** No error page comes after it: the answer that is stored has no body. */
    @Override
    public void sendError(int value, String message) {
        resetBuffer();
        status = value;
    }

    @Override
    public void sendError(int value) {
        sendError(value, null);
    }

    @Override
    public void sendRedirect(String location) {
        sendRedirect(location, 302, true);
    }

    /** Of Servlet 6.1, as this package is compiled with 6.0: without it the container's own would send at once. */
    public void sendRedirect(String location, int value, boolean clearBuffer) {
        if (clearBuffer) {
            resetBuffer();
        }
        status = value;
        setHeader("Location", location);
    }

    @Override
    public void setHeader(String name, String value) {
        headers.remove(name);
        addHeader(name, value);
    }

    @Override
    public void addHeader(String name, String value) {
        if (value == null) {
            return;
        }
        Answer.check(name, value);
        headers.computeIfAbsent(name, key -> new ArrayList<>()).add(value);
    }

    @Override
    public void setIntHeader(String name, int value) {
        setHeader(name, String.valueOf(value));
    }

    @Override
    public void addIntHeader(String name, int value) {
        addHeader(name, String.valueOf(value));
    }

    @Override
    public void setDateHeader(String name, long date) {
        setHeader(name, httpDate(Instant.ofEpochMilli(date)));
    }

    @Override
    public void addDateHeader(String name, long date) {
        addHeader(name, httpDate(Instant.ofEpochMilli(date)));
    }

    /** A day has two digits, which those of RFC_1123_DATE_TIME have not. */
    static String httpDate(Instant time) {
        return DateTimeFormatter.ofPattern("EEE, dd MMM yyyy HH:mm:ss 'GMT'", Locale.ENGLISH)
                .format(time.atOffset(ZoneOffset.UTC));
    }

    @Override
    public boolean containsHeader(String name) {
        return headers.containsKey(name);
    }

    @Override
    public String getHeader(String name) {
        return headers.containsKey(name) ? headers.get(name).get(0) : null;
    }

    @Override
    public Collection<String> getHeaders(String name) {
        return headers.getOrDefault(name, List.of());
    }

    @Override
    public Collection<String> getHeaderNames() {
        return headers.keySet();
    }

    /** Of this answer only: a cookie is never stored. */
    @Override
    public void addCookie(Cookie cookie) {
        StringBuilder text = new StringBuilder(cookie.getName() + '=' + cookie.getValue());
        cookie.getAttributes().forEach((name, value) -> text.append("; ").append(name)
                .append(value.isEmpty() || value.equals("true") ? "" : '=' + value));
        addHeader("Set-Cookie", text.toString());
    }

    @Override
    public void setContentType(String type) {
        if (type != null) {
            setHeader("Content-Type", type);
        }
    }

    @Override
    public String getContentType() {
        return getHeader("Content-Type");
    }

    @Override
    public void setCharacterEncoding(String name) {
        encoding = name;
        String type = getContentType();
        if (name != null && type != null && !type.toLowerCase(Locale.ROOT).contains("charset=")) {
            setContentType(type + ";charset=" + name);
        }
    }

    /** Of Servlet 6.1, as above. */
    public void setCharacterEncoding(Charset charset) {
        setCharacterEncoding(charset.name());
    }

    /** None: they would be sent, and not stored. */
    @Override
    public void setTrailerFields(Supplier<Map<String, String>> supplier) {
        throw new IllegalStateException("the answer is stored, and trailers are not");
    }

    @Override
    public String getCharacterEncoding() {
        String type = getContentType() == null ? "" : getContentType();
        int at = type.toLowerCase(Locale.ROOT).indexOf("charset=");
        if (at >= 0) {
            return type.substring(at + 8).split(";", 2)[0].strip().replace("\"", "");
        }
        return encoding == null ? StandardCharsets.UTF_8.name() : encoding;
    }

    /** The length is that of what was written. */
    @Override
    public void setContentLength(int length) {
        // see above
    }

    @Override
    public void setContentLengthLong(long length) {
        // see above
    }

    @Override
    public void setLocale(Locale value) {
        locale = value;
        setHeader("Content-Language", value.toLanguageTag());
    }

    @Override
    public Locale getLocale() {
        return locale;
    }

    @Override
    public void flushBuffer() {
        writers.forEach(PrintWriter::flush);
    }

    @Override
    public boolean isCommitted() {
        return false;
    }

    @Override
    public void resetBuffer() {
        flushBuffer();
        body.reset();
    }

    @Override
    public void reset() {
        resetBuffer();
        headers.clear();
        status = 200;
        encoding = null;
        writer = null;
        isStreamed = false;
    }

    @Override
    public int getBufferSize() {
        return max;
    }

    @Override
    public void setBufferSize(int size) {
        // it holds the whole answer
    }
}
