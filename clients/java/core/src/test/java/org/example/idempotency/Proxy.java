package org.example.idempotency;

import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ByteChannel;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;

/**
 * Stands between a client and the server, which listens on a Unix socket only. It cuts a connection
 * when a certain message passes, or lets nothing pass any more.
 */
final class Proxy implements AutoCloseable {
    private final ServerSocketChannel listener = ServerSocketChannel.open();
    private final UnixDomainSocketAddress server;
    private String pattern;
    private boolean isBeforehand;
    private volatile boolean isHung;

    Proxy() throws IOException {
        Path socket = Path.of(System.getenv("PGHOST"), ".s.PGSQL." + System.getenv("PGPORT"));
        server = UnixDomainSocketAddress.of(socket);
        listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        daemon(this::accept);
    }

    String url() throws IOException {
        return "jdbc:postgresql://127.0.0.1:" + ((InetSocketAddress) listener.getLocalAddress()).getPort() + '/'
                + System.getenv("PGDATABASE") + "?sslmode=disable&gssEncMode=disable&user=" + System.getenv("PGUSER");
    }

    /** Cuts the next connection on which a message with that text passes: before the server has it, or after its answer. */
    synchronized void cutAt(String text, boolean beforehand) {
        pattern = text;
        isBeforehand = beforehand;
    }

    /** Lets no message pass any more, and closes nothing. */
    void hang() {
        isHung = true;
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }

    private static void daemon(Runnable task) {
        Thread thread = new Thread(task, "proxy");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        try {
            while (true) {
                new Link(listener.accept());
            }
        } catch (IOException closed) {
            // the test is over
        }
    }

    private synchronized boolean matches(byte[] message) {
        boolean hit = pattern != null && new String(message, StandardCharsets.ISO_8859_1).contains(pattern);
        pattern = hit ? null : pattern;
        return hit;
    }

    /** One connection. */
    private final class Link {
        private final SocketChannel client;
        private final SocketChannel upstream = SocketChannel.open(StandardProtocolFamily.UNIX);
        private volatile boolean isDoomed;

        Link(SocketChannel client) throws IOException {
            this.client = client;
            client.setOption(StandardSocketOptions.TCP_NODELAY, true); // a message is a write: each would wait for an ACK
            upstream.connect(server);
            daemon(() -> pump(client, upstream, false));
            daemon(() -> pump(upstream, client, true));
        }

        /** Whole messages, of which the client's first has no type. */
        private void pump(SocketChannel from, SocketChannel to, boolean isDown) {
            try (from; to) {
                for (boolean hasType = isDown;; hasType = true) {
                    byte[] message = read(from, hasType);
                    if (isHung) {
                        continue;
                    }
                    boolean isEnd = isDown ? isDoomed && message[0] == 'Z' : matches(message) && isDoomedBy();
                    if (isEnd) {
                        return;
                    }
                    if (!isDown || !isDoomed) {
                        to.write(ByteBuffer.wrap(message));
                    }
                }
            } catch (IOException over) {
                // one of the two has gone
            }
        }

        /** Whether to cut at once. Otherwise the answer is lost. */
        private boolean isDoomedBy() {
            isDoomed = !isBeforehand;
            return isBeforehand;
        }
    }

    private static byte[] read(ByteChannel from, boolean hasType) throws IOException {
        ByteBuffer head = fill(from, ByteBuffer.allocate(hasType ? 5 : 4));
        int length = head.getInt(head.capacity() - 4) - 4;
        ByteBuffer message = ByteBuffer.allocate(head.capacity() + length).put(head.flip());
        return fill(from, message).array();
    }

    private static ByteBuffer fill(ByteChannel from, ByteBuffer buffer) throws IOException {
        while (buffer.hasRemaining()) {
            if (from.read(buffer) < 0) {
                throw new EOFException();
            }
        }
        return buffer;
    }
}
