package org.example.idempotency.spring;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.springframework.aop.framework.autoproxy.AutoProxyUtils;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.MergedAnnotation;
import org.springframework.core.annotation.MergedAnnotations;
import org.springframework.core.annotation.MergedAnnotations.SearchStrategy;
import org.springframework.util.ClassUtils;
import org.springframework.util.ReflectionUtils.MethodFilter;

/**
 * Two methods with one name would share their operations: the one would return what the other has stored. So a context with
 * such methods does not start. Beans of all scopes are looked at by their class, before anything calls them. Of what shows its
 * class only when it is made, as a lazy bean whose factory method returns an interface, the first call finds out.
 * Each context knows its own beans alone.
 */
final class IdempotentNames implements SmartInitializingSingleton {
    private static final MethodFilter IDEMPOTENT = method -> AnnotatedElementUtils.hasAnnotation(method, Idempotent.class);

    private final ConfigurableListableBeanFactory beans;
    private final Map<String, Method> byName = new ConcurrentHashMap<>();

    IdempotentNames(ConfigurableListableBeanFactory beans) {
        this.beans = beans;
    }

    @Override
    public void afterSingletonsInstantiated() {
        for (String bean : beans.getBeanNamesForType(Object.class, true, false)) {
            Class<?> type = AutoProxyUtils.determineTargetClass(beans, bean);
            if (type != null) {
                Class<?> proxy = beans.getType(bean, false);
                for (Method method : methodsOf(ClassUtils.getUserClass(type))) {
                    refuseUnseen(method, proxy != null && Proxy.isProxyClass(proxy));
                    claim(method);
                }
            }
        }
    }

    /** It would run at each call. The proxy of an interface sees a final method, too. */
    private static void refuseUnseen(Method method, boolean isOfInterface) {
        int modifiers = method.getModifiers();
        if (Modifier.isPrivate(modifiers) || Modifier.isStatic(modifiers) || Modifier.isFinal(modifiers) && !isOfInterface) {
            throw new IllegalStateException("a method that is @Idempotent is not private, static or final, as Spring's proxy does not see its calls: "
                    + method);
        }
    }

    /** None of a class that cannot be read, as it names others that are not there: nobody can make a bean of it either. */
    private static Set<Method> methodsOf(Class<?> type) {
        try {
            return MethodIntrospector.selectMethods(type, IDEMPOTENT);
        } catch (IllegalStateException | LinkageError unreadable) {
            return Set.of();
        }
    }

    /** Throws IllegalStateException if another method has the name. Two beans of one class have the same method, and so may share it. */
    void claim(Method method) {
        String name = annotation(method).getString("name");
        Method first = byName.putIfAbsent(name, method);
        if (first != null && !isSame(first, method)) {
            throw new IllegalStateException("two methods that are @Idempotent have the name \"" + name + "\", and would share their operations: "
                    + first + " and " + method);
        }
    }

    /** One annotation is on both, as that of an interface is, or one overrides the other. */
    private static boolean isSame(Method one, Method other) {
        return annotation(one).getSource().equals(annotation(other).getSource()) || overrides(one, other)
                || overrides(other, one);
    }

    /** The most specific method is no bridge, so also where a type parameter has become a type. */
    private static boolean overrides(Method one, Method other) {
        return other.getDeclaringClass().isAssignableFrom(one.getDeclaringClass())
                && AopUtils.getMostSpecificMethod(other, one.getDeclaringClass()).equals(one);
    }

    private static MergedAnnotation<Idempotent> annotation(Method method) {
        return MergedAnnotations.from(method, SearchStrategy.TYPE_HIERARCHY).get(Idempotent.class);
    }
}
