//go:build unix

package pgxv4

import (
	"net"
	"syscall"
)

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
	err = raw.Read(func(descriptor uintptr) bool {
		var first [1]byte
		n, _, err := syscall.Recvfrom(int(descriptor), first[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		closed = err == nil && (n == 0 || first[0] == 'E') || err == syscall.ECONNRESET
		return true
	})
	return closed || err != nil
}
