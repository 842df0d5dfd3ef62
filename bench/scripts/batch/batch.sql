-- 500 messages in one transaction. The keys are one constant parameter; a
-- fresh scope makes them new.
\set scope random(1000000000000000000, 9223372036854775807)
BEGIN;
SELECT * FROM idem_begin_batch(:keys::text[], scope => :scope::text);
SELECT idem_complete_batch(:keys::text[], scope => :scope::text);
COMMIT;
