-- The business function alone.
\set key random(1000000000000000000, 9223372036854775807)
\set account random(1, :accounts)
\set amount random(1, 100)
SELECT pay(jsonb_build_object('account', :account::int, 'amount', :amount::int, 'currency', 'EUR'));
