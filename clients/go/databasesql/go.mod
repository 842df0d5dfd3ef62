module example.org/idempotency/databasesql

go 1.25.0

require (
	example.org/idempotency v1.1.0
	github.com/lib/pq v1.12.3
)

replace example.org/idempotency => ..
