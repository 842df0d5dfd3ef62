"""Checks the files beside this one on the private server that the environment names.

The rules are those of rules/ with short times. Every alert is silent while all is
well; then everything that they are for is done at once, and every one fires; then all
of it is put right, and every one is silent again. There is no waiting for a fixed time:
each step lasts until Prometheus says so.
"""

import json
import os
import re
import shlex
import subprocess
import time
import urllib.parse
import urllib.request

import yaml

from ports import free_ports
from verdict import Verdict

HERE = os.path.dirname(os.path.abspath(__file__))
WORK = os.path.join(os.environ['IDEM_WORK'], 'monitoring')
PATIENCE = 60       # seconds for a step; it ends as soon as it is done

# How rules are shortened, and what each of it must be found in.
SHORTER = (('[15m]', '[4s]'), ('[5m]', '[4s]'), ('for: 1m', 'for: 1s'), ('for: 5m', 'for: 1s'), ('> 600', '> 1'),
           ('> 60', '> 1'), ('> 300', '> 1'), ('> 1000000', '> 100'), ('> 900', '> 8'), ('3 *', '0 *'),
           ('mean5m > 5', 'mean5m > 0.05'))


def path(name):
    return os.path.join(HERE, name)


def text(name):
    with open(path(name), encoding='utf-8') as file:
        return file.read()


def write(name, content):
    with open(os.path.join(WORK, name), 'w', encoding='utf-8') as file:
        file.write(content)
    return os.path.join(WORK, name)


def command_of_page(program, ours):
    """As docs/guide/monitoring.md prints it, with our files in place of the page's."""
    with open(path('../docs/guide/monitoring.md'), encoding='utf-8') as page:
        line = next(line for line in page if line.startswith(f'{program} '))
    for word in shlex.split(line):
        flag, equals, value = word.rpartition('=')
        yield flag + equals + ours.get(value, value)


