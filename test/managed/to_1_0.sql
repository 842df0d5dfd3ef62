-- What version 1.0 has otherwise, and CREATE OR REPLACE cannot change.
ALTER TABLE idempotency_pending RENAME expected TO judged;
DROP FUNCTION idem_put, idem_end, idem_check_size CASCADE;
CREATE FUNCTION idem_put(new idempotency_store, judged timestamptz) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION idem_end(key text, name_scope text, end_fence bigint, end_status idempotency_status, code int,
	headers jsonb, payload jsonb, body bytea, retry_after interval, retention interval) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION idem_check_size(response jsonb, headers jsonb, body bytea) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION idem_prolong(key text, name_scope text, fence bigint, lease interval) RETURNS timestamptz LANGUAGE sql AS 'SELECT now()';
CREATE FUNCTION idem_lost_race() RETURNS void LANGUAGE sql AS '';
