-- As extension-hash.sql, by the functions without C.
\set key 1000000000000000000 + (8000000000000000000 / :records) * random(1, :records)
SELECT * FROM managed.idem_begin(:key::text, request_hash => :hash::bytea);
