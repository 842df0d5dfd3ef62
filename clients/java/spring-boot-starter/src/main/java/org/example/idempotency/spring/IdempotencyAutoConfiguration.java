package org.example.idempotency.spring;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.http.HttpServletRequest;
import java.lang.reflect.Type;
import javax.sql.DataSource;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Options;
import org.example.idempotency.servlet.FilterOptions;
import org.example.idempotency.servlet.IdempotencyFilter;
import org.example.idempotency.servlet.Route;
import org.springframework.aop.framework.autoproxy.AutoProxyUtils;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.web.context.reactive.ConfigurableReactiveWebEnvironment;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.ApplicationEventPublisher;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Role;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.Order;
import org.springframework.core.env.Environment;
import org.springframework.stereotype.Controller;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.util.ClassUtils;
import org.springframework.util.ReflectionUtils.MethodFilter;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.servlet.HandlerExecutionChain;
import org.springframework.web.servlet.HandlerMapping;
import org.springframework.web.servlet.mvc.method.annotation.RequestMappingHandlerMapping;
import org.springframework.web.util.ServletRequestPathUtils;
import tools.jackson.databind.SerializationFeature;
import tools.jackson.databind.json.JsonMapper;

/** Makes the beans of this package. Each gives way to one of the application's own. */
@AutoConfiguration(afterName = { // whose beans a condition below asks for
    "org.springframework.boot.jackson.autoconfigure.JacksonAutoConfiguration",
    "org.springframework.boot.jackson2.autoconfigure.Jackson2AutoConfiguration"})
@ConditionalOnProperty(name = "idempotency.enabled", matchIfMissing = true)
@EnableConfigurationProperties(IdempotencyProperties.class)
public class IdempotencyAutoConfiguration {
    /**
     * Advice stands around that of {@code @Transactional}, which comes last by default: the method joins the operation's transaction.
     * Nothing is between them, as Spring Retry's would repeat the method in a transaction that has the writes of its first call.
     */
    private static final int BEFORE_TRANSACTIONAL = Ordered.LOWEST_PRECEDENCE - 1;

    /** For Spring. */
    public IdempotencyAutoConfiguration() {
    }