def wait_for(what):
    """Until that is true; false if it never is."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if what():
                return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


# ---- the server ----

def sql(statement, fails=False):
    done = subprocess.run(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1'], input=statement, capture_output=True, text=True)
    if not fails and done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


class Session:
    """A transaction that stays open until it is told to end."""

    def __init__(self, statements):
        self.process = subprocess.Popen(['psql', '-XAtq'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.say(f'BEGIN; {statements} SELECT 1;')

    def say(self, statements):
        self.process.stdin.write(statements + '\n')
        self.process.stdin.flush()

    def end(self):
        self.say('ROLLBACK;')
        self.process.communicate()


# ---- the exporter and Prometheus ----

class Programs:
    def __init__(self):
        self.running = {}
        self.ports = dict(zip(('sql_exporter', 'prometheus'), free_ports(2)))

    def start(self, name, command):
        log = open(os.path.join(WORK, f'{name}.log'), 'a', encoding='utf-8')
        self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self, name):
        program = self.running.pop(name)
        program.terminate()
        program.wait()

    def stop_all(self):
        for name in list(self.running):
            self.stop(name)

    def start_exporter(self):
        source = f'postgres://metrics@:5432/postgres?host={os.environ["PGHOST"]}&sslmode=disable'
        config = yaml.safe_load(text('sql_exporter.yml'))
        config['jobs'][0].update(interval='500ms', connections=[source])
        command = command_of_page('prometheus-sql-exporter', {
            'monitoring/sql_exporter.yml': write('sql_exporter.yml', yaml.safe_dump(config))})
        self.start('sql_exporter', [*command, f'-web.listen-address=127.0.0.1:{self.ports["sql_exporter"]}'])

    def start_prometheus(self):
        config = yaml.safe_load(text('prometheus.yml'))
        config['global'] = {'scrape_interval': '500ms', 'scrape_timeout': '500ms', 'evaluation_interval': '500ms'}
        config['rule_files'] = [write(f'{name}.yml', shortened(text(f'rules/{name}.yml')))
                                for name in ('recording', 'alerts')]
        for job in config['scrape_configs']:
            job['static_configs'] = [{'targets': [f'127.0.0.1:{self.ports[job["job_name"]]}']}]
        command = command_of_page('prometheus', {
            'monitoring/prometheus.yml': write('prometheus.yml', yaml.safe_dump(config)),
            '/tmp/prometheus': f'{WORK}/data'})
        self.start('prometheus', [*command, f'--web.listen-address=127.0.0.1:{self.ports["prometheus"]}'])

    def get(self, where):
        with urllib.request.urlopen(f'http://127.0.0.1:{self.ports["prometheus"]}{where}', timeout=10) as answer:
            return answer.read().decode()

    def query(self, expression):
        asked = urllib.parse.urlencode({'query': expression})
        return json.loads(self.get(f'/api/v1/query?{asked}'))['data']['result']

    def firing(self):
        return {alert['metric']['alertname'] for alert in self.query('ALERTS{alertstate="firing"}')}


def shortened(rules):
    for long, short in SHORTER:
        rules = rules.replace(long, short)
    return rules


# ---- what the alerts are for ----

def all_troubles():
    """Does everything that they are for. Returns what puts it right."""
    sql("SELECT idem_begin('unfinished')", fails=True)
    sql("BEGIN; SELECT idem_begin('two', '1'); SELECT idem_complete('two'); COMMIT")
    sql("SELECT idem_begin('two', '2')", fails=True)
    sql("SELECT idem_begin('lost', lease => '1 hour')")
    sql("SELECT idem_extend('lost', '1 hour', fence => 1000000)", fails=True)
    sql("SELECT idem_begin('over', lease => '1 us'); SELECT idem_begin('over', lease => '1 hour')")
    sql("SELECT idem_begin('waited', lease => '1 hour'); SELECT idem_begin('waited', wait => '200 ms')")
    sql("""SELECT idem_begin('stuck', lease => '1 us');
        INSERT INTO idempotency_store (idempotency_key, expires_at, status, response_body)
        SELECT 'old' || n, now() - interval '1 day', 'COMPLETED', decode(repeat('00', 1000), 'hex')
            FROM generate_series(1, 2000) n;
        SELECT idem_gc(200)""")
    sql("BEGIN; SELECT idem_begin('prepared'); SELECT idem_complete('prepared'); PREPARE TRANSACTION 'orphan'")
    sql("SET idempotency.max_lost_attempts = 2; BEGIN; SELECT idem_begin('poison'); ROLLBACK")
    owner = Session("SELECT idem_begin('open');")

    def put_right():
        owner.end()
        sql("ROLLBACK PREPARED 'orphan'; SELECT idem_forget('poison');"
            " SELECT idem_release('stuck', fence => fence) FROM idempotency_store WHERE idempotency_key = 'stuck'")
    return put_right


def alert_names():
    return set(re.findall(r'- alert: (\w+)', text('rules/alerts.yml')))


def all_is_well(programs):
    """No alert fires while somebody collects."""
    sql('SELECT idem_gc(100000)')
    return programs.query('up') and not programs.firing()


def check_alerts(verdict, programs):
    expected = alert_names() - {'IdempotencyNotCounted'}
    verdict.check(wait_for(lambda: programs.query('idempotency_begins_total{outcome="acquired"}')),
                  'Prometheus has figures of the exporter')
    verdict.check(wait_for(lambda: all_is_well(programs)), 'all is well: no alert fires')
    put_right = all_troubles()
    seen = set()

    def all_seen():
        seen.update(programs.firing())
        return expected <= seen
    wait_for(all_seen)
    for name in sorted(expected):
        verdict.check(name in seen, f'{name} fires')
    put_right()
    verdict.check(wait_for(lambda: all_is_well(programs)), 'all is put right: each alert is cleared',
                  str(programs.firing()))


def check_absence(verdict, programs):
    programs.stop('sql_exporter')
    verdict.check(wait_for(lambda: 'IdempotencyNotCounted' in programs.firing()),
                  'IdempotencyNotCounted fires without the exporter')
    programs.start_exporter()
    verdict.check(wait_for(lambda: all_is_well(programs)), 'and is cleared when it is back')


# ---- names, charts ----

def check_names(verdict, programs):
    """The guide has the metrics of the exporter, and no other ones."""
    names = {one['metric']['__name__'] for one in programs.query('{__name__=~"idempotency_.*", job="sql_exporter"}')}
    named = set(re.findall(r'^\| `(idempotency_\w+)` \|', text('../docs/guide/monitoring.md'), re.MULTILINE))
    verdict.check(names == named, 'the guide has the metrics that there are', str(names ^ named))


def check_charts(verdict, programs):
    panels = json.loads(text('grafana.json'))['panels']
    drawn = {panel['title']: panel['targets'][0]['expr'].replace('$datname', '.*') for panel in panels}

    def with_figures():
        sql("SELECT idem_begin('two', '1'); SELECT idem_begin('waited', wait => '10 ms')")
        return {title for title, expr in drawn.items() if programs.query(expr)}
    verdict.check(wait_for(lambda: all_is_well(programs) and with_figures() == set(drawn)),
                  f'each of {len(drawn)} panels has figures', str(set(drawn) - with_figures()))
    nameless = {panel['title'] for panel in panels for one in programs.query(drawn[panel['title']])
                if not set(re.findall(r'{{(\w+)}}', panel['targets'][0]['legendFormat'])) <= set(one['metric'])}
    verdict.check(not nameless, 'each line of the dashboard has the labels that its name is of', str(nameless))


def check_rules(verdict):
    for command in (['check', 'rules', path('rules/recording.yml'), path('rules/alerts.yml')],
                    ['check', 'config', path('prometheus.yml')], ['test', 'rules', path('rules/tests.yml')]):
        done = subprocess.run(['promtool', *command], capture_output=True, text=True)
        verdict.check(done.returncode == 0, f'promtool {" ".join(command[:2])}', done.stdout + done.stderr)
    rules = text('rules/alerts.yml') + text('rules/recording.yml')
    for long, short in SHORTER:
        verdict.check(long in rules, f'the rules have {long}, of which this test makes {short}')


def main():
    os.makedirs(WORK)
    programs = Programs()
    with Verdict() as verdict:
        check_rules(verdict)
        sql('CREATE EXTENSION idempotency; CREATE ROLE metrics LOGIN IN ROLE pg_monitor')
        try:
            programs.start_exporter()
            programs.start_prometheus()
            verdict.check(wait_for(lambda: programs.query('up')), 'Prometheus runs')
            check_alerts(verdict, programs)
            check_names(verdict, programs)
            check_charts(verdict, programs)
            check_absence(verdict, programs)
        finally:
            programs.stop_all()


main()
