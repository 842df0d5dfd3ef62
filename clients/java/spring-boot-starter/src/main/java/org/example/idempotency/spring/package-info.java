/**
 * Idempotent methods and controllers of Spring Boot: {@link org.example.idempotency.spring.Idempotent}
 * and {@link org.example.idempotency.spring.IdempotentRequest}.
 */
package org.example.idempotency.spring;
