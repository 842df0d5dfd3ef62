-- What became of an order here. "recalled": the customer was faster than the parcel.
CREATE TABLE parcel (
	order_id uuid PRIMARY KEY,
	state text NOT NULL CHECK (state IN ('shipped', 'refused', 'recalled')),
	items jsonb NOT NULL
);
