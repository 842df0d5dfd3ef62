-- The hand-written wrapper that hashes the request, on a table with an index for its clean-up.
\set key random(1000000000000000000, 9223372036854775807)
\set account random(1, :accounts)
\set amount random(1, 100)
SELECT hand_call_indexed(:key::text,
	jsonb_build_object('account', :account::int, 'amount', :amount::int, 'currency', 'EUR'),
	NULL);
