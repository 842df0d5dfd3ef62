//go:build !unix

package pgxv5

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// shouldPing: pgx pings a connection that was idle for a second.
var shouldPing func(context.Context, pgxpool.ShouldPingParams) bool
