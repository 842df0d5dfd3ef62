package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import ch.qos.logback.classic.Logger;
import ch.qos.logback.classic.spi.ILoggingEvent;
import ch.qos.logback.core.read.ListAppender;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import java.lang.reflect.Type;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import javax.sql.DataSource;
import org.example.idempotency.Call;
import org.example.idempotency.Idempotency;
import org.example.idempotency.Options;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.beans.factory.support.DefaultListableBeanFactory;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.web.context.reactive.StandardReactiveWebEnvironment;
import org.slf4j.LoggerFactory;
import org.springframework.context.annotation.AnnotatedBeanDefinitionReader;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.web.context.support.StandardServletEnvironment;
import org.springframework.web.servlet.mvc.method.annotation.RequestMappingHandlerMapping;
import tools.jackson.databind.json.JsonMapper;

/** What is there by default, and what gives way to beans of the program. */
class OwnBeansTest {
    private static final String WITHOUT_JACKSON_3 = "--spring.autoconfigure.exclude="
            + "org.springframework.boot.jackson.autoconfigure.JacksonAutoConfiguration,"
            + "org.springframework.boot.hibernate.autoconfigure.HibernateJpaAutoConfiguration,"
            + "org.springframework.boot.data.jpa.autoconfigure.DataJpaRepositoriesAutoConfiguration";
    private final String key = UUID.randomUUID().toString();

    /** Nobody says who asks, but for a filter in front. */
    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({SpringExampleTest.Pool.class, SpringExampleTest.Orders.class})
    static class Usual {
        /** Actuator has some, too. */
        @Bean
        RequestMappingHandlerMapping another() {
            return new RequestMappingHandlerMapping();
        }

