package main

import (
	"context"

	"example.org/idempotency"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// lease runs work outside of a transaction, once for each key. The comparison in
// by-hand/ builds the service with another file in place of this one.
type lease func(ctx context.Context, key string, request any, work idempotency.LeasedWork[pgx.Tx],
	options ...idempotency.Option) (*idempotency.Result, error)

func newLease(client *idempotency.Client[pgx.Tx], _ *pgxpool.Pool) lease {
	return client.Lease
}
