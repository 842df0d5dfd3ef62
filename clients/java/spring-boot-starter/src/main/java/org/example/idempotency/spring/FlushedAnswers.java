package org.example.idempotency.spring;

import jakarta.servlet.http.HttpServletRequest;
import java.util.function.IntPredicate;
import java.util.function.Supplier;
import org.example.idempotency.Idempotency;
import org.example.idempotency.servlet.Exchange;
import org.springframework.core.MethodParameter;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.Order;
import org.springframework.http.MediaType;
import org.springframework.http.converter.HttpMessageConverter;
import org.springframework.http.server.ServerHttpRequest;
import org.springframework.http.server.ServerHttpResponse;
import org.springframework.http.server.ServletServerHttpRequest;
import org.springframework.http.server.ServletServerHttpResponse;
import org.springframework.web.bind.annotation.ControllerAdvice;
import org.springframework.web.servlet.mvc.method.annotation.ResponseBodyAdvice;

/**
 * An entity gets its version and its times by the flush. Without an operation the transaction has ended before an answer is
 * written; within one it ends behind that, so the flush comes here, before advice of the application reads the entity. The
 * filter passes on what it throws without the wrapper of Spring.
 */
@ControllerAdvice
@Order(Ordered.HIGHEST_PRECEDENCE)
final class FlushedAnswers implements ResponseBodyAdvice<Object> {
    private final Supplier<Idempotency> once;

    FlushedAnswers(Supplier<Idempotency> once) {
        this.once = once;
    }

    /** That of an exception's handler is none: the transaction may have failed. */
    @Override
    public boolean supports(MethodParameter returned, Class<? extends HttpMessageConverter<?>> converter) {
        return returned.hasMethodAnnotation(IdempotentRequest.class);
    }

    @Override
    public Object beforeBodyWrite(Object body, MethodParameter returned, MediaType type, Class<? extends HttpMessageConverter<?>> converter,
            ServerHttpRequest request, ServerHttpResponse response) {
        HttpServletRequest received = ((ServletServerHttpRequest) request).getServletRequest();
        // what the handler wrote is rolled back where it refuses
        if (SpringTransactions.isWithinOne() && received.getAttribute(Exchange.class.getName() + ".stores") instanceof IntPredicate stores
                && stores.test(((ServletServerHttpResponse) response).getServletResponse().getStatus())) {
            try {
                once.get().transactions().flush();
            } catch (RuntimeException refused) {
                received.setAttribute(Exchange.class.getName() + ".flush", refused);
                throw refused;
            }
        }
        return body;
    }
}
