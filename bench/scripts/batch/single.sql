-- One message, one transaction.
\set scope random(1000000000000000000, 9223372036854775807)
BEGIN;
SELECT * FROM idem_begin(:message::text, scope => :scope::text);
SELECT idem_complete(:message::text, scope => :scope::text);
COMMIT;
