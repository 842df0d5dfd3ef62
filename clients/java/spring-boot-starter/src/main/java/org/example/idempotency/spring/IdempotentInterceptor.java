package org.example.idempotency.spring;

import java.lang.reflect.Method;
import java.lang.reflect.Type;
import java.lang.reflect.TypeVariable;
import java.util.Collection;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.function.Supplier;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.example.idempotency.Call;
import org.example.idempotency.Completion;
import org.example.idempotency.Idempotency;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Identity;
import org.example.idempotency.Response;
import org.example.idempotency.Result;
import org.springframework.aop.ProxyMethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.cache.annotation.AnnotationCacheOperationSource;
import org.springframework.cache.interceptor.CacheOperation;
import org.springframework.cache.interceptor.CacheOperationSource;
import org.springframework.cache.interceptor.CacheableOperation;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.GenericTypeResolver;
import org.springframework.core.ParameterNameDiscoverer;
import org.springframework.core.ReactiveAdapterRegistry;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.MergedAnnotations;
import org.springframework.core.annotation.MergedAnnotations.SearchStrategy;
import org.springframework.expression.ExpressionParser;
import org.springframework.expression.spel.standard.SpelExpressionParser;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.annotation.AnnotationTransactionAttributeSource;
import org.springframework.transaction.interceptor.TransactionAttribute;
import org.springframework.transaction.interceptor.TransactionAttributeSource;

/** Runs the methods that are {@link Idempotent}. What it needs is asked for at the first call, as advice is made before most beans. */
final class IdempotentInterceptor implements MethodInterceptor {
    private static final ExpressionParser PARSER = new SpelExpressionParser();
    private static final ParameterNameDiscoverer NAMES = new DefaultParameterNameDiscoverer();

    private static final TransactionAttributeSource TRANSACTIONAL = new AnnotationTransactionAttributeSource(false);
    private static final Set<Integer> APART = Set.of(TransactionDefinition.PROPAGATION_REQUIRES_NEW,
            TransactionDefinition.PROPAGATION_NOT_SUPPORTED, TransactionDefinition.PROPAGATION_NEVER);
    private static final CacheOperationSource CACHES = new AnnotationCacheOperationSource(false);
    /** By name, as JCache need not be there. */
    private static final String JCACHE = "javax.cache.annotation.CacheResult";

    private final Supplier<Idempotency> once;
    private final Supplier<Json> json;
    private final IdempotentNames names;

    IdempotentInterceptor(Supplier<Idempotency> once, Supplier<Json> json, IdempotentNames names) {
        this.once = once;
        this.json = json;
        this.names = names;
    }

    @Override
    public Object invoke(MethodInvocation invocation) throws Throwable {
        Class<?> type = AopUtils.getTargetClass(invocation.getThis());
        Method method = AopUtils.getMostSpecificMethod(invocation.getMethod(), type);
        Idempotent annotation = AnnotatedElementUtils.findMergedAnnotation(method, Idempotent.class);
        names.claim(method);
        refuseAsynchronous(method, method.getReturnType());
        for (Class<?> parameter : method.getParameterTypes()) {
            refuseAsynchronous(method, parameter);
        }
        refuseChosen(method);
        refuseCached(method, type);
        TransactionAttribute attribute = annotation.lease() ? null : TRANSACTIONAL.getTransactionAttribute(method, type);
        refuseAnotherTransaction(method, attribute);
        Call call = Call.of(keyOf(invocation, method, annotation))
                .withScope(Identity.function(once.get().options().scope(), annotation.name()))
                .withMaxLostAttempts(annotation.maxLostAttempts())
                .withIsolation(attribute == null ? 0 : Math.max(0, attribute.getIsolationLevel())) // or it would be lost, as the method joins
                .withRequest(json.get().write(invocation.getArguments()));
        Type returned = GenericTypeResolver.resolveType(method.getGenericReturnType(), type);
        Result result = annotation.lease()
                ? lease(call, invocation, method)
                : once.get().<Exception>transaction(call, (connection, operation) -> {
                    Object value = run(invocation);
                    once.get().transactions().flush(); // gives an entity its version and its times
                    return readable(written(value, method), method, returned);
                });
        return read(result.orThrow(), method, returned);
    }

    /** The effect of leased work stays, so its next attempt would repeat it: what is no JSON ends the operation, too. */
    private Result lease(Call call, MethodInvocation invocation, Method method) throws Exception {
        return once.get().<Exception>lease(call, lease -> {
            Object value = run(invocation);
            try {
                return Completion.of(written(value, method));
            } catch (RuntimeException error) {
                throw new IdempotencyException.NoAnswer(error, null, null);
            }
        });
    }

    /** What no replay could read is rolled back. */
    private Response readable(Response response, Method method, Type type) {
        read(response, method, type);
        return response;
    }

    /** The error of the application's JSON would quote what it has read. */
    private Object read(Response response, Method method, Type type) {
        try {
            return response.payload() == null ? null : json.get().read(response.payload(), type);
        } catch (RuntimeException error) {
            throw new IllegalStateException("the JSON of a result is no " + type.getTypeName() + ": " + method + ": " + error.getClass().getName());
        }
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
    private static void refuseAsynchronous(Method method, Class<?> type) {
        if (Future.class.isAssignableFrom(type) || ReactiveAdapterRegistry.getSharedInstance().getAdapter(type) != null
                || type.getName().equals("kotlin.coroutines.Continuation")) { // an argument of what may suspend
            throw new IllegalStateException("a method that is @Idempotent returns its result, and no " + type.getName() + ": " + method);
        }
    }

    /** The caller says what T is. What is read from the result's JSON may be of another class. */
    private static void refuseChosen(Method method) {
        if (method.getGenericReturnType() instanceof TypeVariable<?> chosen && chosen.getGenericDeclaration().equals(method)) {
            throw new IllegalStateException("a method that is @Idempotent has a result of one type, and returns no " + chosen + ": " + method);
        }
    }

    /** When COMMIT has failed, the cache would answer the repetition, which would be stored as done without any effect. */
    private static void refuseCached(Method method, Class<?> type) {
        Collection<CacheOperation> operations = CACHES.getCacheOperations(method, type);
        if (operations != null && operations.stream().anyMatch(CacheableOperation.class::isInstance)
                || MergedAnnotations.from(method, SearchStrategy.TYPE_HIERARCHY).isPresent(JCACHE)) {
            throw new IllegalStateException("a method that is @Idempotent has no @Cacheable and no @CacheResult, as a cache does not know"
                    + " what is rolled back: " + method);
        }
    }

    /** What the method did in a transaction of its own, or in none, would stay when the operation's is rolled back. */
    private static void refuseAnotherTransaction(Method method, TransactionAttribute attribute) {
        if (attribute != null && APART.contains(attribute.getPropagationBehavior())) {
            throw new IllegalStateException("a method that is @Idempotent joins the transaction of its operation, which its propagation"
                    + " does not allow: " + method);
        }
    }

    private Response written(Object value, Method method) {
        if (value == null) {
            return Response.EMPTY;
        }
        refuseAsynchronous(method, value.getClass());
        return Response.json(json.get().write(value));
    }

    /** Each attempt has an invocation of its own. */
    private static Object run(MethodInvocation invocation) throws Exception {
        try {
            return ((ProxyMethodInvocation) invocation).invocableClone().proceed();
        } catch (Exception | Error error) {
            throw error;
        } catch (Throwable other) {
            throw new IllegalStateException(other);
        }
    }
}
