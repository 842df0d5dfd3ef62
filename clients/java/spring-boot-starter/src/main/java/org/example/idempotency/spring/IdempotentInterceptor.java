package org.example.idempotency.spring;

import java.lang.reflect.Method;
import java.util.concurrent.Future;
import java.util.function.Supplier;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.example.idempotency.Call;
import org.example.idempotency.Completion;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Identity;
import org.example.idempotency.Response;
import org.example.idempotency.Result;
import org.springframework.aop.support.AopUtils;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.ParameterNameDiscoverer;
import org.springframework.core.ReactiveAdapterRegistry;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.ExpressionParser;
import org.springframework.expression.spel.standard.SpelExpressionParser;

/** Runs the methods that are {@link Idempotent}. What it needs is asked for at the first call, as advice is made before most beans. */
final class IdempotentInterceptor implements MethodInterceptor {
    private static final ExpressionParser PARSER = new SpelExpressionParser();
    private static final ParameterNameDiscoverer NAMES = new DefaultParameterNameDiscoverer();

    private final Supplier<Idempotency> once;
    private final Supplier<Json> json;

    IdempotentInterceptor(Supplier<Idempotency> once, Supplier<Json> json) {
        this.once = once;
        this.json = json;
    }

    @Override
    public Object invoke(MethodInvocation invocation) throws Throwable {
        Method method = AopUtils.getMostSpecificMethod(invocation.getMethod(), invocation.getThis().getClass());
        Idempotent annotation = AnnotatedElementUtils.findMergedAnnotation(method, Idempotent.class);
        refuseAsynchronous(method);
        Call call = Call.of(keyOf(invocation, method, annotation))
                .withScope(Identity.function(once.get().options().scope(), annotation.name()))
                .withMaxLostAttempts(annotation.maxLostAttempts())
                .withRequest(json.get().write(invocation.getArguments()));
        Object[] fresh = new Object[1];
        Result result = annotation.lease()
                ? once.get().<Exception>lease(call, lease -> Completion.of(run(invocation, fresh)))
                : once.get().<Exception>transaction(call, (connection, operation) -> run(invocation, fresh));
        String stored = result.orThrow().payload();
        return result.replayed() ? stored == null ? null : json.get().read(stored, method.getGenericReturnType()) : fresh[0];
    }

    private static String keyOf(MethodInvocation invocation, Method method, Idempotent annotation) {
        var context = new MethodBasedEvaluationContext(invocation.getThis(), method, invocation.getArguments(), NAMES);
        Object key = PARSER.parseExpression(annotation.key()).getValue(context);
        if (key == null || key.toString().isEmpty()) {
            throw new IllegalArgumentException("the key of " + annotation.name() + " is empty: " + annotation.key());
        }
        if (key.toString().equals(key.getClass().getName() + '@' + Integer.toHexString(System.identityHashCode(key)))) {
            throw new IllegalArgumentException("the key of " + annotation.name() + " is another text each time, as "
                    + key.getClass().getName() + " has no toString(): " + annotation.key());
        }
        return key.toString();
    }

    /** What is still running when the method returns would be outside of the transaction and of the stored result. */
    private static void refuseAsynchronous(Method method) {
        Class<?> type = method.getReturnType();
        if (Future.class.isAssignableFrom(type) || ReactiveAdapterRegistry.getSharedInstance().getAdapter(type) != null) {
            throw new IllegalStateException("a method that is @Idempotent returns its result, and no " + type.getName() + ": " + method);
        }
    }

    /** Each attempt has an invocation of its own. */
    private Response run(MethodInvocation invocation, Object[] fresh) throws Exception {
        try {
            var attempt = invocation instanceof org.springframework.aop.ProxyMethodInvocation proxied
                    ? proxied.invocableClone(invocation.getArguments().clone()) : invocation;
            fresh[0] = attempt.proceed();
            return Response.json(fresh[0] == null ? null : json.get().write(fresh[0]));
        } catch (Exception | Error error) {
            throw error;
        } catch (Throwable other) {
            throw new IllegalStateException(other);
        }
    }
}
