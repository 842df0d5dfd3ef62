-- The same rows in one statement of hand-written SQL.
\set scope random(1000000000000000000, 9223372036854775807)
BEGIN;
INSERT INTO hand_store (scope, idempotency_key, status, expires_at)
	SELECT :scope::text, k, 'COMPLETED', now() + interval '1 day' FROM unnest(:keys::text[]) AS k
	ON CONFLICT DO NOTHING;
COMMIT;
