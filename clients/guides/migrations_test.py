"""The migrations of the guide, run by the tools that they are for, each in a database of its own."""

import os
import pathlib
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg import sql
from verdict import Verdict

UP, DOWN, UPDATE = (pathlib.Path("migrations", f"{name}.sql").read_text(encoding="utf-8") for name in ("up", "down", "update"))
FOUND = 'ALTER DATABASE {} SET search_path = "$user", public, idem'
BEGIN = "SELECT outcome::text FROM idem.idem_begin(%s)"


def connect(database, **options):
    """A session of the superuser that sees each statement's effect at once."""
    return psycopg.connect(dbname=database, autocommit=True, **options)


def create(database):
    """A new database, in which the application and tools find the extension without its schema."""
    with connect("postgres") as session:
        for statement in ("CREATE DATABASE {}", FOUND):
            session.execute(sql.SQL(statement).format(sql.Identifier(database)))


def sqlstate(session, statement):
    """How it ends."""
    try:
        session.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate
    return "00000"


def version(session):
    """Schema and version of the extension."""
    row = session.execute("SELECT extnamespace::regnamespace || ' ' || extversion FROM pg_extension"
                          " WHERE extname = 'idempotency'").fetchone()
    return row and row[0]


class Tool:
    """A tool in its directory, with its database."""

    def __init__(self, verdict, name, command):
        self.verdict, self.name, self.command = verdict, name, command
        self.directory = pathlib.Path(name).resolve()
        self.said = ""
        create(name)

    def check(self, good, what, details=None):
        """One check, with what the tool has said."""
        self.verdict.check(good, f"{self.name}: {what}", (details or self.said)[-2000:])

    def place(self, source, target):
        """A file of the guide, where the tool looks for it."""
        target = self.directory / target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)

    def write(self, target, text):
        """A file of the project, that the guide need not show."""
        target = self.directory / target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def run(self, *arguments, **environment):
        """Whether it ends well."""
        ended = subprocess.run([*self.command, *arguments], cwd=self.directory, text=True, check=False, timeout=120,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=os.environ | {"PGDATABASE": self.name} | environment)
        self.said = ended.stdout
        return ended.returncode == 0

    def one(self, statement):
        """The first value of the first row."""
        with connect(self.name) as session:
            return session.execute(statement).fetchone()[0]

    def begin(self, key="k"):
        """What a role of the application gets, and then ends."""
        with connect(self.name) as session, session.transaction():
            session.execute("SET LOCAL ROLE shop")
            outcome = session.execute(BEGIN, (key,)).fetchone()[0]
            if outcome == "ACQUIRED":
                session.execute("SELECT idem.idem_complete(%s)", (key,))
            return outcome

    def check_up(self, *arguments):
        """It makes the extension, and the application may use it."""
        self.check(self.run(*arguments), "up")
        with connect(self.name) as session:
            self.check(version(session) == "idem 1.1", "the extension is in its schema")
        self.check(self.begin() == "ACQUIRED", "the application may use it")

    def check_down(self, *arguments):
        """It refuses to drop a record, and then drops all."""
        self.check(not self.run(*arguments) and "still has records" in self.said, "down refuses to drop a record")
        self.check(self.begin() == "COMPLETED", "the record is there")
        with connect(self.name) as session:
            session.execute("TRUNCATE idem.idempotency_store")
        self.check(self.run(*arguments), "down")
        with connect(self.name) as session:
            self.check(version(session) is None, "the extension is gone")
        self.check(self.one("SELECT to_regnamespace('idem') IS NULL"), "its schema is gone")


def play_files(verdict):
    """The three files, without a tool."""
    def check(what, got, expected):
        verdict.check(got == expected, f"files: {what}", f"    expected {expected}, got {got}")

    create("files")
    with connect("files") as admin, connect("files") as migrator:
        admin.execute("CREATE ROLE shop; CREATE ROLE migrator; GRANT ALL ON DATABASE files TO migrator")
        migrator.execute("SET ROLE migrator")
        check("a role that is no superuser", sqlstate(migrator, UP), "42501")
        admin.execute(UP.replace("VERSION '1.1'", "VERSION '1.0'"))
        check("such a role, after an administrator", sqlstate(migrator, UP), "00000")
        check("the version that is named", version(admin), "idem 1.0")
        check("an update by such a role", sqlstate(migrator, UPDATE), "42501")
        admin.execute(UPDATE)
        check("an update", version(admin), "idem 1.1")
        check("an update grants what is new", admin.execute(
            "SELECT has_function_privilege('shop', 'idem.idem_lost_attempts(text, text)', 'EXECUTE')").fetchone()[0], True)
        check("an update by such a role, after an administrator", sqlstate(migrator, UPDATE), "00000")
        admin.execute("SELECT FROM idem.idem_advance('stream', 1)")
        check("down keeps marks", sqlstate(admin, DOWN), "55000")
        admin.execute("DELETE FROM idem.idempotency_stream")

        def down_meets_writer(key):
            """How down ends, where a transaction with a new record is open when it begins."""
            with ThreadPoolExecutor() as threads, connect("files") as writer, writer.transaction():
                writer.execute("SET LOCAL ROLE shop")
                writer.execute(BEGIN, (key,))
                down = threads.submit(sqlstate, admin, DOWN)
                while not down.done() and not migrator.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                    pass
                writer.execute("SELECT idem.idem_complete(%s)", (key,))
            return down.result()

        admin.execute("SET default_transaction_isolation = 'repeatable read'")
        check("down refuses a snapshot that would lack the record", down_meets_writer("r"), "25000")
        admin.execute("RESET default_transaction_isolation; TRUNCATE idem.idempotency_store")
        check("down sees a record that was being written", down_meets_writer("k"), "55000")
        admin.execute("TRUNCATE idem.idempotency_store")
        check("down", sqlstate(admin, DOWN), "00000")
        admin.execute("CREATE SCHEMA idem")
        check("a schema that somebody else has made", sqlstate(admin, UP), "42P06")
        admin.execute("DROP SCHEMA idem; CREATE EXTENSION idempotency SCHEMA public")
        check("the extension in another schema", sqlstate(admin, UP), "42710")
        check("nothing of it stays", admin.execute("SELECT to_regnamespace('idem')").fetchone()[0], None)


