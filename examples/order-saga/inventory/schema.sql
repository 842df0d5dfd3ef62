CREATE TABLE stock (
	sku text PRIMARY KEY,
	available int NOT NULL CHECK (available >= 0)
);

-- What became of an order here. "released" without items: the release came before
-- the reservation, which is refused from then on.
CREATE TABLE reservation (
	order_id uuid PRIMARY KEY,
	state text NOT NULL CHECK (state IN ('reserved', 'refused', 'released')),
	items jsonb NOT NULL
);
