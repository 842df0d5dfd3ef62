package org.example.idempotency.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Requests of a controller's method, whatever theirs is, need a key in the header Idempotency-Key, and a
 * retry gets the first answer. The method and all that it calls join the transaction of the answer.
 * A program of WebFlux with such a method does not start.
 */
@Documented
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface IdempotentRequest {
    /**
     * {@return whether the method runs under a lease, without a transaction, as it calls others; by default false} What
     * it writes, it gives to {@link org.example.idempotency.servlet.Exchange#completeWith}.
     */
    boolean lease() default false;
}