        @Bean
        Filter authentication() {
            return (request, response, chain) -> chain.doFilter(new HttpServletRequestWrapper((HttpServletRequest) request) {
                @Override
                public String getRemoteUser() {
                    return getHeader("X-User");
                }
            }, response);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({SpringExampleTest.Pool.class, WithJackson2.class})
    static class Own {
        @Bean
        Idempotency own(PlatformTransactionManager manager, DataSource dataSource) {
            return new Idempotency(new SpringTransactions(manager, dataSource), Options.DEFAULT.withScope("own"));
        }

        @Bean
        Json ownJson() {
            return new Json() {
                @Override
                public String write(Object value) {
                    return "\"own\"";
                }

                @Override
                public Object read(String json, Type type) {
                    return json;
                }
            };
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({SpringExampleTest.Pool.class, SpringExampleTest.Seats.class})
    static class WithJackson2 {
        @Bean
        ObjectMapper mapper() {
            return new ObjectMapper().disable(SerializationFeature.FAIL_ON_EMPTY_BEANS);
        }
    }

    @Test
    void whoAsksIsTheRemoteUserAndNobodyElse() throws Exception {
        try (var context = SpringApplication.run(Usual.class, "--server.port=0", "--server.address=127.0.0.1",
                "--spring.main.banner-mode=off")) {
            SpringExampleTest.prepared(context);
            String address = "http://127.0.0.1:" + context.getEnvironment().getProperty("local.server.port");
            var change = HttpRequest.newBuilder(URI.create(address + "/changes")).header("Idempotency-Key", key);
            assertEquals(401, status(change));
            assertEquals(200, status(change.header("X-User", "ann")));
            assertEquals(405, status(HttpRequest.newBuilder(URI.create(address + "/orders"))));
            assertEquals(404, status(HttpRequest.newBuilder(URI.create(address + "/nowhere"))));
        }
    }

    private static int status(HttpRequest.Builder request) throws Exception {
        return HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.discarding()).statusCode();
    }

    @Test
    void theClientAndTheJsonOfTheProgramComeFirst() {
        try (var context = SpringExampleTest.withoutWeb(Own.class)) {
            assertEquals("own", context.getBean(Idempotency.class).options().scope());
            assertEquals("\"own\"", context.getBean(Json.class).write(null));
        }
        try (var off = new SpringApplicationBuilder(Own.class).web(WebApplicationType.NONE)
                .run("--spring.main.banner-mode=off", "--idempotency.enabled=false")) {
            assertEquals("own", off.getBean(Idempotency.class).options().scope());
        }
    }

    /** A post-processor that needs a bean brings all advice early. */
    @Configuration(proxyBeanMethods = false)
    @Import(WithJackson2.class)
    static class Early {
        @Bean
        static BeanPostProcessor early(SpringExampleTest.Seats seats) {
            return new BeanPostProcessor() { };
        }
    }

    /** Spring would warn that a bean of this package was made too early for others to look at. */
    @Test
    void noBeanIsMadeTooEarlyAndThereIsNoFilterWithoutTheWeb() {
        var log = new ListAppender<ILoggingEvent>();
        var root = (Logger) LoggerFactory.getLogger(org.slf4j.Logger.ROOT_LOGGER_NAME);
        log.start();
        try (var context = new SpringApplicationBuilder(Early.class).web(WebApplicationType.NONE)
                .initializers(ready -> root.addAppender(log)).run("--spring.main.banner-mode=off")) { // Boot has set up the log before
            assertTrue(context.getBeansOfType(IdempotencyHttp.class).isEmpty());
        } finally {
            root.detachAppender(log);
        }
        List<String> early = log.list.stream().map(ILoggingEvent::getFormattedMessage)
                .filter(text -> text.contains("not eligible")).toList();
        assertFalse(early.isEmpty());
        assertFalse(early.toString().contains("'idempotent"), early::toString);
    }

    @Test
    void aProgramOfWebFluxWhoseAnnotationWouldSayNothingDoesNotStart() {
        Class<?>[] program = {IdempotentTest.Program.class, SpringExampleTest.Orders.class};
        SpringExampleTest.withoutWeb(program).close();
        var reactive = new SpringApplicationBuilder(program).environment(new StandardReactiveWebEnvironment())
                .web(WebApplicationType.NONE);
        var error = assertThrows(IllegalStateException.class, () -> reactive.run("--spring.main.banner-mode=off"));
        assertTrue(error.getMessage().contains("WebFlux"), error.getMessage());
    }

    @Test
    void ofBothJacksonsItIs3() {
        try (var context = SpringExampleTest.withoutWeb(WithJackson2.class)) {
            assertEquals(Set.of("idempotencyJson"), context.getBeansOfType(Json.class).keySet());
        }
    }

    @Test
    void aProgramWithoutABeanOfJacksonStarts() {
        try (var context = new SpringApplicationBuilder(IdempotentTest.Program.class).web(WebApplicationType.NONE)
                .run("--spring.main.banner-mode=off", WITHOUT_JACKSON_3)) {
            assertTrue(context.getBeansOfType(Json.class).isEmpty());
        }
    }

    /** Or a program without them would not start. */
    @Test
    void classesThatAreNotThereAreNotAskedFor() {
        Map.of(JsonMapper.class, IdempotencyAutoConfiguration.Jackson3.class, ObjectMapper.class, IdempotencyAutoConfiguration.Jackson2.class,
                RequestMappingHandlerMapping.class, IdempotencyAutoConfiguration.Http.class).forEach((missing, configuration) -> {
                    var beans = new DefaultListableBeanFactory();
                    beans.setBeanClassLoader(new ClassLoader() {
                        @Override
                        public Class<?> loadClass(String name) throws ClassNotFoundException {
                            if (name.equals(missing.getName())) {
                                throw new ClassNotFoundException(name);
                            }
                            return super.loadClass(name);
                        }
                    });
                    new AnnotatedBeanDefinitionReader(beans, new StandardServletEnvironment()).register(configuration);
                    assertEquals(0, beans.getBeanNamesForType(configuration).length, missing::getName);
                });
    }

    @Test
    void withoutJackson3ItIsJackson2AndThePropertiesAreTheOptions() {
        try (var context = new SpringApplicationBuilder(WithJackson2.class).web(WebApplicationType.NONE).run("--spring.main.banner-mode=off",
                "--idempotency.schema=public", "--idempotency.retention=2d", "--idempotency.lease=7s", "--idempotency.attempts=3",
                "--spring.aop.auto=false", WITHOUT_JACKSON_3)) { // without AspectJ Spring heeds advice of its own kind only
            SpringExampleTest.prepared(context);
            var seats = context.getBean(SpringExampleTest.Seats.class);
            for (int i = 0; i < 2; i++) {
                assertEquals(1, seats.count(key));
            }
            assertNotNull(context.getBean(Idempotency.class).lookup(Call.of(key).withScope("count")));
            Options options = context.getBean(Idempotency.class).options();
            assertEquals(List.of("public", Duration.ofDays(2), Duration.ofSeconds(7), 3),
                    List.of(options.schema(), options.retention(), options.lease(), options.attempts()));
            var json = context.getBean(Json.class);
            assertThrows(IllegalArgumentException.class, () -> json.write(new SpringExampleTest.Nameless()));
            assertThrows(IllegalStateException.class, () -> json.read("{", int.class));
        }
    }
}
