package org.example.idempotency.spring;

import java.lang.reflect.Type;

/** How arguments and results become JSON: a bean, by default on the application's Jackson, 3 or 2. */
public interface Json {
    /**
     * Writes a value.
     *
     * @param value any value, or null
     * @return its JSON
     */
    String write(Object value);

    /**
     * Reads a value.
     *
     * @param json what was written
     * @param type of which type
     * @return the value
     */
    Object read(String json, Type type);
}
