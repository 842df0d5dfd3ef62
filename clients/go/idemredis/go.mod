module example.org/idempotency/idemredis

go 1.25.0

require (
	example.org/idempotency v1.1.0
	github.com/gomodule/redigo v1.9.3
)

replace example.org/idempotency => ..
