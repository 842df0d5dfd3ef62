package idempotency_test

import (
	"context"
	"fmt"
	"time"

	"example.org/idempotency"
)

func ExampleSettle() {
	// what Client.Transaction or Client.Lease returned
	result, err := &idempotency.Result{Outcome: idempotency.Failed, Code: 402}, error(nil)
	switch settlement := idempotency.Settle(result, err); settlement.Do {
	case idempotency.Ack:
		fmt.Println("acknowledge the message")
	case idempotency.Again:
		fmt.Println("deliver it again after", settlement.After)
	case idempotency.DeadLetter:
		fmt.Println("put it aside")
	}
	// Output: put it aside
}

func ExampleFakeClock() {
	clock := idempotency.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	done := make(chan error)
	go func() { done <- clock.Sleep(context.Background(), time.Hour) }()
	clock.AwaitSleepers(1)
	clock.Advance(time.Hour)
	fmt.Println(<-done, clock.Now().Hour())
	// Output: <nil> 1
}
