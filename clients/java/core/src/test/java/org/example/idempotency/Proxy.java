package org.example.idempotency;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.EOFException;
import java.io.IOException;
import java.lang.ProcessBuilder.Redirect;

/** test/kit/fault_proxy.py, which stands between a client and the server. */
final class Proxy implements AutoCloseable {
    private final Process program = new ProcessBuilder("python3", System.getenv("FAULT_PROXY"), "-",
            System.getenv("PGHOST") + "/.s.PGSQL." + System.getenv("PGPORT")).redirectError(Redirect.INHERIT).start();
    private final BufferedWriter orders = program.outputWriter();
    private final BufferedReader results = program.inputReader();
    private final String port = result();

    Proxy() throws IOException {
    }

    String url() {
        return "jdbc:postgresql://127.0.0.1:" + port + '/' + System.getenv("PGDATABASE")
                + "?sslmode=disable&gssEncMode=disable&user=" + System.getenv("PGUSER");
    }

    /** Has been carried out when it returns the result. */
    synchronized String order(String... order) throws IOException {
        orders.write("[\"" + String.join("\", \"", order) + "\"]\n");
        orders.flush();
        return result();
    }

    private String result() throws IOException {
        String line = results.readLine();
        if (line == null) {
            throw new EOFException("the proxy has ended");
        }
        return line;
    }

    @Override
    public void close() throws IOException {
        orders.close();
        program.onExit().join();
    }
}
