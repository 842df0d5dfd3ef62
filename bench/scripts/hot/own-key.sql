-- Every client replays a key of its own.
\set key 1000000000000000000 + (8000000000000000000 / :records) * (:client_id + 1)
SELECT * FROM idem_begin(:key::text, request => :request::jsonb);
