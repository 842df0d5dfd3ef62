package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.example.idempotency.Declined;
import org.example.idempotency.IdempotencyException;
import org.example.idempotency.Response;
import org.example.idempotency.spring.KafkaExampleTest.Deposits;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.listener.ListenerExecutionFailedException;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.RabbitListenerEndpointRegistry;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.retry.ImmediateRequeueMessageRecoverer;
import org.springframework.amqp.rabbit.retry.MessageRecoverer;
import org.springframework.amqp.rabbit.retry.RejectAndDontRequeueRecoverer;
import org.springframework.amqp.support.AmqpHeaders;
import org.springframework.amqp.support.converter.MessageConversionException;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.amqp.autoconfigure.RabbitListenerRetrySettingsCustomizer;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.retry.RetryPolicySettings;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.messaging.handler.annotation.Payload;
import org.springframework.stereotype.Component;

/** The program of docs/clients/spring-rabbitmq.md, with a broker. */
@Timeout(120)
class RabbitExampleTest {
    @Component
    static class DepositListener {
        private final Deposits deposits;

        DepositListener(Deposits deposits) {
            this.deposits = deposits;
        }

        /** The message is acknowledged when this has returned. */
        @RabbitListener(queues = "deposits")
        void receive(@Header(name = AmqpHeaders.MESSAGE_ID, required = false) String id, @Payload String amount) {
            deposits.book(id, amount);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({Deposits.class, DepositListener.class, Disturbance.class, SpringExampleTest.Pool.class})
    static class Program {
        /** What is final is not tried again. */
        @Bean
        RabbitListenerRetrySettingsCustomizer finalFailures() {
            return settings -> {
                settings.setExceptionExcludes(List.of(IdempotencyException.KeyReused.class, IdempotencyException.BadArgument.class,
                        IdempotencyException.Forbidden.class, IdempotencyException.TooLarge.class, IdempotencyException.Unstorable.class,
                        IllegalArgumentException.class, MessageConversionException.class));
                settings.setExceptionPredicate(error -> !(error.getCause() instanceof Declined refusal && refusal.retryAfter() == null));
            };
        }

        /**
         * A message that is not tried again is a dead letter. It goes back while another worker runs its operation, and when the program stops,
         * which interrupts a pause.
         */
        @Bean
        MessageRecoverer deadLetters() {
            var dead = new RejectAndDontRequeueRecoverer();
            var back = new ImmediateRequeueMessageRecoverer();
            return (message, error) -> {
                boolean isGivenBack = Thread.currentThread().isInterrupted() || error.getCause() instanceof IdempotencyException.InProgress;
                (isGivenBack ? back : dead).recover(message, error);
            };
        }

        @Bean
        Queue deposits() {
            return QueueBuilder.durable("deposits").quorum().deliveryLimit(20).overflow(QueueBuilder.Overflow.rejectPublish)
                    .deadLetterExchange("").deadLetterRoutingKey("deposits.dead").withArgument("x-dead-letter-strategy", "at-least-once").build();
        }

        @Bean
        Queue depositsDead() {
            return QueueBuilder.durable("deposits.dead").quorum().build();
        }
    }

    private static ConfigurableApplicationContext start(String pause) throws Exception {
        KafkaExampleTest.prepare();
        return new SpringApplicationBuilder(Program.class).web(WebApplicationType.NONE).properties(KafkaExampleTest.propertiesOfThePage("rabbitmq"))
                .run("--spring.main.banner-mode=off", "--spring.rabbitmq.addresses=" + System.getenv("DEMO_AMQP").replace("/%2F", ""),
                        "--spring.rabbitmq.listener.simple.retry.initial-interval=" + pause,
                        "--spring.rabbitmq.listener.simple.retry.max-interval=" + pause);
    }

    private static void send(RabbitTemplate rabbit, String text) {
        String[] parts = text.split(" ");
        rabbit.convertAndSend("", "deposits", parts[1], message -> {
            message.getMessageProperties().setMessageId(parts[0].isEmpty() ? null : parts[0]);
            return message;
        });
    }

    private static List<String> deadLetters(RabbitTemplate rabbit, int count) {
        var dead = new ArrayList<String>();
        while (dead.size() < count) {
            Message letter = rabbit.receive("deposits.dead", 60_000);
            dead.add(letter.getMessageProperties().getMessageId() + ' ' + new String(letter.getBody()));
        }
        Collections.sort(dead);
        return dead;
    }

    /** There is one consumer, so all before the last dead letter has come to its end. */
    @Test
    void eachMessageIsBookedOnceOrADeadLetter() throws Exception {
        try (var program = start("10ms")) {
            var rabbit = program.getBean(RabbitTemplate.class);
            var disturbance = program.getBean(Disturbance.class);
            for (String message : List.of("a 5", "a 5", "refused 0", "a 6", "refused 0", "poison 1000", "unread x", " 7",
                    "fails 1", "ended 2", "busy 3", "held 4", "b 8", "last 0")) {
                send(rabbit, message);
            }
            assertEquals(List.of("a 6", "last 0", "null 7", "poison 1000", "refused 0", "refused 0", "unread x"), deadLetters(rabbit, 7));
            assertEquals(List.of("a 5", "b 8", "busy 3", "ended 2", "fails 1", "held 4"), program.getBean(JdbcTemplate.class)
                    .queryForList("SELECT id || ' ' || amount FROM deposit ORDER BY id", String.class));
            disturbance.assertHappened();
            assertEquals(21, Collections.frequency(disturbance.events, "IN_PROGRESS held"));
            assertEquals(3, Collections.frequency(disturbance.events, "ACQUIRED poison"));
        }
    }

    @Test
    void aProgramThatStopsGivesItsMessageBack() throws Exception {
        try (var program = start("60s")) {
            send(program.getBean(RabbitTemplate.class), "stopped 9");
            program.getBean(Disturbance.class).stopped.get(60, TimeUnit.SECONDS);
            program.getBean(RabbitListenerEndpointRegistry.class).getListenerContainers()
                    .forEach(container -> ((SimpleMessageListenerContainer) container).setShutdownTimeout(1));
        }
        var connections = new CachingConnectionFactory(URI.create(System.getenv("DEMO_AMQP")));
        try {
            var rabbit = new RabbitTemplate(connections);
            assertEquals("stopped", rabbit.receive("deposits", 30_000).getMessageProperties().getMessageId());
            assertNull(rabbit.receive("deposits.dead"));
        } finally {
            connections.destroy();
        }
    }

    @Test
    void whatIsFinalIsNotTriedAgain() throws Exception {
        var settings = new RetryPolicySettings();
        new Program().finalFailures().customize(settings);
        var policy = settings.createRetryPolicy();
        for (var error : List.of(new Declined(Response.of(503, null), Duration.ZERO), new IllegalStateException())) {
            assertTrue(policy.shouldRetry(new ListenerExecutionFailedException("", error)));
        }
        var failures = new ArrayList<Exception>(List.of(new Declined(402, null), new IllegalArgumentException(), new MessageConversionException("")));
        for (var type : List.of(IdempotencyException.KeyReused.class, IdempotencyException.BadArgument.class,
                IdempotencyException.Forbidden.class, IdempotencyException.TooLarge.class)) {
            var ofCause = type.getDeclaredConstructor(Throwable.class);
            ofCause.setAccessible(true);
            failures.add(ofCause.newInstance((Throwable) null));
        }
        var constructor = IdempotencyException.Unstorable.class.getDeclaredConstructor();
        constructor.setAccessible(true);
        failures.add(constructor.newInstance());
        failures.forEach(error -> assertFalse(policy.shouldRetry(new ListenerExecutionFailedException("", error)), error::toString));
    }
}
