-- What became of an order here. "charging": the gateway may have been called.
-- "withdrawn": the refund came before the charge, which is refused from then on.
CREATE TABLE payment (
	order_id uuid PRIMARY KEY,
	amount int NOT NULL,    -- cents
	state text NOT NULL CHECK (state IN ('charging', 'charged', 'declined', 'withdrawn', 'refunded')),
	charge text
);