def play_django(verdict):
    """Django, and what CreateExtension would do."""
    tool = Tool(verdict, "django", [sys.executable, "-m", "django"])
    tool.write("settings.py", 'DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "django"}}\n'
                              'INSTALLED_APPS = ["django.contrib.contenttypes", "shop"]\n')
    tool.write("shop/__init__.py", "")
    tool.write("shop/migrations/__init__.py", "")
    for file in ("migrations/up.sql", "migrations/down.sql", "django/0001_idempotency.py"):
        tool.place(file, f"shop/migrations/{pathlib.Path(file).name}")
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    tool.check_up("migrate")
    tool.check(tool.run("flush", "--no-input") and tool.begin() == "COMPLETED", "flush leaves the records")
    tool.check_down("migrate", "shop", "zero")


def play_alembic(verdict):
    """Alembic, whose autogenerate sees all schemas here."""
    tool = Tool(verdict, "alembic", [sys.executable, "-m", "alembic"])
    tool.write("alembic.ini", "[alembic]\nscript_location = .\n")
    tool.write("script.py.mako", "")
    tool.write("env.py", """\
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath("env.py")))
from alembic import context
from include import include_name
from sqlalchemy import MetaData, create_engine

every = os.environ["SCHEMAS"] == "every"
with create_engine("postgresql+psycopg://").connect() as connection:
    context.configure(connection=connection, target_metadata=MetaData(), include_schemas=every,
                      include_name=include_name if os.environ["FILTER"] == "yes" else None)
    with context.begin_transaction():
        context.run_migrations()
""")
    for file in ("migrations/up.sql", "migrations/down.sql", "alembic/0001_idempotency.py"):
        tool.place(file, f"versions/{pathlib.Path(file).name}")
    os.environ |= {"SCHEMAS": "every", "FILTER": "yes"}
    tool.check_up("upgrade", "head")
    tool.check(tool.run("check"), "autogenerate leaves the extension alone, with all schemas")
    tool.check(tool.run("check", SCHEMAS="found"), "autogenerate leaves the extension alone, with search_path")
    for schemas in ("every", "found"):
        tool.check(not tool.run("check", SCHEMAS=schemas, FILTER="no") and "idempotency_store" in tool.said,
                   f"it would not without the function, {schemas}")
    tool.check_down("downgrade", "base")


def play_flyway(verdict):
    """Flyway, with the role as a placeholder."""
    url = (f"jdbc:postgresql://localhost/flyway?socketFactory=org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg"
           f"&socketFactoryArg={os.environ['PGHOST']}/.s.PGSQL.{os.environ['PGPORT']}")
    tool = Tool(verdict, "flyway", ["java", "-XX:TieredStopAtLevel=1", "-cp", "jars/*", "Migrate.java", url])
    tool.write("migrations/V1__idempotency.sql", UP.replace("'shop'", "'${app}'"))
    tool.check_up("migrate")
    tool.check(tool.run("clean") and tool.begin() == "COMPLETED", "clean leaves the records")
    tool.check(tool.run("migrate") and "applied: 1" in tool.said, "migrate after clean")
    tool.write("migrations/V2__no_idempotency.sql", DOWN)
    tool.check_down("migrate")


def play_rails(verdict):
    """ActiveRecord, and both forms of its dump."""
    tool = Tool(verdict, "rails", ["ruby", "rails.rb"])
    for file in ("migrations/up.sql", "migrations/down.sql", "rails/20260101000000_add_idempotency.rb"):
        tool.place(file, f"db/{pathlib.Path(file).name}")
    tool.check_up("up")
    tool.check(tool.run("schema", "schema.rb"), "schema.rb")
    dump = (tool.directory / "schema.rb").read_text(encoding="utf-8")
    tool.check('enable_extension "idempotency"' in dump and 'create_table "idempotency_stream"' in dump and "idem." not in dump,
               "schema.rb has no schema, and the tables", dump)
    tool.check(tool.run("structure", "structure.sql"), "structure.sql")
    create("rails_loaded")
    tool.check(tool.run("load", "structure.sql", PGDATABASE="rails_loaded"), "structure.sql is loaded")
    with connect("rails_loaded") as session:
        tool.check(version(session) == "idem 1.1", "structure.sql has the extension in its schema")
        session.execute("SET ROLE shop")
        tool.check(sqlstate(session, "SELECT idem.idem_lookup('k')") == "42501", "structure.sql has no rights")
        session.execute("RESET ROLE; SELECT idem.idem_grant('shop'); SET ROLE shop")
        tool.check(sqlstate(session, "SELECT idem.idem_lookup('k')") == "00000", "idem_grant after the load")
    tool.check_down("down")


def main():
    """All of them."""
    with Verdict() as verdict:
        play_files(verdict)
        for play in (play_django, play_alembic, play_flyway, play_rails):
            play(verdict)


if __name__ == "__main__":
    main()
