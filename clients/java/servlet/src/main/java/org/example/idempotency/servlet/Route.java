package org.example.idempotency.servlet;

/**
 * A route whose requests need a key.
 *
 * @param template names the route, such as {@code /accounts/{id}/payments}: keys of different
 *     routes are different keys
 * @param isLeased whether the handler runs under a lease, as it calls others. Otherwise it runs in
 *     the transaction of its answer
 */
public record Route(String template, boolean isLeased) {
    /**
     * {@return a route whose effects are in the database}
     *
     * @param template names the route
     */
    public static Route transaction(String template) {
        return new Route(template, false);
    }

    /**
     * {@return a route whose effects are elsewhere, too}
     *
     * @param template names the route
     */
    public static Route lease(String template) {
        return new Route(template, true);
    }
}