    @Bean
    @ConditionalOnMissingBean
    Idempotency idempotency(PlatformTransactionManager manager, DataSource dataSource, IdempotencyProperties properties,
            ApplicationEventPublisher events) {
        Options options = new Options(properties.scope(), properties.schema(), properties.retention(), properties.lease(),
                properties.attempts(), Options.DEFAULT.base(), Options.DEFAULT.cap(), events::publishEvent);
        return new Idempotency(new SpringTransactions(manager, dataSource), options);
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static IdempotentNames idempotentNames(ConfigurableListableBeanFactory beans) {
        return new IdempotentNames(beans);
    }

    /** WebFlux has no filters of servlets, so the annotation would say nothing, and each retry would run. */
    @Bean
    static SmartInitializingSingleton idempotentRequests(ConfigurableListableBeanFactory beans, Environment environment) {
        return () -> {
            if (environment instanceof ConfigurableReactiveWebEnvironment) {
                for (String bean : beans.getBeanNamesForAnnotation(Controller.class)) {
                    refuseRequests(AutoProxyUtils.determineTargetClass(beans, bean));
                }
            }
        };
    }

    private static void refuseRequests(Class<?> controller) {
        MethodFilter filter = method -> AnnotatedElementUtils.hasAnnotation(method, IdempotentRequest.class);
        MethodIntrospector.selectMethods(ClassUtils.getUserClass(controller), filter).forEach(method -> {
            throw new IllegalStateException("a method that is @IdempotentRequest is one of Spring MVC, as WebFlux has no filter for it: " + method);
        });
    }

    @Bean
    static OneTransaction idempotentTransactions() {
        return new OneTransaction();
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static DefaultPointcutAdvisor idempotentAdvisor(ObjectProvider<Idempotency> once, ObjectProvider<Json> json,
            IdempotentNames names) {
        var advisor = new DefaultPointcutAdvisor(new AnnotationMatchingPointcut(null, Idempotent.class, true),
                new IdempotentInterceptor(once::getObject, json::getObject, names));
        advisor.setOrder(BEFORE_TRANSACTIONAL);
        return advisor;
    }

    /** JSON by Jackson 3, also where there are both. */
    @Order(1)
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(JsonMapper.class)
    static class Jackson3 {
        @Bean
        @ConditionalOnMissingBean
        @ConditionalOnBean(JsonMapper.class)
        Json idempotencyJson(JsonMapper mapper) {
            return new Json() {
                @Override
                public String write(Object value) {
                    return mapper.writer(SerializationFeature.FAIL_ON_EMPTY_BEANS).writeValueAsString(value);
                }

                @Override
                public Object read(String json, Type type) {
                    return mapper.readValue(json, mapper.constructType(type));
                }
            };
        }
    }

    /** JSON by Jackson 2. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(ObjectMapper.class)
    static class Jackson2 {
        @Bean
        @ConditionalOnMissingBean(Json.class)
        @ConditionalOnBean(ObjectMapper.class)
        Json idempotencyJson2(ObjectMapper mapper) {
            return new Json() {
                @Override
                public String write(Object value) {
                    try {
                        return mapper.writer(com.fasterxml.jackson.databind.SerializationFeature.FAIL_ON_EMPTY_BEANS)
                                .writeValueAsString(value);
                    } catch (JsonProcessingException error) {
                        throw new IllegalArgumentException("the value cannot be written as JSON", error);
                    }
                }

                @Override
                public Object read(String json, Type type) {
                    try {
                        return mapper.readValue(json, mapper.constructType(type));
                    } catch (JsonProcessingException error) {
                        throw new IllegalStateException("the stored result is no " + type.getTypeName(), error);
                    }
                }
            };
        }
    }

    /** The filter, behind all others: Spring Security's stands before it. Without it a program does not start. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(RequestMappingHandlerMapping.class)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
    static class Http {
        @Bean
        FlushedAnswers idempotentAnswers(ObjectProvider<Idempotency> once) {
            return new FlushedAnswers(once::getObject);
        }

        @Bean
        @ConditionalOnMissingBean
        IdempotencyHttp idempotencyHttp() {
            return HttpServletRequest::getRemoteUser;
        }

        @Bean
        FilterRegistrationBean<IdempotencyFilter> idempotencyFilter(Idempotency once, IdempotencyHttp http,
                @Qualifier("requestMappingHandlerMapping") ObjectProvider<RequestMappingHandlerMapping> mappings) {
            FilterOptions options = new FilterOptions(request -> routeOf(request, mappings.getObject()), http::principal);
            options.methods("*"); // the annotation says which
            options.passOn(Http::isForSpringSecurity);
            http.configure(options);
            var registration = new FilterRegistrationBean<>(new IdempotencyFilter(once, options));
            registration.setDispatcherTypes(DispatcherType.REQUEST, DispatcherType.FORWARD, DispatcherType.ASYNC); // from a method without it, too
            registration.setMatchAfter(true); // its order is the last one, and this is behind those of the same order, and of web.xml
            return registration;
        }

        /** What a method behind the filter refuses, as by @PreAuthorize: 403, or a login. By name, as Spring Security need not be there. */
        private static boolean isForSpringSecurity(Throwable error) {
            for (Class<?> type = error.getClass(); type != null; type = type.getSuperclass()) {
                if (type.getName().equals("org.springframework.security.access.AccessDeniedException")
                        || type.getName().equals("org.springframework.security.core.AuthenticationException")) {
                    return true;
                }
            }
            return false;
        }

        /** Asks as the DispatcherServlet will, so that no spelling of a path gets past. What has no handler there is left to it. */
        private static Route routeOf(HttpServletRequest request, RequestMappingHandlerMapping mapping) {
            HandlerExecutionChain chain;
            try {
                ServletRequestPathUtils.parseAndCache(request);
                chain = mapping.getHandler(request);
            } catch (Exception noHandler) {
                return null;
            }
            IdempotentRequest annotation = chain != null && chain.getHandler() instanceof HandlerMethod method
                    ? method.getMethodAnnotation(IdempotentRequest.class) : null;
            return annotation == null ? null
                    : new Route(String.valueOf(request.getAttribute(HandlerMapping.BEST_MATCHING_PATTERN_ATTRIBUTE)),
                            annotation.lease());
        }
    }
}
