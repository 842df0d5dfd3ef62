package org.example.idempotency.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Of all calls of a method with the same key, one runs, and all return its result, read from its
 * JSON: the first call, too, so what JSON drops nobody gets. Arguments are compared as JSON; another
 * call with the same key and other arguments throws
 * {@link org.example.idempotency.IdempotencyException.KeyReused}.
 *
 * <p>The operation opens the transaction, and the method joins it, with {@code @Transactional} or
 * without: so it is called from outside of a transaction. A {@link org.example.idempotency.Declined}
 * is stored, and thrown to each caller; while another call runs, the exception is
 * {@link org.example.idempotency.IdempotencyException.InProgress}. As with all proxies of Spring, a
 * call from within the same object does not pass through it, and a context with such a method that is private, static or final does
 * not start. The method returns its result, and no
 * future or publisher of it, nor what its caller says, as {@code <T> T} does. An argument or a result whose class has no property is refused, as its
 * JSON would say nothing. A result that cannot be written as JSON, or read from it, rolls the
 * transaction back; with a lease the operation ends, as the work has taken effect, and each call
 * throws. The annotation may stand on the method of an interface.
 */
@Documented
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface Idempotent {
    /**
     * {@return the scope of the method's keys, behind {@code idempotency.scope} and a dot where that is set: so neither may change;
     * a context in which another method has it does not start}
     */
    String name();

    /**
     * {@return the key: an expression of Spring over the arguments, such as {@code #order.id}; its value may
     * not be null or empty, nor of a class without {@code toString()}}
     */
    String key();

    /** {@return whether the method runs under a lease, without a transaction, as it calls others; by default false} */
    boolean lease() default false;

    /**
     * How many attempts may be lost with their transaction; of a lease none are. The next call throws
     * {@link org.example.idempotency.Declined}, and so do all that follow:
     * {@link org.example.idempotency.Call#withMaxLostAttempts}.
     *
     * @return 0, the default: as the server says; below 0: no limit
     */
    int maxLostAttempts() default 0;
}
