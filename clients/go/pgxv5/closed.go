package pgxv5

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// closedRows is the answer of a transaction that has ended. What it embeds is nil: it
// is there so that a method that pgx adds to its interface breaks no build.
type closedRows struct {
	pgx.Rows
	err error
}

func (closedRows) Close()                                       {}
func (r closedRows) Err() error                                 { return r.err }
func (closedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (closedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (closedRows) Next() bool                                   { return false }
func (r closedRows) Scan(...any) error                          { return r.err }
func (r closedRows) Values() ([]any, error)                     { return nil, r.err }
func (closedRows) RawValues() [][]byte                          { return nil }
func (closedRows) Conn() *pgx.Conn                              { return nil }
func (closedRows) TypeMap() *pgtype.Map                         { return nil }

// closedBatch is the same for a batch.
type closedBatch struct {
	pgx.BatchResults
	err error
}

func (b closedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b closedBatch) Query() (pgx.Rows, error)         { return closedRows{err: b.err}, b.err }
func (b closedBatch) QueryRow() pgx.Row                { return closedRows{err: b.err} }
func (b closedBatch) Close() error                     { return b.err }
func (closedBatch) Tx() pgx.Tx                         { return nil }
