package idempotency

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// statements has the text of each statement, with the extension's schema.
type statements struct {
	begin, complete, fail, release, extend, progress, lookup, beginMany, completeMany string
}

// Savepoint between begin and work, for Declined; between an end and its writes; and around a batch.
const (
	setSavepoint    = "SAVEPOINT idempotency_work"
	toSavepoint     = "ROLLBACK TO SAVEPOINT idempotency_work"
	endSavepoint    = "RELEASE SAVEPOINT idempotency_work"
	releaseArgs     = "($1::text, scope => $2::text, fence => $3::text::bigint)"
	endArgs         = "($1::text, $2::text::jsonb, scope => $3::text, code => $4::text::int, headers => $5::text::jsonb, body => decode($6::text, 'hex'), fence => $7::text::bigint, retention => $8::text::interval"
	beginArgs       = "($1::text, $2::text::jsonb, scope => $3::text, request_hash => decode($4::text, 'hex'), lease => $5::text::interval, wait => $6::text::interval, max_attempts => $7::text::int)"
	beginManyArgs   = "($1::text::text[], $2::text::jsonb[], scope => $3::text, max_attempts => $4::text::int)"
	completeManyArg = "($1::text::text[], $2::text::jsonb[], scope => $3::text)"
)

func newStatements(schema string) statements {
	if schema != "" {
		schema = `"` + strings.ReplaceAll(schema, `"`, `""`) + `".`
	}
	return statements{
		begin:    "SELECT " + operationColumns + " FROM " + schema + "idem_begin" + beginArgs + " o",
		complete: "SELECT " + schema + "idem_complete" + endArgs + ")::text",
		fail: "SELECT " + schema + "idem_fail" + endArgs +
			", retryable => $9::text::boolean, retry_after => $10::text::interval)::text",
		release: "SELECT " + schema + "idem_release" + releaseArgs + "::text",
		extend: "SELECT extract(epoch FROM " + schema + "idem_extend($1::text, $4::text::interval," +
			" scope => $2::text, fence => $3::text::bigint) - clock_timestamp())::text",
		progress:     "SELECT " + schema + "idem_progress($1::text, $4::text::jsonb, scope => $2::text, fence => $3::text::bigint)::text",
		lookup:       "SELECT " + operationColumns + " FROM " + schema + "idem_lookup($1::text, scope => $2::text) o",
		beginMany:    "SELECT " + operationColumns + " FROM " + schema + "idem_begin_batch" + beginManyArgs + " o",
		completeMany: "SELECT " + schema + "idem_complete_batch" + completeManyArg + "::text",
	}
}

func (s *statements) beginOf(call *call, lease, wait time.Duration) Statement {
	return Statement{s.begin, []*string{textOf(call.key), call.request, textOf(call.scope), hexOf(call.requestHash),
		intervalOrNull(lease), intervalOf(wait), maxAttemptsOf(call.maxAttempts)}}
}

// limitLost holds for the rest of the transaction. SET takes no arguments, and no
// snapshot.
func limitLost(call *call) []Statement {
	if call.maxLost == 0 {
		return nil
	}
	return []Statement{{SQL: "SET LOCAL idempotency.max_lost_attempts = " + countOf(call.maxLost)}}
}

// endOf has the arguments that complete and fail share.
func endOf(text string, call *call, fence int64, response Response, payload []byte) (Statement, error) {
	var headers *string
	if response.Headers != nil {
		marshalled, err := asJSON(response.Headers)
		if err != nil {
			return Statement{}, err
		}
		headers = textOf(string(marshalled))
	}
	if err := checkTimes(response.Retention); err != nil {
		return Statement{}, err
	}
	retention := cmp.Or(response.Retention, call.retention)
	return Statement{text, []*string{textOf(call.key), textOrNull(payload), textOf(call.scope), numberOrNull(int64(response.Code)),
		headers, hexOf(response.Body), numberOrNull(fence), intervalOrNull(retention)}}, nil
}

func (s *statements) failOf(call *call, fence int64, declined *Declined, payload []byte) (Statement, error) {
	statement, err := endOf(s.fail, call, fence, declined.Response, payload)
	retryable, after := "false", (*string)(nil)
	if declined.RetryAfter != nil {
		retryable, after = "true", intervalOf(max(*declined.RetryAfter, 0))
		if err == nil && *declined.RetryAfter > longest {
			err = fmt.Errorf("idempotency: a RetryAfter of %v is above 36500 days", *declined.RetryAfter)
		}
	}
	statement.Args = append(statement.Args, &retryable, after)
	return statement, err
}

func (s *statements) releaseOf(o *Operation) Statement {
	return Statement{s.release, []*string{textOf(o.Key), textOf(o.Scope), numberOrNull(o.Fence)}}
}

func (s *statements) extendOf(o *Operation, lease time.Duration) Statement {
	return Statement{s.extend, []*string{textOf(o.Key), textOf(o.Scope), numberOrNull(o.Fence), intervalOf(lease)}}
}

func (s *statements) progressOf(o *Operation, note []byte) Statement {
	return Statement{s.progress, []*string{textOf(o.Key), textOf(o.Scope), numberOrNull(o.Fence), textOrNull(note)}}
}

func (s *statements) lookupOf(call *call) Statement {
	return Statement{s.lookup, []*string{textOf(call.key), textOf(call.scope)}}
}

func textOf(text string) *string { return &text }

func textOrNull(text []byte) *string {
	if text == nil {
		return nil
	}
	return textOf(string(text))
}

func hexOf(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	return textOf(hex.EncodeToString(bytes))
}

func numberOrNull(number int64) *string {
	if number == 0 {
		return nil
	}
	return textOf(strconv.FormatInt(number, 10))
}

// countOf is a limit as the server takes it: below 0 there is none, and so there is above what it takes.
func countOf(limit int) string { return strconv.Itoa(min(max(limit, 0), math.MaxInt32)) }

func maxAttemptsOf(attempts int) *string {
	if attempts == 0 {
		return nil
	}
	return textOf(countOf(attempts))
}

func intervalOf(d time.Duration) *string {
	return textOf(fmt.Sprintf("%d microseconds", d.Microseconds()))
}

func intervalOrNull(d time.Duration) *string {
	if d == 0 {
		return nil
	}
	return intervalOf(d)
}

// arrayOf is PostgreSQL's spelling of a text array.
func arrayOf(values []*string) *string {
	var text strings.Builder
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for i, value := range values {
		if i > 0 {
			text.WriteByte(',')
		}
		if value == nil {
			text.WriteString("NULL")
			continue
		}
		text.WriteString(`"` + escape.Replace(*value) + `"`)
	}
	return textOf("{" + text.String() + "}")
}
