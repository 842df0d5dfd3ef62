//go:build !unix

package pgxv4

import "net"

// isClosedByPeer knows no way to look without waiting.
func isClosedByPeer(net.Conn) bool { return false }
