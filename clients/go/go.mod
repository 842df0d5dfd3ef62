module example.org/idempotency

go 1.25.0
