package org.example.idempotency.spring;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * Settings, by {@code idempotency.*}.
 *
 * @param enabled false: the annotations say nothing, and the client is off, as {@link org.example.idempotency.Idempotency#off} says
 * @param scope names the service, before the keys of all its routes
 * @param schema where the extension is installed; null: search_path finds it
 * @param retention how long records are kept; null: the server's setting
 * @param lease how long a lease runs without a heartbeat
 * @param attempts how often a call is made at most, at 40001, 40P01 and lost connections
 */
@ConfigurationProperties("idempotency")
public record IdempotencyProperties(@DefaultValue("true") boolean enabled, @DefaultValue("") String scope, String schema,
        Duration retention, @DefaultValue("30s") Duration lease, @DefaultValue("5") int attempts) {
}
