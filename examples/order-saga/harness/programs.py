"""Programs that run side by side. Whatever ends is started again, until all are to stop."""

import os
import signal
import subprocess
import threading
import time

PAUSE = 0.3      # seconds before a program that was killed is started again
LONGER = 2.0     # the same, if it ended by itself: what it needs is away, and needs the processor to come back


class Program:
    """One supervised program. ``heard(name, line)`` gets each line of its output, of which one is "ready"."""

    def __init__(self, name, command, environment, log, heard):
        self.name = name
        self.command = command
        self.environment = {**os.environ, **environment}
        self.log = log
        self.heard = heard
        self.process = None
        self.ready = threading.Event()
        self.stopping = False
        self.allowed = threading.Event()
        self.allowed.set()
        self.starts = 0
        self.lock = threading.Lock()

    def start(self):
        threading.Thread(target=self.supervise, daemon=True).start()
        return self

    def supervise(self):
        while not self.stopping:
            self.allowed.wait()
            with self.lock:
                if self.stopping:
                    return
                self.process = subprocess.Popen(
                    self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
                    text=True, start_new_session=True)
                self.starts += 1
            for line in self.process.stdout:
                if line.strip() == "ready":
                    self.ready.set()
                self.heard(self.name, line.strip())
            status = self.process.wait()
            self.ready.clear()
            time.sleep(PAUSE if status == -signal.SIGKILL else LONGER)

    def hold(self):
        """Ends it, until it is let go."""
        self.allowed.clear()
        self.kill()

    def let_go(self):
        self.allowed.set()

    def kill(self):
        """As a power cut would. Whether it was running."""
        with self.lock:
            running = self.process is not None and self.process.poll() is None
            if running:
                self.process.kill()
            return running

    def stop(self):
        self.allowed.set()
        with self.lock:
            self.stopping = True
            if self.process is not None and self.process.poll() is None:
                self.process.terminate()
        if self.process is not None:
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()


class Database:
    """The server of dev/throwaway-server, which may be killed and comes back."""

    name = "database"

    def kill(self):
        """All its processes at once, without a checkpoint; then it recovers."""
        self.pg_ctl("stop", "-m", "immediate")
        self.pg_ctl("start", "-l", os.environ["IDEM_LOG"])
        return True

    def pg_ctl(self, *arguments):
        program = os.path.join(os.environ["PG_BINDIR"], "pg_ctl")
        subprocess.run([program, "-s", "-w", "-t", "60", "-D", os.environ["PGDATA"], *arguments],
                       check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


class Broker:
    """The RabbitMQ of dev/with-brokers, which may be killed and comes back."""

    name = "broker"

    def __init__(self):
        self.own = None

    def kill(self):
        """Its node ends as a whole, and is started again on the same data."""
        with open(os.environ["RABBITMQ_PID_FILE"], encoding="ascii") as file:
            pid = int(file.read())
        os.kill(pid, signal.SIGKILL)
        if self.own:
            self.own.wait()
        else:
            wait_for_end(pid)
        with open(os.path.join(os.environ["RABBITMQ_LOG_BASE"], "server"), "ab") as log:
            self.own = subprocess.Popen(["/usr/lib/rabbitmq/bin/rabbitmq-server"], stdin=subprocess.DEVNULL,
                                        stdout=log, stderr=log, start_new_session=True)
        return True

    def stop(self):
        """If it is the one that was started here."""
        if self.own:
            self.own.terminate()
            self.own.wait()


def wait_for_end(pid):
    """Of a process that is somebody else's child."""
    while True:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.05)
