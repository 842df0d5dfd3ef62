package core_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"testing"

	"example.org/idempotency"
	"example.org/idempotency/databasesql"
)

// breaking answers each query with one row, behind which the connection is lost.
type breaking struct{ driver.Conn }

func (b breaking) Connect(context.Context) (driver.Conn, error) { return b, nil }
func (breaking) Driver() driver.Driver                          { return nil }
func (breaking) Close() error                                   { return nil }
func (breaking) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &brokenRows{}, nil
}

type brokenRows struct{ given bool }

func (*brokenRows) Columns() []string { return []string{"done"} }
func (*brokenRows) Close() error      { return nil }
func (r *brokenRows) Next(row []driver.Value) error {
	if r.given {
		return io.ErrUnexpectedEOF
	}
	r.given, row[0] = true, "t"
	return nil
}

// A row does not say that its statement has committed.
func TestRowsThatBreakOff(t *testing.T) {
	conn, err := databasesql.DB(sql.OpenDB(breaking{})).Acquire(background)
	must(t, err)
	_, err = conn.Query(background, idempotency.Statement{SQL: "SELECT"})
	wantError(t, err, io.ErrUnexpectedEOF)
}
