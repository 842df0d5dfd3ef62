-- Key, business and record in one call; a failure would be raised.
\set key random(1000000000000000000, 9223372036854775807)
\set account random(1, :accounts)
\set amount random(1, 100)
SELECT outcome, response_payload FROM idem_call('pay(jsonb)', :key::text,
	jsonb_build_object('account', :account::int, 'amount', :amount::int, 'currency', 'EUR'),
	record_failure => false);
