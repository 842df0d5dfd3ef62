-- As extension-hash.sql, by the functions without C.
\set key random(1000000000000000000, 9223372036854775807)
\set account random(1, :accounts)
\set amount random(1, 100)
BEGIN;
SELECT outcome, response_payload FROM managed.idem_begin(:key::text, request_hash => :hash::bytea);
UPDATE accounts SET balance = balance - :amount WHERE id = :account;
INSERT INTO payments (account, amount) VALUES (:account, :amount);
SELECT managed.idem_complete(:key::text, :response::jsonb);
COMMIT;
