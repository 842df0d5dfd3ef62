// Package idempotency runs an operation at most once, however often its request
// arrives. It is the Go client of the PostgreSQL extension "idempotency".
//
// Client.Transaction runs work inside one database transaction, together with
// the record of its answer. Client.Lease runs work that cannot sit in one
// transaction, such as a call of a payment gateway. Client.BeginMany takes a
// batch of messages. Idempotent makes a plain function idempotent.
//
// The package knows no driver. Package pgxv5 connects it to pgx version 5, where
// BEGIN travels with idem_begin and idem_complete with COMMIT. Package databasesql
// connects it to any driver of database/sql. Package idemhttp has the middleware
// for net/http, package idemgin the one for gin, package caller the other half:
// what sends requests. Packages idemrabbitmq, idemnats, idemredis and idemkafka have
// the consumers of brokers. Each driver, framework and broker is a module of its own.
package idempotency
