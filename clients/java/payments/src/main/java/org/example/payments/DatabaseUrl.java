package org.example.payments;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** An address as libpq takes it, {@code postgres://user:password@host:port/database?host=/directory}, in the words of pgjdbc. */
record DatabaseUrl(String jdbcUrl, String user, String password) {
    private static final Pattern URL = Pattern.compile("postgres(?:ql)?://(?:([^:@/]*)(?::([^@/]*))?@)?([^:/?]*)(?::([0-9]+))?(?:/([^?]*))?(?:\\?(.*))?");

    static DatabaseUrl of(String url) {
        Matcher parts = URL.matcher(url);
        if (!parts.matches()) {
            throw new IllegalArgumentException("DATABASE_URL is not postgres://...");
        }
        Map<String, String> options = new HashMap<>();
        for (String option : part(parts, 6).split("&")) {
            String[] pair = option.split("=", 2);
            if (pair.length == 2) {
                options.put(pair[0], decode(pair[1]));
            }
        }
        String host = options.getOrDefault("host", part(parts, 3));
        String port = options.getOrDefault("port", parts.group(4) == null ? "5432" : parts.group(4));
        String socket = host.startsWith("/")
                ? "&socketFactory=org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg&socketFactoryArg=" + host + "/.s.PGSQL." + port : "";
        String address = host.startsWith("/") || host.isEmpty() ? "localhost" : host;
        return new DatabaseUrl("jdbc:postgresql://" + address + ':' + port + '/' + part(parts, 5)
                + "?sslmode=disable&gssEncMode=disable" + socket, part(parts, 1), part(parts, 2));
    }

    private static String part(Matcher parts, int number) {
        return parts.group(number) == null ? "" : decode(parts.group(number));
    }

    private static String decode(String text) {
        return URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
    }
}
