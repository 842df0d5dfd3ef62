-- The same row, read by primary key.
\set key 1000000000000000000 + (8000000000000000000 / :records) * random(1, :records)
SELECT * FROM idempotency_store WHERE scope = '' AND idempotency_key = :key::text;
