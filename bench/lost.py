"""What begin and complete pay for the count of lost attempts.

The server restarts before each run. The runs alternate between nothing that is lost,
a table of lost attempts that is full, and idempotency.lost_attempts_tracked = 0, where
nobody counts. The processor time of the server's sessions is compared, too: other
work on the machine changes it less than it changes the throughput.
"""

import os
import subprocess
import time

import collection
import report
import server

NAME = 'lost'
KINDS = ('counts', 'full', 'none')
DATABASE = 'bench_lost'

AT_LEAST = 0.95             # throughput over that of a server that does not count: within noise
CPU_AT_MOST = 1.05          # processor time of a transaction, over the same


def measure(options, tell):
    """The entries of the table, and every raw figure."""
    rounds, seconds = (options.rounds or (3 if options.quick else 7)), (options.seconds or (1 if options.quick else 5))
    runs = []
    try:
        with collection.database(DATABASE):
            for number in range(rounds):
                tell(f'{NAME}: round {number + 1} of {rounds}')
                for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                    runs.append({'workload': NAME, 'round': number, 'kind': kind, **one_run(kind, seconds)})
    finally:
        restart(None)
        collection.configure(**dict.fromkeys(collection.SETTINGS))
    return [
        report.row('begin, complete where lost attempts are counted / where nobody counts',
                   ratios(runs, 'counts', 'tps'), AT_LEAST),
        report.row('… while the table of lost attempts is full', ratios(runs, 'full', 'tps'), None),
        report.row('processor time: lost attempts are counted / nobody counts',
                   ratios(runs, 'counts', 'cpu'), CPU_AT_MOST, at_most=True),
        report.row('… while the table of lost attempts is full', ratios(runs, 'full', 'cpu'), None)], runs


def ratios(runs, kind, measure):
    """By round, over the run where nobody counts."""
    figures = {(run['round'], run['kind']): run[measure] for run in runs}
    return [value / figures[number, 'none'] for (number, of), value in figures.items() if of == kind]


def one_run(kind, seconds):
    restart(0 if kind == 'none' else None)
    server.sql('TRUNCATE idempotency_store; CHECKPOINT', DATABASE)
    if kind == 'full':
        lose_attempts()
    before = collection.state(DATABASE)
    warm_up = collection.load(DATABASE, collection.CLIENTS, 1)
    spent = seconds_of_sessions()
    result = collection.load(DATABASE, collection.CLIENTS, seconds)
    spent = seconds_of_sessions() - spent
    collection.check(DATABASE, before, warm_up['transactions'] + result['transactions'])
    return {**result, 'cpu': spent / result['transactions']}


def seconds_of_sessions():
    """Processor time of the sessions that have ended: the postmaster has waited for them."""
    while server.sql("SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgbench'"):
        time.sleep(0.1)
    with open(os.path.join(os.environ['PGDATA'], 'postmaster.pid')) as file:
        pid = file.readline().strip()
    with open(f'/proc/{pid}/stat') as file:
        user, system = file.read().rsplit(') ', 1)[1].split()[13:15]
    return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def restart(tracked):
    """None: the default."""
    collection.configure(tracked=tracked)
    server.run([os.path.join(os.environ['PG_BINDIR'], 'pg_ctl'), 'restart', '-s', '-w', '-m', 'fast',
                '-D', os.environ['PGDATA'], '-l', os.environ['IDEM_LOG']], stdin=subprocess.DEVNULL)


def lose_attempts():
    """An attempt each of as many operations as the server remembers, and half as many more."""
    server.sql("""
        DO $$ BEGIN
            FOR i IN 1 .. current_setting('idempotency.lost_attempts_tracked')::int * 3 / 2 LOOP
                PERFORM idem_begin('lost ' || i);
                ROLLBACK;
            END LOOP;
        END $$""", DATABASE)
