package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.aop.framework.autoproxy.DefaultAdvisorAutoProxyCreator;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;

/** Which methods may have one name, and which a context refuses before anything is called. */
class IdempotentNamesTest {
    interface Charges<T> {
        @Idempotent(name = "charge", key = "#key")
        T charge(T key);
    }

    static class Base implements Charges<String> {
        @Override
        public String charge(String key) {
            return key;
        }
    }

    /** With an annotation of its own on what it overrides. */
    static class Derived extends Base {
        @Override
        @Idempotent(name = "charge", key = "#key")
        public String charge(String key) {
            return key;
        }
    }

    static class Inheriting extends Base { }

    static class Sibling implements Charges<String> {
        @Override
        public String charge(String key) {
            return key;
        }
    }

    static class Numbers implements Charges<Integer> {
        @Override
        @Idempotent(name = "charge", key = "#key")
        public Integer charge(Integer key) {
            return key;
        }
    }

    static class Stranger {
        @Idempotent(name = "charge", key = "#key")
        public String charge(String key) {
            return key;
        }
    }

    static class Late implements UnaryOperator<String> {
        @Override
        @Idempotent(name = "charge", key = "#key")
        public String apply(String key) {
            return key;
        }
    }

    static class Overloaded {
        @Idempotent(name = "pay", key = "#key")
        public String pay(String key) {
            return key;
        }

        @Idempotent(name = "pay", key = "#key")
        public String pay(Integer key) {
            return "";
        }
    }

    static class Private {
        @Idempotent(name = "private", key = "#key")
        private String charge(String key) {
            return key;
        }
    }

    static class Static {
        @Idempotent(name = "static", key = "#key")
        public static String charge(String key) {
            return key;
        }
    }

    static class Final implements Charges<String> {
        @Override
        public final String charge(String key) {
            return key;
        }
    }

    /** Its proxy would not see it, and it would run at each call. */
    @ParameterizedTest
    @ValueSource(strings = {BeanDefinition.SCOPE_SINGLETON, BeanDefinition.SCOPE_PROTOTYPE})
    void aMethodThatNoProxySeesIsRefusedAtTheStart(String scope) {
        for (Class<?> type : List.of(Private.class, Static.class, Final.class)) {
            var error = assertThrows(IllegalStateException.class, () -> start(true, scope, type), type.getName());
            assertTrue(error.getMessage().contains(type.getName()), error.getMessage());
        }
        start(false, BeanDefinition.SCOPE_SINGLETON, Final.class); // by its interface
    }

    /** With and without proxies, of classes and of interfaces. */
    private static void start(boolean byClass, String scope, Class<?>... types) {
        try (var context = new AnnotationConfigApplicationContext()) {
            prepare(context, byClass);
            for (int i = 0; i < types.length; i++) {
                context.registerBean("bean" + i, types[i], definition -> definition.setScope(scope));
            }
            context.refresh();
        }
    }

    private static void prepare(AnnotationConfigApplicationContext context, boolean byClass) {
        context.registerBean(IdempotentNames.class, () -> new IdempotentNames(context.getBeanFactory()));
        context.registerBean(DefaultPointcutAdvisor.class, () -> new DefaultPointcutAdvisor(
                new AnnotationMatchingPointcut(null, Idempotent.class, true),
                new IdempotentInterceptor(null, null, context.getBean(IdempotentNames.class))));
        context.registerBean(DefaultAdvisorAutoProxyCreator.class, () -> {
            var creator = new DefaultAdvisorAutoProxyCreator();
            creator.setProxyTargetClass(byClass);
            return creator;
        });
    }

    @ParameterizedTest
    @ValueSource(strings = {BeanDefinition.SCOPE_SINGLETON, BeanDefinition.SCOPE_PROTOTYPE})
    void anotherMethodOfTheNameIsRefusedAtTheStart(String scope) {
        for (boolean byClass : List.of(true, false)) {
            for (Class<?> other : List.of(Base.class, Derived.class, Numbers.class)) {
                var error = assertThrows(IllegalStateException.class, () -> start(byClass, scope, other, Stranger.class));
                assertTrue(error.getMessage().contains("\"charge\""), error.getMessage());
                assertTrue(error.getMessage().contains("Stranger.charge(java.lang.String)"), error.getMessage());
                assertTrue(error.getMessage().contains(".charge("), error.getMessage());
            }
            assertThrows(IllegalStateException.class, () -> start(byClass, scope, Overloaded.class));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {BeanDefinition.SCOPE_SINGLETON, BeanDefinition.SCOPE_PROTOTYPE})
    void oneMethodMayHaveManyBeans(String scope) {
        for (boolean byClass : List.of(true, false)) {
            start(byClass, scope, Base.class, Base.class);
            start(byClass, scope, Base.class, Inheriting.class, Inheriting.class);
            start(byClass, scope, Base.class, Derived.class);
            start(byClass, scope, Base.class, Sibling.class);
            start(byClass, scope, Derived.class, Inheriting.class, Base.class);
            start(byClass, scope, Stranger.class, Stranger.class);
        }
    }

    @Test
    void whatShowsItsClassLateIsRefusedByTheFirstCall() {
        try (var context = new AnnotationConfigApplicationContext()) {
            prepare(context, false);
            context.registerBean(Base.class);
            context.registerBean("late", UnaryOperator.class, Late::new, definition -> definition.setLazyInit(true));
            context.refresh();
            var late = (UnaryOperator<?>) context.getBean("late");
            var error = assertThrows(IllegalStateException.class, () -> late.apply(null));
            assertEquals(2, error.getMessage().split("IdempotentNamesTest").length - 1, error.getMessage());
        }
    }
}
