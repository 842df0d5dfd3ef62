-- A consumer per stream moves its high-water mark.
\set seq :seq + 1
SELECT idem_advance(:client_id::text, :seq);
