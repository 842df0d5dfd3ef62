-- All clients replay the same key.
\set key 1000000000000000000 + (8000000000000000000 / :records) * 1
SELECT * FROM idem_begin(:key::text, request => :request::jsonb);
