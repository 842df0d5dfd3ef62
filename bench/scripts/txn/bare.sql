-- The business alone: its counts are subtracted from those of the others.
\set key random(1000000000000000000, 9223372036854775807)
\set account random(1, :accounts)
\set amount random(1, 100)
BEGIN;
UPDATE accounts SET balance = balance - :amount WHERE id = :account;
INSERT INTO payments (account, amount) VALUES (:account, :amount);
COMMIT;
