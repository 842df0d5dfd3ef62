// Package idemredis consumes a stream of Redis with redigo. An entry has an
// identifier that stays the same when it is delivered again. What changes more than
// one thing is a script, which Redis runs as a whole: so a dead letter is added when,
// and only when, its entry is acknowledged.
package idemredis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"regexp"
	"strings"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/internal/broker"
	"example.org/idempotency/internal/option"
	"github.com/gomodule/redigo/redis"
)

// Pool is what a consumer needs of a *redis.Pool. Its connections are a
// redis.ConnWithTimeout: whatever their own timeouts are, the consumer waits for an
// answer as long as Idle, or 5 seconds where that is longer, and Poll.
type Pool interface {
	Get() redis.Conn
}

// Entry is an entry of the stream.
type Entry struct {
	ID     string
	Fields map[string]string
	// Deliveries is how often it was delivered, Tries how many errors it has had.
	Deliveries, Tries int
}

// Options say what to consume and how.
type Options struct {
	Stream string
	// Group is made, and the stream where there is none. Consumers of one group share
	// the entries.
	Group string
	// Handle runs the operation of an entry and returns what Client.Transaction or
	// Client.Lease returned. No result and no error: acknowledge. It is called by
	// Prefetch goroutines at most. Its context does not end with that of Consume.
	Handle func(ctx context.Context, entry Entry) (*idempotency.Result, error)
	// Prefetch is how many entries are handled at a time; 0: 10.
	Prefetch int
	// Idle: after that time the entries of a consumer that died come again; 0: 30
	// seconds. While Handle runs, the entry is claimed anew at each third of it.
	Idle time.Duration
	// Poll is the time between two looks for entries whose time has come; 0: 500 ms.
	Poll time.Duration
	// Delays are the waits after the first error of Handle, the second, and so on,
	// growing; empty: 1 s, 10 s, 60 s.
	Delays []time.Duration
	// Tries: after so many errors of Handle an entry is a dead letter; 0: 20.
	Tries int
	// DeliveryLimit: an entry that was delivered more often, for whatever reason but
	// InProgress, is a dead letter; 0: 100.
	DeliveryLimit int
	// OnError is told of errors, of Handle and of Redis; nil: they are logged.
	OnError func(err error, entry Entry)
}

type consumer struct {
	Options
	pool   Pool
	policy broker.Policy
	owns   broker.Owns
	clock  idempotency.Clock
	name   string
	keys   []any
}

// Consume makes the group, and consumes until ctx ends. Then it takes no more
// entries, waits for those under way, and returns nil. Dead letters go to the stream
// {<Stream>}.<Group>.dead. While Redis is away it tries again each second.
func Consume[Tx any](ctx context.Context, pool Pool, client *idempotency.Client[Tx], options Options) error {
	if options.Stream == "" || options.Group == "" || options.Handle == nil {
		return errors.New("idemredis: Stream, Group and Handle are required")
	}
	policy, err := broker.Policy{Queue: options.Stream + "." + options.Group, Tries: options.Tries, Delays: options.Delays}.Checked()
	if err != nil {
		return err
	}
	c := &consumer{Options: withDefaults(options), pool: pool, policy: policy, owns: client.OwnsDeadLetter, clock: client.Clock(), name: rand.Text(),
		keys: keysOf(options.Stream, options.Group)}
	if err := c.make(); err != nil {
		return fmt.Errorf("idemredis: %w", err)
	}
	return broker.Pull(ctx, c.Prefetch, func(free int) ([]Entry, error) { return c.fetch(ctx, free), nil }, c.handle)
}

func withDefaults(o Options) Options {
	o.Prefetch = option.Or(o.Prefetch, 10)
	o.Idle = option.Or(o.Idle, 30*time.Second)
	o.Poll = option.Or(o.Poll, 500*time.Millisecond)
	o.DeliveryLimit = option.Or(o.DeliveryLimit, 100)
	if o.OnError == nil {
		o.OnError = func(err error, entry Entry) { log.Printf("idemredis: entry %s of %s: %v", entry.ID, o.Stream, err) }
	}
	o.OnError = broker.Telling(o.OnError)
	return o
}

var hashTag = regexp.MustCompile(`\{.+\}`)

// keysOf are the keys of the scripts. What is in braces decides in which node of a
// cluster a key is, and a script needs all its keys in one.
func keysOf(stream, group string) []any {
	prefix := stream
	if !hashTag.MatchString(stream) {
		prefix = "{" + stream + "}"
	}
	return []any{stream, prefix + "." + group + ".again", prefix + "." + group + ".tries", prefix + "." + group + ".dead"}
}

