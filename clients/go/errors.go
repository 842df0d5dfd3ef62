package idempotency

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// What may go wrong. Compare with errors.Is. Each is found by its SQLSTATE, never
// by a message. The driver's error is in the chain, for errors.As.
var (
	// ErrBadArgument: an argument is missing, too long or out of range (ID400).
	ErrBadArgument = errors.New("idempotency: bad argument")
	// ErrForbidden: the role may not use the scope (ID403).
	ErrForbidden = errors.New("idempotency: the role may not use this scope")
	// ErrNotOwned: this transaction does not own the operation (ID404). The work
	// ended the transaction, or the operation, itself.
	ErrNotOwned = errors.New("idempotency: the transaction does not own the operation")
	// ErrLeaseLost: the fence is no longer current (ID409).
	ErrLeaseLost = errors.New("idempotency: the lease was lost")
	// ErrTooLarge: the response is larger than the server stores (ID413).
	ErrTooLarge = errors.New("idempotency: the response is too large")
	// ErrKeyReused: the key was used before with a different request (ID422).
	ErrKeyReused = errors.New("idempotency: the key was used before with a different request")
	// ErrNotEnded: COMMIT was refused, as an operation was not ended (ID428).
	ErrNotEnded = errors.New("idempotency: an operation was begun and not ended")
	// ErrNotReady: the extension, its schema or the right to use it is missing (42883,
	// 3F000, 42501 of a begin). The text says what to do.
	ErrNotReady = errors.New("idempotency: the database is not ready")
	// ErrCommitRolledBack: COMMIT rolled the transaction back, because a statement
	// in it had failed and the work did not return that error. Nothing is stored.
	ErrCommitRolledBack = errors.New("idempotency: the transaction was rolled back at COMMIT")
	// ErrConnectionLost: the connection broke, and so did the repetitions.
	ErrConnectionLost = errors.New("idempotency: the connection was lost")
	// ErrUnknown: nobody knows whether the operation took effect. See UnknownError.
	ErrUnknown = errors.New("idempotency: the outcome of the operation is unknown")
	// ErrUnstorable: the work of a lease was done, and its answer could not be stored. The
	// operation has ended without one, and no attempt repeats it. The call that did the work
	// gets the error of its answer; this one is for the calls after it.
	ErrUnstorable = errors.New("idempotency: the work was done, and its answer could not be stored")
	// ErrInProgress: somebody else owns the operation. See InProgressError.
	ErrInProgress = errors.New("idempotency: the operation is in progress")
	// ErrNotDone is returned by the work of a lease, alone or wrapped, to say that
	// nothing has happened outside of the database. The operation is then released
	// at once. The work of a transaction returns it for a rollback that is no lost attempt.
	ErrNotDone = errors.New("idempotency: nothing was done")
)

var byState = map[string]error{
	"ID400": ErrBadArgument,
	"ID403": ErrForbidden,
	"ID404": ErrNotOwned,
	"ID409": ErrLeaseLost,
	"ID413": ErrTooLarge,
	"ID422": ErrKeyReused,
	"ID428": ErrNotEnded,
	"25P01": ErrNotOwned, "3B001": ErrNotOwned, // the savepoint is gone, with its transaction
}

// Error is one of the package's errors with its cause, the error of the driver.
type Error struct {
	kind  error
	cause error
}

func (e *Error) Error() string { return fmt.Sprintf("%v: %v", e.kind, e.cause) }

func (e *Error) Is(target error) bool { return target == e.kind }

func (e *Error) Unwrap() error { return e.cause }

// ConnectionLost makes an ErrConnectionLost of a driver's error. It is for
// implementations of Database.
func ConnectionLost(cause error) error { return &Error{ErrConnectionLost, cause} }

// UnknownError says that an earlier attempt ran out of its lease, and that
// nobody knows what it did. The operation is owned by nobody, and the next begin
// reconciles again. errors.Is(err, ErrUnknown) finds it.
type UnknownError struct {
	// RetryAfter is how long to wait before the next try.
	RetryAfter time.Duration
	// Cause is the error of the reconcile function, or nil.
	Cause error
}

// Error does not show the cause's text, which may be another service's.
func (e *UnknownError) Error() string { return ErrUnknown.Error() }

func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

func (e *UnknownError) Unwrap() error { return e.Cause }

// InProgressError is what a function made by Idempotent returns while somebody
// else owns the operation. errors.Is(err, ErrInProgress) finds it.
type InProgressError struct {
	// RetryAfter is what is left of the owner's lease; nil: the owner is an open
	// transaction.
	RetryAfter *time.Duration
}

func (e *InProgressError) Error() string { return ErrInProgress.Error() }

func (e *InProgressError) Is(target error) bool { return target == ErrInProgress }

// SQLState gives the SQLSTATE of an error of pgx, lib/pq or any driver whose
// errors have a method SQLState, or, as those of bun's pgdriver, a method Field; else "".
func SQLState(err error) string {
	var stated interface{ SQLState() string }
	if errors.As(err, &stated) {
		return stated.SQLState()
	}
	var fielded interface{ Field(name byte) string }
	if errors.As(err, &fielded) {
		return fielded.Field('C')
	}
	return ""
}

// Transient says whether the same call may succeed a moment later: 40001, 40P01
// and a lost connection. The client has repeated the call before it returns such
// an error.
func Transient(err error) bool {
	state := SQLState(err)
	return state == "40001" || state == "40P01" || errors.Is(err, ErrConnectionLost) || endsConnection(state)
}

// endsConnection: after these the server closes the connection, or opens none.
func endsConnection(state string) bool {
	switch state {
	case "57P01", "57P02", "57P03", "57P05", "25P03", "25P04":
		return true
	}
	return strings.HasPrefix(state, "08")
}

// ofStatement gives the package's error for an error of one of its own
// statements.
func ofStatement(err error) error {
	state := SQLState(err)
	if kind, known := byState[state]; known {
		return &Error{kind, err}
	}
	if errors.Is(err, sql.ErrTxDone) {
		return &Error{ErrNotOwned, err}
	}
	if !errors.Is(err, ErrConnectionLost) && (endsConnection(state) || isSocketError(err)) {
		return ConnectionLost(err)
	}
	return err
}

// notReady says what to do, by SQLSTATE.
var notReady = map[string]string{
	"42883": "the functions of the extension were not found: run CREATE EXTENSION idempotency in this database, or name its schema by the " +
		"option Schema; a role without idem_grant does not find them in a schema of their own",
	"3F000": "the schema of the option Schema does not exist: it is the one in which the extension idempotency was created",
	"42501": "the role may not use the extension: let its owner run SELECT idem_grant('the role')",
}

// ofBegin gives ErrBadArgument for an error of a begin that was given data that the
// server cannot read, and ErrNotReady where something is missing: that can be nothing but
// what belongs to the package.
func ofBegin(err error) error {
	state := SQLState(err)
	if advice, known := notReady[state]; known {
		return &Error{ErrNotReady, fmt.Errorf("%s: %w", advice, err)}
	}
	switch state {
	case "22P02", "22P05", "22021", "22003", "54001":
		return &Error{ErrBadArgument, err}
	}
	return err
}

// isSocketError says whether a driver's error without a SQLSTATE means that the
// connection is gone.
func isSocketError(err error) bool {
	var operation *net.OpError
	return errors.As(err, &operation) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF)
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
