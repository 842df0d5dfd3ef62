-- Only begin and complete: no business statements hide their cost. Keys are
-- hashes, as those of the stored records are.
\set key random(1000000000000000000, 9223372036854775807)
BEGIN;
SELECT * FROM idem_begin(md5(:key::text), request => :request::jsonb);
SELECT idem_complete(md5(:key::text), :response::jsonb);
COMMIT;
