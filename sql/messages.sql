-- Every error of the extension's own, in full: SQLSTATE, message, detail, hint.

SELECT answer(idem_begin('messages-leased', scope => 'shop', request => '1', lease => '1 hour'));
BEGIN;
SELECT answer(idem_begin('messages-bound', scope => 'shop'));
SELECT raises_in_full(s) FROM (VALUES
	-- ID400
	($$SELECT idem_begin(NULL)$$),
	($$SELECT idem_begin(repeat('k', 256))$$),
	($$SELECT idem_begin('messages-1', request_hash => '\x00')$$),
	($$SELECT idem_fail('messages-bound', scope => 'shop', retry_after => '1 s')$$),
	($$SELECT idem_extend('messages-bound', '1 hour', 'shop')$$),
	-- ID404
	($$SELECT idem_complete('messages-2', scope => 'shop')$$),
	-- ... where the key was begun in another scope
	($$SELECT idem_complete('messages-bound')$$),
	($$SELECT idem_release('messages-bound', scope => 'shops')$$),
	($$SELECT idem_extend('messages-bound', '1 hour')$$),
	($$SELECT idem_complete(idem_begin('messages-leased', scope => 'shop'))$$),
	-- ID409
	($$SELECT idem_complete('messages-leased', scope => 'shop', fence => 9223372036854775807)$$),
	-- ID413
	($$SELECT idem_complete('messages-bound', scope => 'shop', body => convert_to(repeat('b', 1048577), 'SQL_ASCII'))$$),
	-- ID422
	($$SELECT idem_begin('messages-leased', scope => 'shop', request => '2')$$)) v(s);
-- the limit on locks
SET LOCAL idempotency.max_operations_per_transaction = 1;
SELECT raises_in_full($$SELECT idem_begin('messages-3')$$);
-- ID428
COMMIT;
\echo :LAST_ERROR_SQLSTATE
-- An idem_call of something that is no handler.
SELECT raises_in_full($$SELECT idem_call('upper(text)', 'messages-4')$$);
