/**
 * Operations that take effect once, however often their request arrives: the client of the
 * PostgreSQL extension {@code idempotency} on JDBC.
 *
 * <p>{@link org.example.idempotency.Idempotency} is where to start.
 */
package org.example.idempotency;
