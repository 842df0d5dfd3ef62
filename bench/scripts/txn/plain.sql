-- The physical limit: look the key up, insert the finished row.
\set key random(1000000000000000000, 9223372036854775807)
\set account random(1, :accounts)
\set amount random(1, 100)
BEGIN;
SELECT status, request_hash, response_payload FROM hand_store WHERE scope = '' AND idempotency_key = :key::text;
UPDATE accounts SET balance = balance - :amount WHERE id = :account;
INSERT INTO payments (account, amount) VALUES (:account, :amount);
INSERT INTO hand_store (idempotency_key, request_hash, status, response_payload, expires_at)
	VALUES (:key::text, :hash::bytea, 'COMPLETED', :response::jsonb, now() + interval '1 day');
COMMIT;
