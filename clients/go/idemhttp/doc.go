// Package idemhttp makes routes of net/http idempotent: a request with an
// Idempotency-Key runs once, and a retry gets the first answer, byte for byte.
//
// Middleware.Transaction is for handlers whose effects are in the database: the
// handler gets the open transaction. Middleware.Lease is for handlers that call
// others: no connection is held meanwhile.
//
//	400 the key is missing, malformed, or there are two
//	401 the option Principal knows nobody
//	409 the first request is still running; Retry-After says when to come again
//	411 the body is empty, and no Content-Length says that it should be
//	413 the request is too large
//	422 the key was used before with a different request
//	500 the handler failed: nothing is stored
//	503 the database is away, the handler took too long, or nobody knows the
//	    outcome; with Retry-After
//
// Each is an application/problem+json (RFC 9457) that shows neither key nor scope.
package idemhttp
