//go:build unix

package pgxv5

import (
	"context"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
)

// shouldPing spares the round trip for a connection that seems to be alive.
func shouldPing(_ context.Context, params pgxpool.ShouldPingParams) bool {
	return isClosedByPeer(params.Conn.PgConn().Conn())
}

// isClosedByPeer looks, without waiting, whether the server has closed an idle
// connection, or has sent the error with which it does so. With TLS only the
// former can be seen.
func isClosedByPeer(connection net.Conn) bool {
	if wrapped, isTLS := connection.(interface{ NetConn() net.Conn }); isTLS {
		connection = wrapped.NetConn()
	}
	socket, hasSocket := connection.(syscall.Conn)
	if !hasSocket {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	// Not raw.Read, which waits until nobody else reads: after a slow write a goroutine of
	// pgx's may read until the server says something, which is never if we do not ask.
	err = raw.Control(func(descriptor uintptr) {
		var first [1]byte
		n, _, err := syscall.Recvfrom(int(descriptor), first[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		closed = err == nil && (n == 0 || first[0] == 'E') || err == syscall.ECONNRESET
	})
	return closed || err != nil
}
