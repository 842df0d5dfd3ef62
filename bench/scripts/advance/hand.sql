-- The same by hand.
\set seq :seq + 1
INSERT INTO hand_stream AS s (scope, stream, seq, updated_at)
	VALUES ('', :client_id::text, :seq, clock_timestamp())
	ON CONFLICT (scope, stream)
	DO UPDATE SET seq = excluded.seq, updated_at = excluded.updated_at WHERE s.seq < excluded.seq
	RETURNING true;