func (c *consumer) make() error {
	_, err := c.do("XGROUP", "CREATE", c.Stream, c.Group, "0", "MKSTREAM")
	if err == nil || strings.HasPrefix(err.Error(), "BUSYGROUP") {
		_, err = c.script(tidy, c.Group)
	}
	return err
}

// fetch waits while Redis is away. One that comes back without its data has no group.
func (c *consumer) fetch(ctx context.Context, free int) []Entry {
	entries, err := c.next(free)
	if err != nil && strings.Contains(err.Error(), "NOGROUP") {
		err = errors.Join(err, c.make())
	}
	if err != nil {
		c.OnError(err, Entry{})
		_ = c.clock.Sleep(ctx, time.Second)
	}
	return entries
}

// handle: if the entry cannot be settled, it comes again.
func (c *consumer) handle(ctx context.Context, entry Entry) {
	if err := c.settle(ctx, entry); err != nil {
		c.OnError(err, entry)
	}
}

// next gives entries of consumers that died, entries whose pause is over, or new
// ones, for which it waits.
func (c *consumer) next(count int) ([]Entry, error) {
	taken, err := redis.Values(c.script(take, c.Group, c.name, c.Idle.Milliseconds(), count))
	if err != nil || len(taken) > 0 {
		return readEntries(taken, err)
	}
	streams, err := redis.Values(c.do("XREADGROUP", "GROUP", c.Group, c.name, "COUNT", count, "BLOCK", c.Poll.Milliseconds(),
		"STREAMS", c.Stream, ">"))
	if errors.Is(err, redis.ErrNil) || err == nil && len(streams) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	stream, err := redis.Values(streams[0], nil)
	if err != nil || len(stream) != 2 {
		return nil, fmt.Errorf("idemredis: an answer that is no stream: %w", err)
	}
	return readEntries(redis.Values(stream[1], nil))
}

func readEntries(values []any, err error) ([]Entry, error) {
	var entries []Entry
	for _, value := range values {
		var entry Entry
		var fields []any
		parts, wrong := redis.Values(value, err)
		if wrong == nil {
			entry.Deliveries = 1
			_, wrong = redis.Scan(parts, &entry.ID, &fields)
		}
		if wrong == nil && len(parts) == 4 {
			_, wrong = redis.Scan(parts[2:], &entry.Deliveries, &entry.Tries)
		}
		if wrong == nil {
			entry.Fields, wrong = redis.StringMap(fields, nil)
		}
		if wrong != nil {
			return nil, wrong
		}
		entries = append(entries, entry)
	}
	return entries, err
}

// settle runs the operation of an entry, and settles the entry.
func (c *consumer) settle(ctx context.Context, entry Entry) error {
	decision := c.decide(ctx, entry)
	var err error
	switch decision.Do {
	case idempotency.Again:
		deliveries := entry.Deliveries
		if decision.InProgress {
			deliveries--
		}
		_, err = c.script(pauseEntry, c.Group, entry.ID, decision.After.Milliseconds()+1, decision.Tries, c.name, deliveries)
	case idempotency.DeadLetter:
		_, err = c.script(endEntry, c.Group, entry.ID, "bury")
	default:
		_, err = c.script(endEntry, c.Group, entry.ID, "ack")
	}
	return err
}

func (c *consumer) decide(ctx context.Context, entry Entry) broker.Decision {
	if entry.Deliveries > c.DeliveryLimit {
		return broker.Decision{Settlement: idempotency.Settlement{Do: idempotency.DeadLetter}}
	}
	stop := broker.Repeat(c.clock, c.Idle/3, func() { c.beat(entry) })
	defer stop()
	at := broker.Position{Name: entry.ID, Tries: entry.Tries}
	return c.policy.DecideByPosition(ctx, at, c.owns, func(err error) { c.OnError(err, entry) },
		func() (*idempotency.Result, error) { return c.Handle(ctx, entry) })
}

// beat tells Redis that the entry is being handled.
func (c *consumer) beat(entry Entry) {
	if _, err := c.do("XCLAIM", c.Stream, c.Group, c.name, 0, entry.ID, "JUSTID"); err != nil {
		c.OnError(err, entry)
	}
}

func (c *consumer) script(text string, arguments ...any) (any, error) {
	all := append([]any{text, len(c.keys)}, c.keys...)
	return c.do("EVAL", append(all, arguments...)...)
}

// do gives up a Redis that hangs: after Idle another consumer may have the entries.
func (c *consumer) do(command string, arguments ...any) (any, error) {
	conn := c.pool.Get()
	defer conn.Close()
	return redis.DoWithTimeout(conn, max(c.Idle, 5*time.Second)+c.Poll, command, arguments...)
}
