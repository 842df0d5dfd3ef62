module bench

go 1.25.0

require (
	example.org/idempotency v1.1.0
	example.org/idempotency/pgxv5 v1.1.0
	github.com/jackc/pgx/v5 v5.13.0
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

replace (
	example.org/idempotency => ../../../clients/go
	example.org/idempotency/pgxv5 => ../../../clients/go/pgxv5
)
