#!/usr/bin/python3
"""
Fuzzes the extension on the server that the environment names, a private one:
programs of calls, and the model.  Ends with one line, "N passed, N failed".

--model plays only the model, against one database.  With --without-guard the
server lacks that guard of test/mutation/guards, and the model must disagree.
"""
import argparse
import multiprocessing
import os
import random
import re
import subprocess
import traceback
from collections import Counter
from pathlib import Path

import calls
import model
from documented import Documentation
from program import Runner, each_scene, programs
from session import Session
from values import FUNCTIONS, MARKER, OUT_OF_REACH
from verdict import Verdict

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test

HERE = Path(__file__).resolve().parent
SCHEMA = '"Odd schema"'
AT_ONCE = 250  # programs that hypothesis makes from one seed
# database, share of the calls, what is done to the store
DATABASES = [('fuzz_plain', 0.35, 'plain'), ('fuzz_trigger', 0.35, 'trigger'), ('fuzz_by_expiry', 0.24, 'by expiry'),
    ('fuzz_partitioned', 0.04, 'partitioned')]
STANDBY = 0.02
MODEL_EXAMPLES = 150  # when it plays alone
MOST_FAILURES = 4  # of a worker, before it gives up
SEALED = 0.3  # share of the calls with a seal key
MAX_GROWTH, MAX_GROWTH_KB = 1 << 20, 16 << 10

TRIGGER = (HERE.parent / 'kit/with-trigger.sql').read_text('utf-8') + "SELECT with_trigger.attach_to('{s}.idempotency_store')"
PARTITIONED = """
ALTER TABLE {s}.idempotency_store RENAME TO unpartitioned;
CREATE TABLE {s}.idempotency_store (LIKE {s}.unpartitioned INCLUDING DEFAULTS, PRIMARY KEY (scope, idempotency_key))
    PARTITION BY HASH (scope, idempotency_key);
CREATE TABLE {s}.part_0 PARTITION OF {s}.idempotency_store FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE {s}.part_1 PARTITION OF {s}.idempotency_store FOR VALUES WITH (MODULUS 2, REMAINDER 1)"""
KINDS = {'plain': '', 'trigger': TRIGGER, 'by expiry': "SELECT {s}.idem_partition_store('4 hours')", 'partitioned': PARTITIONED}


def prepare():
    """The roles and the databases; returns the functions as the catalog has them."""
    session = Session('postgres')
    session.script('CREATE ROLE fuzz_app; CREATE ROLE fuzz_stranger; CREATE ROLE fuzz_target')
    for database, _, kind in DATABASES:
        session.script(f'CREATE DATABASE {database}')
        inside = Session(database)
        inside.script(f'CREATE SCHEMA {SCHEMA}; CREATE EXTENSION idempotency SCHEMA {SCHEMA}; CREATE EXTENSION amcheck; CREATE EXTENSION pgcrypto')
        inside.script((HERE / 'setup.sql').read_text('utf-8').replace('@schema@', SCHEMA))
        inside.script(KINDS[kind].format(s=SCHEMA) or 'SELECT')
        found = calls.signatures(inside)
        inside.close()
    session.close()
    return found


def rss(pid):
    """Kilobytes of a backend's own memory."""
    status = Path(f'/proc/{pid}/status').read_text()
    return int(re.search(r'RssAnon:\s+(\d+)', status).group(1))


def memory_used(session):
    return int(session.value('SELECT sum(used_bytes) FROM pg_backend_memory_contexts'))


class Memories:
    """What the sessions of a runner used at some time, and use now."""

    def __init__(self, runner):
        self.runner = runner
        self.before = self.now()

    def now(self):
        self.runner.clear()
        return {session.pid: (memory_used(session), rss(session.pid)) for session in (self.runner.main, self.runner.peer)}

    def growth(self):
        """By how many bytes its contexts, and by how many kilobytes a session has grown at most."""
        now = self.now()
        if set(now) != set(self.before):
            return None
        return [max(now[pid][i] - self.before[pid][i] for pid in now) for i in (0, 1)]


def explain(error):
    """The error with the example that hypothesis has shrunk it to."""
    return ''.join(traceback.format_exception(error))[-6000:]


