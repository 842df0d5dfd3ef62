package org.example.idempotency.servlet;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.Part;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A request whose body was read, and can be read again from its start. */
final class ReceivedRequest extends HttpServletRequestWrapper {
    private static final String NOT_ASYNC = "the answer belongs to the transaction: a handler behind this filter is not asynchronous";

    private final byte[] body;
    private final ServletInputStream stream;
    private BufferedReader reader;
    private Map<String, String[]> parameters;

    ReceivedRequest(HttpServletRequest request, byte[] body) {
        super(request);
        this.body = body;
        this.stream = new Body(body);
    }

    @Override
    public ServletInputStream getInputStream() {
        return stream;
    }

    @Override
    public BufferedReader getReader() {
        if (reader == null) {
            reader = new BufferedReader(new InputStreamReader(stream, charset()));
        }
        return reader;
    }

    private Charset charset() {
        return getCharacterEncoding() == null ? StandardCharsets.UTF_8 : Charset.forName(getCharacterEncoding());
    }

    /** The client has sent parameters that are none, such as a "%" without a number. */
    static final class Unreadable extends RuntimeException {
        Unreadable(RuntimeException cause) {
            super("the parameters of the request cannot be read", cause);
        }
    }

    @Override
    public Map<String, String[]> getParameterMap() {
        try {
            if (parameters == null) { // a framework asks once for each
                parameters = parameters();
            }
            return parameters;
        } catch (IllegalArgumentException | IllegalStateException broken) { // the one of URLDecoder, the other of the container
            throw new Unreadable(broken);
        }
    }

    /** Those of the query and, of a form, those of the body: the container cannot read it any more. */
    private Map<String, String[]> parameters() {
        Map<String, List<String>> all = new LinkedHashMap<>();
        super.getParameterMap().forEach((name, values) -> all.put(name, new ArrayList<>(List.of(values))));
        String type = getContentType() == null ? "" : getContentType().split(";", 2)[0].strip();
        if (type.equalsIgnoreCase("application/x-www-form-urlencoded")) {
            for (String pair : new String(body, StandardCharsets.ISO_8859_1).split("&")) {
                String[] parts = pair.split("=", 2);
                if (!pair.isEmpty()) {
                    all.computeIfAbsent(decode(parts[0]), name -> new ArrayList<>())
                            .add(parts.length < 2 ? "" : decode(parts[1]));
                }
            }
        }
        Map<String, String[]> arrays = new LinkedHashMap<>();
        all.forEach((name, values) -> arrays.put(name, values.toArray(String[]::new)));
        return Collections.unmodifiableMap(arrays);
    }

    /** Of the text, each character is a byte. Not all clients write all of them with a "%". */
    private String decode(String text) {
        return new String(URLDecoder.decode(text, StandardCharsets.ISO_8859_1).getBytes(StandardCharsets.ISO_8859_1), charset());
    }

    @Override
    public String getParameter(String name) {
        String[] values = getParameterValues(name);
        return values == null ? null : values[0];
    }

    @Override
    public String[] getParameterValues(String name) {
        return getParameterMap().get(name);
    }

    @Override
    public Enumeration<String> getParameterNames() {
        return Collections.enumeration(getParameterMap().keySet());
    }

    @Override
    public Collection<Part> getParts() {
        throw new IllegalStateException("the filter has read the body: read its parts from getInputStream()");
    }

    @Override
    public Part getPart(String name) {
        throw new IllegalStateException("the filter has read the body: read its parts from getInputStream()");
    }

    @Override
    public boolean isAsyncSupported() {
        return false;
    }

    @Override
    public AsyncContext startAsync() {
        throw new IllegalStateException(NOT_ASYNC);
    }

    @Override
    public AsyncContext startAsync(ServletRequest request, ServletResponse response) {
        throw new IllegalStateException(NOT_ASYNC);
    }

    private static final class Body extends ServletInputStream {
        private final ByteArrayInputStream bytes;

        Body(byte[] body) {
            bytes = new ByteArrayInputStream(body);
        }

        @Override
        public int read() {
            return bytes.read();
        }

        @Override
        public int read(byte[] to, int from, int length) {
            return bytes.read(to, from, length);
        }

        @Override
        public boolean isFinished() {
            return bytes.available() == 0;
        }

        @Override
        public boolean isReady() {
            return true;
        }

        @Override
        public void setReadListener(ReadListener listener) {
            throw new IllegalStateException(NOT_ASYNC);
        }
    }
}
