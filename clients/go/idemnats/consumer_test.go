package idemnats

import (
	"testing"

	"example.org/idempotency"
	"example.org/idempotency/internal/broker"
)

// Of messages that other consumers settle nobody is told.
func TestWhatIsElsewhereIsNotRememberedForEver(t *testing.T) {
	e := elsewhere{times: map[uint64]int{}}
	for message := range uint64(mostElsewhere + 1) {
		e.note(message, broker.Decision{Settlement: idempotency.Settlement{Do: idempotency.Again}, InProgress: true})
	}
	if len(e.times) != 1 || e.of(mostElsewhere) != 1 {
		t.Errorf("%d messages", len(e.times))
	}
}