def fuzz_programs(runner, functions, seed, with_kinds):
    """Runs some programs, the same for the same seed."""
    @hypothesis.seed(seed)
    @settings(max_examples=AT_ONCE, deadline=None, database=None, print_blob=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
    @given(programs(functions, with_kinds))
    def programs_are_answered_as_documented(program):
        runner.run(program)

    programs_are_answered_as_documented()


def play_scenes(runner, functions):
    """Each scene once; drawn programs follow.  Returns what the scenes alone have seen."""
    for scene in each_scene(functions):
        runner.run(scene)
    return Counter(runner.counts)


def work(task):
    """One worker's share; in a process of its own."""
    where, database, count, seed, found, environment = task
    os.environ.update(environment)
    outcome = {'where': f'{database}, {where}', 'failures': {}}
    runner = memories = None
    try:
        runner = Runner(database, SCHEMA, Documentation(HERE.parent.parent / 'docs/reference'), bool(environment))
        functions = calls.Functions(found)
        outcome['scenes'] = play_scenes(runner, functions)
        measured = where == 'unsealed' and database != 'fuzz_partitioned'
        for batch in range(10**6):
            called = sum(runner.calls.values())
            if called >= count and (memories or not measured) or len(outcome['failures']) >= MOST_FAILURES:
                break
            if memories is None and called >= count / 4:
                memories = Memories(runner)
            try:
                # PostgreSQL remembers in a session which columns of dropped tables had no statistics
                fuzz_programs(runner, functions, seed + batch, with_kinds=memories is None)
            except Exception as error:  # a Violation, a Crash, or a mistake of the fuzzer
                outcome['failures'].setdefault(re.sub(r'\d+', 'N', str(error))[:70], explain(error))
        outcome['growth'] = memories.growth() if memories and measured else None
    except Exception as error:
        outcome['failures'][str(error)] = explain(error)
    if runner is not None:
        outcome.update(counts=runner.counts, calls=runner.calls)
    return outcome


def play_model(task, phases=(Phase.generate, Phase.shrink)):
    """The model against one database; in a process of its own."""
    database, examples, seed = task
    counts = model.make(database, SCHEMA)
    machine = type('Protocol', (model.Model,), {})
    machine._hypothesis_internal_use_seed = seed  # what @seed sets
    directed = Counter()
    try:
        directed = model.play_directed()
        run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None,
            database=None, print_blob=False, phases=phases, suppress_health_check=list(HealthCheck)))
        failure = None
    except Exception as error:
        failure = explain(error)
    return {'where': database, 'failure': failure, 'counts': counts, 'directed': directed}


