-- The pattern by hand from 19 on: one statement inserts PENDING or reads what is there; later update.
\set key random(1000000000000000000, 9223372036854775807)
\set account random(1, :accounts)
\set amount random(1, 100)
BEGIN;
INSERT INTO hand_store (idempotency_key, request_hash, status, expires_at)
	VALUES (:key::text, :hash::bytea, 'PENDING', now() + interval '1 day')
	ON CONFLICT (scope, idempotency_key) DO SELECT
	RETURNING old.idempotency_key IS NOT NULL AS replayed, status, request_hash, response_payload;
UPDATE accounts SET balance = balance - :amount WHERE id = :account;
INSERT INTO payments (account, amount) VALUES (:account, :amount);
UPDATE hand_store
	SET status = 'COMPLETED', response_payload = :response::jsonb, updated_at = clock_timestamp()
	WHERE scope = '' AND idempotency_key = :key::text;
COMMIT;
