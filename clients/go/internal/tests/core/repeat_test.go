package core_test

import (
	"testing"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/broker"
)

func TestStopWaitsForTheCallUnderWay(t *testing.T) {
	clock := idempotency.NewFakeClock(time.Now())
	entered, stopping := make(chan struct{}), make(chan struct{})
	calls := 0
	stop := broker.Repeat(clock, time.Second, func() {
		close(entered)
		<-stopping
		time.Sleep(20 * time.Millisecond) // a stop that did not wait would read calls now
		calls++
	})
	clock.AwaitSleepers(1)
	clock.Advance(time.Second)
	<-entered
	close(stopping)
	stop()
	clock.Advance(time.Hour)
	if calls != 1 {
		t.Errorf("%d calls when stop returned", calls)
	}
}
