package org.example.idempotency.servlet;

import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads the key of a request: a string of RFC 8941 or, unless strict, the same without quotes. */
final class Key {
    static final int MAX_LENGTH = 255;
    private static final String BARE = "[!#-'*+\\--:<-\\[\\]-~]+";
    /** Possessive, as each round of any other group takes from the stack. */
    private static final String STRING = "\"((?:[ !#-\\[\\]-~]|\\\\[\"\\\\])*+)\"";
    /** Parameters may follow, and are ignored. */
    private static final Pattern QUOTED = Pattern.compile(STRING + "(?:; *[a-z*][a-z0-9_.*-]*(?:=" + BARE + "|=" + STRING + ")?)*+");

    private Key() {
    }

    /** Null where the values are not one key of 1 to 255 characters. */
    static String of(List<String> values, boolean isStrict) {
        if (values.size() != 1) {
            return null;
        }
        String value = values.get(0).strip();
        Matcher string = QUOTED.matcher(value);
        String key = string.matches() ? string.group(1).replaceAll("\\\\(.)", "$1")
                : !isStrict && value.matches(BARE) ? value : null;
        return key == null || key.isEmpty() || key.length() > MAX_LENGTH ? null : key;
    }
}
