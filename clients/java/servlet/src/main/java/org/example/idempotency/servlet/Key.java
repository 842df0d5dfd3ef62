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
    private static final String SPACE = "[ \\t]*+";
    /** Parameters may follow, and are ignored. */
    private static final Pattern QUOTED = Pattern.compile(
            SPACE + STRING + "(?:; *[a-z*][a-z0-9_.*-]*(?:=" + BARE + "|=" + STRING + ")?)*+" + SPACE);
    private static final Pattern UNQUOTED = Pattern.compile(SPACE + "(" + BARE + ")" + SPACE);

    private Key() {
    }

    /** Null where the values are not one key of 1 to 255 characters. */
    static String of(List<String> values, boolean isStrict) {
        if (values.size() != 1) {
            return null;
        }
        Matcher quoted = QUOTED.matcher(values.get(0));
        Matcher unquoted = UNQUOTED.matcher(values.get(0));
        String key = quoted.matches() ? quoted.group(1).replaceAll("\\\\(.)", "$1")
                : !isStrict && unquoted.matches() ? unquoted.group(1) : null;
        return key == null || key.isEmpty() || key.length() > MAX_LENGTH ? null : key;
    }
}
