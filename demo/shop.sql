-- The shop's own tables. They are the same with and without idempotency, and
-- nothing in them stops a second payment of the same message: no unique key
-- on payment.message_id. The consumer must prevent it.

CREATE TABLE account (
	id				text PRIMARY KEY,
	spent			bigint NOT NULL DEFAULT 0,
	payment_limit	bigint NOT NULL
);
COMMENT ON COLUMN account.spent IS 'cents; the sum of this account''s payments';
COMMENT ON COLUMN account.payment_limit IS 'cents; a larger payment is declined';

CREATE TABLE payment (
	id				bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id		text NOT NULL,
	account			text NOT NULL REFERENCES account,
	amount			bigint NOT NULL CHECK (amount > 0),
	gateway_charge	bigint
);
COMMENT ON COLUMN payment.gateway_charge IS 'the gateway''s number of the charge; NULL: paid from the wallet';

-- The messages that were sent. Only the audit reads this table, no consumer does.
CREATE TABLE message (
	id			text PRIMARY KEY,
	account		text NOT NULL,
	amount		bigint NOT NULL,
	method		text NOT NULL,
	accepted	boolean NOT NULL
);
COMMENT ON COLUMN message.accepted IS 'within the limit: must take effect exactly once; else never';
