package pgxv4

import (
	"github.com/jackc/pgconn"
	"github.com/jackc/pgproto3/v2"
	"github.com/jackc/pgx/v4"
)

// closedRows is the answer of a transaction that has ended.
type closedRows struct{}

func (closedRows) Close()                                         {}
func (closedRows) Err() error                                     { return pgx.ErrTxClosed }
func (closedRows) CommandTag() pgconn.CommandTag                  { return nil }
func (closedRows) FieldDescriptions() []pgproto3.FieldDescription { return nil }
func (closedRows) Next() bool                                     { return false }
func (closedRows) Scan(...any) error                              { return pgx.ErrTxClosed }
func (closedRows) Values() ([]any, error)                         { return nil, pgx.ErrTxClosed }
func (closedRows) RawValues() [][]byte                            { return nil }

// closedBatch is the same for a batch.
type closedBatch struct{}

func (closedBatch) Exec() (pgconn.CommandTag, error) { return nil, pgx.ErrTxClosed }
func (closedBatch) Query() (pgx.Rows, error)         { return closedRows{}, pgx.ErrTxClosed }
func (closedBatch) QueryRow() pgx.Row                { return closedRows{} }
func (closedBatch) Close() error                     { return pgx.ErrTxClosed }
func (closedBatch) QueryFunc([]any, func(pgx.QueryFuncRow) error) (pgconn.CommandTag, error) {
	return nil, pgx.ErrTxClosed
}