def play_models(total, seed):
    with multiprocessing.get_context('spawn').Pool(2) as pool:
        return pool.map(play_model, [(database, max(total // 600, 50), seed + i)
            for i, (database, _, kind) in enumerate(DATABASES) if kind != 'partitioned'], chunksize=1)


def judge_models(verdict, played):
    counts = sum((Counter(play['counts']) for play in played), Counter())
    for play in played:
        verdict.check(play['failure'] is None, f'the model and {play["where"]} agree', play['failure'])
    missing = [what for what in model.MUST_SEE if not all(play['directed'][what] for play in played)]
    verdict.check(not missing, f'the model has seen everything in its directed steps; {sum(counts.values())} answers in all',
        ', '.join(missing))


class Standby:
    """A hot standby of the server, for as long as the block runs."""

    def __init__(self):
        self.data = os.environ['IDEM_WORK'] + '/standby'
        self.environment = {'PGPORT': '5433'}

    def __enter__(self):
        binaries = os.environ['PG_BINDIR']
        subprocess.run([f'{binaries}/pg_basebackup', '-D', self.data, '-R', '-c', 'fast', '-X', 'stream'], check=True)
        self.pg_ctl('start', '-o', '-p 5433', '-l', self.data + '/log')
        return self

    def __exit__(self, *_):
        self.pg_ctl('stop', '-m', 'fast')

    def pg_ctl(self, *arguments):
        subprocess.run([os.environ['PG_BINDIR'] + '/pg_ctl', '-s', '-w', '-D', self.data, *arguments], check=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def in_databases(where, total, seed, found):
    """Two workers share the databases."""
    with multiprocessing.get_context('spawn').Pool(2) as pool:
        return pool.map(work, [(where, database, int(total * share), seed, found, {})
            for database, share, _ in DATABASES], chunksize=1)


def seal():
    """From now on responses are sealed."""
    path = os.environ['IDEM_WORK'] + '/keys'
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'w') as file:
        file.write('fuzz ' + 'f' * 64 + '\n')
    session = Session('postgres')
    # rows are changed by hand
    session.script('ALTER SYSTEM SET idempotency.accept_clear_responses = on')
    session.script(f"ALTER SYSTEM SET idempotency.seal_key_file = '{path}'")
    session.script('SELECT pg_reload_conf()')
    while session.value('SHOW idempotency.seal_key_file') != path:
        session.script('SELECT pg_sleep(0.1)')
    session.close()


def on_standby(total, seed, found):
    with Standby() as standby, multiprocessing.get_context('spawn').Pool(1) as pool:
        return pool.map(work, [('standby', 'fuzz_plain', int(total * STANDBY), seed, found, standby.environment)])


def amcheck(database):
    """What amcheck complains of in the tables of the extension."""
    session = Session(database)
    complaints = []
    for relation, in session.script(f"SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = '{SCHEMA}'::regnamespace"
            " AND relkind = 'r'"):
        complaints += [row[0].decode() for row in session.script(f"SELECT msg FROM verify_heapam('{relation.decode()}')")]
    result = session.run('SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid'
        f" WHERE c.relnamespace = '{SCHEMA}'::regnamespace AND c.relkind = 'i'")
    if result.sqlstate:
        complaints += result.texts
    session.close()
    return complaints


TROUBLE = re.compile(r'PANIC|TRAP:|terminated by signal|server process|WARNING:|could not fork|invalid memory')
# PostgreSQL's own, about what the programs around the calls do; and idem_partition_store's
EXPECTED = re.compile(r'WARNING:  25P01|WARNING:  25001|WARNING:  01000: +a period of')


class Log:
    """The server's log from here on."""

    def __init__(self):
        self.path = os.environ['IDEM_LOG']
        self.start = os.path.getsize(self.path)

    def lines(self, pattern):
        with open(self.path, encoding='utf-8', errors='replace') as log:
            log.seek(self.start)
            return [line.rstrip()[:300] for line in log if pattern.search(line)]

    def trouble(self):
        return [line for line in self.lines(TROUBLE) if not EXPECTED.search(line)]

    def leaks(self):
        return self.lines(re.compile(MARKER, re.I))


def log_shows_what_is_there(log):
    """The search for the marker works: a literal in a statement that fails is logged."""
    session = Session('fuzz_plain')
    session.run(f"SELECT '{MARKER}'::int")
    session.close()
    found = bool(log.leaks())
    log.start = os.path.getsize(log.path)
    return found


def never_seen(totals, documentation):
    """Documented outcomes and results that no scene had: what drawn programs see differs from run to run."""
    missing = []
    for name, function in FUNCTIONS.items():
        wanted = documentation.specific(name) | set(function.results)
        missing += [f'{name}: {what}' for what in sorted(wanted)
            if totals['scenes'][name, what] == 0 and (name, what) not in OUT_OF_REACH]
        if totals['calls'][name] == 0:
            missing.append(f'{name} was never called')
    missing += [f'{name}: {what} is said to be out of reach, but was seen' for name, what in OUT_OF_REACH
        if totals['counts'][name, what]]
    return missing


def add_up(outcomes):
    return {key: sum((Counter(outcome.get(key) or {}) for outcome in outcomes), Counter()) for key in ('counts', 'scenes', 'calls')}


def fuzz(verdict):
    total = int(os.environ.get('FUZZ_CALLS') or 100000)
    seed = int(os.environ.get('FUZZ_SEED') or random.SystemRandom().randrange(2**31))
    print(f'FUZZ_SEED={seed} FUZZ_CALLS={total}', flush=True)
    found = prepare()
    documentation = Documentation(HERE.parent.parent / 'docs/reference')
    complaints = [f'{name} has no page in docs/reference' for name in sorted({f.name for f in found if not f.internal})
        if documentation.page_of(name) is None]
    verdict.check(not complaints, 'every function has a page', '\n'.join(complaints))
    complaints = calls.without_generator(found)
    verdict.check(not complaints, 'every function of the extension has a generator', '\n'.join(complaints))
    if complaints:
        return
    log = Log()
    verdict.check(log_shows_what_is_there(log), 'the search of the log finds what is there')
    postmaster = Session('postgres').value('SELECT pg_postmaster_start_time()')

    outcomes = in_databases('unsealed', total * (1 - SEALED), seed, found)
    seal()
    outcomes += in_databases('sealed', total * SEALED, seed + 10**9, found)
    outcomes += on_standby(total, seed, found)
    played = play_models(total, seed)
    totals = add_up(outcomes)
    for outcome in outcomes:
        verdict.check(not outcome['failures'], f'{outcome["where"]}: documented answers, no crash, no warning,'
            ' no leak, no lock left', '\n'.join(outcome['failures'].values()))
    called = sum(totals['calls'].values())
    verdict.check(called >= total * 0.99, f'{called} calls were made')
    missing = never_seen(totals, documentation)
    verdict.check(not missing, 'every function was called and every documented outcome was seen', '\n'.join(missing))
    for outcome in outcomes[:3]:
        growth = outcome.get('growth')
        verdict.check(growth and growth[0] < MAX_GROWTH and growth[1] < MAX_GROWTH_KB,
            f'{outcome["where"]}: since a quarter of the run a session has grown by {growth} (bytes of contexts, kB of memory)')
    judge_models(verdict, played)
    for database, _, _ in DATABASES:
        complaints = amcheck(database)
        verdict.check(not complaints, f'amcheck of {database}', '\n'.join(complaints))
    verdict.check(Session('postgres').value('SELECT pg_postmaster_start_time()') == postmaster, 'the server was never restarted')
    verdict.check(not log.trouble(), 'no crash and no warning in the log', '\n'.join(log.trouble()[:20]))
    verdict.check(not log.leaks(), 'no payload in the log', '\n'.join(log.leaks()[:20]))


def fuzz_model(verdict, guard):
    """Does the model agree with the server, and only with all guards in place?"""
    prepare()
    play = play_model((DATABASES[0][0], MODEL_EXAMPLES, int(os.environ.get('FUZZ_SEED') or 1)),
        (Phase.generate,) if guard else (Phase.generate, Phase.shrink))
    agrees = play['failure'] is None
    verdict.check(agrees == (guard is None), f'the model and the server {"dis" if guard else ""}agree', play['failure'])


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', action='store_true')
    parser.add_argument('--without-guard', metavar='GUARD')
    options = parser.parse_args()
    with Verdict() as whole:
        fuzz_model(whole, options.without_guard) if options.model else fuzz(whole)
