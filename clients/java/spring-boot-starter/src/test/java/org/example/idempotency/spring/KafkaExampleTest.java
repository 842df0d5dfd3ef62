package org.example.idempotency.spring;

import static org.junit.jupiter.api.Assertions.*;

import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.example.idempotency.Call;
import org.example.idempotency.Declined;
import org.example.idempotency.Idempotency;
import org.example.idempotency.IdempotencyException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.core.KafkaOperations;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.messaging.handler.annotation.Payload;
import org.springframework.stereotype.Component;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.util.backoff.ExponentialBackOff;

/** The program of docs/clients/spring-kafka.md, with a broker. */
@Timeout(120)
class KafkaExampleTest {
    private static final BlockingQueue<String> DEAD = new LinkedBlockingQueue<>();

    @Service
    static class Deposits {
        private final JdbcTemplate jdbc;

        Deposits(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        /** One deposit for each id. */
        @Idempotent(name = "deposit", key = "#id", maxLostAttempts = 3)
        @Transactional
        public void book(String id, String amount) {
            if (Integer.parseInt(amount) <= 0) {
                throw new Declined(422, "{\"reason\": \"not an amount\"}");
            }
            jdbc.update("INSERT INTO deposit VALUES (?, ?)", id, Integer.parseInt(amount));
        }
    }

    @Component
    static class DepositListener {
        private final Deposits deposits;

        DepositListener(Deposits deposits) {
            this.deposits = deposits;
        }

        /** The offset is committed when this has returned. */
        @KafkaListener(topics = "deposits")
        void receive(@Header(name = "id", required = false) String id, @Payload String amount) {
            deposits.book(id, amount);
        }
    }

    @Component
    static class DeadLetters {
        @KafkaListener(topics = "deposits-dlt", groupId = "dead")
        void receive(@Header(name = "id", required = false) String id, @Payload String amount) {
            DEAD.add(id + ' ' + amount);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({Deposits.class, DepositListener.class, DeadLetters.class, Disturbance.class, SpringExampleTest.Pool.class})
    static class Program {
        /** What is final becomes a dead letter at once; everything else is delivered again, for as long as it takes. */
        @Bean
        DefaultErrorHandler deadLetters(KafkaOperations<Object, Object> kafka) {
            var pauses = new ExponentialBackOff(100, 2);
            pauses.setMaxInterval(10_000);
            var handler = new DefaultErrorHandler(new DeadLetterPublishingRecoverer(kafka), pauses);
            handler.addNotRetryableExceptions(Declined.class, IdempotencyException.KeyReused.class, IdempotencyException.BadArgument.class,
                    IdempotencyException.Forbidden.class, IdempotencyException.TooLarge.class, IdempotencyException.Unstorable.class,
                    IllegalArgumentException.class);
            return handler;
        }

        @Bean
        NewTopic deposits() {
            return new NewTopic("deposits", 1, (short) 1);
        }

        @Bean
        NewTopic depositsDlt() {
            return new NewTopic("deposits-dlt", 1, (short) 1);
        }
    }

    /** Those of the page for this broker. */
    static Properties propertiesOfThePage(String broker) throws Exception {
        Properties properties = new Properties();
        for (String block : Files.readString(Path.of(System.getenv("README"))).split("```properties\n")) {
            if (block.split("```")[0].contains(broker)) {
                properties.load(new StringReader(block.split("```")[0]));
            }
        }
        return properties;
    }

    static void prepare() {
        var server = new SpringExampleTest.Pool().dataSource();
        try (server) {
            var jdbc = new JdbcTemplate(server);
            jdbc.execute("CREATE EXTENSION IF NOT EXISTS idempotency");
            jdbc.execute("DROP TABLE IF EXISTS deposit");
            jdbc.execute("CREATE TABLE deposit (id text NOT NULL, amount int NOT NULL CHECK (amount < 1000))");
        }
    }

    private static ConfigurableApplicationContext start() throws Exception {
        prepare();
        return new SpringApplicationBuilder(Program.class).web(WebApplicationType.NONE).properties(propertiesOfThePage("kafka"))
                .run("--spring.main.banner-mode=off", "--spring.kafka.bootstrap-servers=" + System.getenv("DEMO_KAFKA"));
    }

    /** One partition keeps the order, so all before the last dead letter has come to its end. */
    @Test
    void eachMessageIsBookedOnceOrADeadLetter() throws Exception {
        try (var program = start()) {
            @SuppressWarnings("unchecked")
            KafkaTemplate<Object, Object> kafka = program.getBean(KafkaTemplate.class);
            for (String message : List.of("a 5", "a 5", "refused 0", "a 6", "refused 0", "poison 1000", "unread x", " 7",
                    "fails 1", "ended 2", "busy 3", "b 8", "last 0")) {
                String[] parts = message.split(" ");
                var letter = new ProducerRecord<Object, Object>("deposits", parts[1]);
                if (!parts[0].isEmpty()) {
                    letter.headers().add("id", parts[0].getBytes(StandardCharsets.UTF_8));
                }
                kafka.send(letter).get();
            }
            for (String dead : List.of("refused 0", "a 6", "refused 0", "poison 1000", "unread x", "null 7", "last 0")) {
                assertEquals(dead, DEAD.poll(60, TimeUnit.SECONDS));
            }
            assertEquals(List.of("a 5", "b 8", "busy 3", "ended 2", "fails 1"), program.getBean(JdbcTemplate.class)
                    .queryForList("SELECT id || ' ' || amount FROM deposit ORDER BY id", String.class));
            var poison = program.getBean(Idempotency.class).lookup(Call.of("poison").withScope("bank.deposit"));
            assertNotNull(poison);
            assertEquals("{\"reason\": \"attempts lost\", \"lost_attempts\": 3}", poison.response().payload());
            program.getBean(Disturbance.class).assertHappened();
            assertEquals(false, program.getBean(DefaultErrorHandler.class).removeClassification(IdempotencyException.Forbidden.class));
        }
    }
}
