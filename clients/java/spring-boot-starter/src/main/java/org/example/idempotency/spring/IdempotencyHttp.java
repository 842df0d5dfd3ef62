package org.example.idempotency.spring;

import jakarta.servlet.http.HttpServletRequest;
import org.example.idempotency.servlet.FilterOptions;

/** What a program says of its HTTP: a bean, in place of the usual one. */
@FunctionalInterface
public interface IdempotencyHttp {
    /**
     * Who sends a request. Keys of different principals are different keys.
     *
     * @param request behind authentication
     * @return a name; null or "": nobody, and the answer is 401
     */
    String principal(HttpServletRequest request);

    /**
     * Changes the settings of the filter.
     *
     * @param options the settings
     */
    default void configure(FilterOptions options) {
    }
}
