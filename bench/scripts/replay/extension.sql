-- A retry of an operation that has ended.
\set key 1000000000000000000 + (8000000000000000000 / :records) * random(1, :records)
SELECT * FROM idem_begin(:key::text, request => :request::jsonb);
