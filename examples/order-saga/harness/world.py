"""The whole system: databases, services, relays, and the gateway, on a private server and a private broker."""

import os
import pathlib
import shutil
import threading
import time
import urllib.error
import urllib.request

import psycopg

from ports import free_ports
from programs import Broker, Database, Program

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
SERVICES = ("orders", "payments", "inventory", "shipping")
PYTHON = "/usr/bin/python3"


class World:
    """``stock``: what there is of each thing at the start. ``proxied(name, kind, address)``: where a program finds
    its database and broker; by default, where they are."""

    def __init__(self, mode, seed, stock, gateway_faults=10, settings=None, proxied=None):
        self.mode = mode
        self.seed = seed
        self.stock = stock
        self.gateway_faults = gateway_faults
        self.settings = settings or {}
        self.proxied = proxied or (lambda name, kind, address: address)
        self.work = pathlib.Path(os.environ["IDEM_WORK"]) / f"saga-{mode}"
        self.duplicates = 0
        self.counting = threading.Lock()
        self.broker = Broker()
        self.database = Database()
        self.programs = {}

    def start(self):
        """Returns when the shop is open."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        for service in SERVICES:
            self.create_database(service)
        self.fill_stock()
        self.log = open(self.work / "log", "a", encoding="utf-8")
        self.start_programs()
        self.wait_until_ready()

    def create_database(self, name):
        """A database that belongs to its service alone."""
        with psycopg.connect("dbname=postgres", autocommit=True) as server:
            server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            server.execute(f"CREATE DATABASE {name}")
            server.execute(f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
            if not server.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone():
                server.execute(f"CREATE ROLE {name} LOGIN")
            server.execute(f"GRANT CONNECT, CREATE ON DATABASE {name} TO {name}")
        with psycopg.connect(dbname=name) as database:
            database.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
            database.execute("CREATE EXTENSION idempotency")
            database.execute(f"SELECT idem_grant('{name}')")
        with psycopg.connect(dbname=name, user=name) as database:
            for file in (HERE / "outbox.sql", HERE / name / "schema.sql"):
                database.execute(file.read_text())

    def fill_stock(self):
        with psycopg.connect(dbname="inventory") as database:
            for sku, count in self.stock.items():
                database.execute("INSERT INTO stock VALUES (%s, %s)", (sku, count))

    def start_programs(self):
        self.shop_port, self.gateway_port = free_ports(2)
        self.gateway_books = self.work / "gateway.books"
        self.add("gateway", [PYTHON, HERE / "harness/gateway.py", self.gateway_port, self.gateway_books, self.seed,
                             self.gateway_faults], {})
        self.add_service("orders", ["node", HERE / "orders/main.js"])
        self.add_service("payments", [HERE / ".build/payments"])
        for name in ("inventory", "shipping"):
            self.add_service(name, [PYTHON, HERE / name / "main.py"])
        for name in SERVICES:
            self.add(f"relay-{name}", [PYTHON, HERE / "relay/main.py"], self.addresses(f"relay-{name}", name))

    def add_service(self, name, command):
        self.add(name, command, {
            **self.addresses(name, name), "PORT": str(self.shop_port),
            "GATEWAY_URL": f"http://127.0.0.1:{self.gateway_port}", **self.settings})

    def addresses(self, program, database):
        url = f'postgres://{database}@localhost/{database}?host={os.environ["PGHOST"]}'
        return {
            "MODE": self.mode, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{ROOT}/clients/python:{HERE}",
            "DATABASE_URL": self.proxied(program, "database", url),
            "AMQP_URL": self.proxied(program, "broker", os.environ["DEMO_AMQP"])}

    def add(self, name, command, environment):
        self.programs[name] = Program(
            name, [str(part) for part in command], environment, self.log, self.hear).start()

    def victims(self):
        return [self.database, self.broker, *(self.programs[name] for name in sorted(self.programs))]

    def hear(self, _, line):
        """Counts the duplicates that services turn away."""
        if line.startswith("duplicate "):
            with self.counting:
                self.duplicates += 1

    def wait_until_ready(self, seconds=180):
        for program in self.programs.values():
            if not program.ready.wait(seconds):
                raise RuntimeError(f"{program.name} did not start; see {self.work / 'log'}")
        wait_for(self.is_open, seconds, "the shop is closed")

    @property
    def address(self):
        return f"http://127.0.0.1:{self.shop_port}"

    def is_open(self):
        try:
            with urllib.request.urlopen(f"{self.address}/catalog", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def query(self, database, statement, *arguments):
        """As the owner of the server. Waits for a database that is coming back."""
        for _ in range(300):
            try:
                with psycopg.connect(dbname=database) as connection:
                    return connection.execute(statement, arguments).fetchall()
            except psycopg.OperationalError:
                time.sleep(0.2)
        raise RuntimeError("the database is gone")

    def unfinished(self):
        """How many orders have no end, and how many messages are still to be sent."""
        orders, = self.query("orders", "SELECT count(*) FROM orders WHERE state NOT IN ('CONFIRMED', 'CANCELLED')")[0]
        messages = sum(self.query(name, "SELECT count(*) FROM outbox WHERE sent_at IS NULL")[0][0] for name in SERVICES)
        return orders, messages

    def stop(self):
        for program in self.programs.values():
            program.stop()
        self.broker.stop()


def wait_for(condition, seconds, otherwise):
    """Looks five times a second."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(otherwise)
        time.sleep(0.2)
