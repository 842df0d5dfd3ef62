-- The hand-written wrapper that hashes the request, as idem_call does.
\set key random(1000000000000000000, 9223372036854775807)
\set account random(1, :accounts)
\set amount random(1, 100)
SELECT hand_call(:key::text,
	jsonb_build_object('account', :account::int, 'amount', :amount::int, 'currency', 'EUR'),
	NULL);
