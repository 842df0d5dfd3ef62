"""The services of the peers besides PostgreSQL: a Redis server, and the driver in Node."""

import atexit
import contextlib
import json
import os
import subprocess
import tempfile
import time

import server

FOLDER = os.path.dirname(os.path.abspath(__file__))
MODULES = os.path.join(FOLDER, '../../clients/node/node_modules')
REDIS = '/usr/bin/redis-check-rdb'      # the server's own program, without its service
PATIENCE = 900      # seconds, for a script of the driver


def link_modules():
    """pg and redis are those of the package for Node, which bench/run installs."""
    link = os.path.join(FOLDER, 'node_modules')
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(MODULES, link)
    atexit.register(os.unlink, link)    # with --postgresql this is no copy of the tree


@contextlib.contextmanager
def redis():
    """A private server that appends every write to its log, on a socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'socket')
        process = subprocess.Popen(
            ['redis-server', '--port', '0', '--unixsocket', path, '--dir', folder, '--save', '',
             '--appendonly', 'yes', '--appendfsync', 'everysec'], executable=REDIS, stdout=subprocess.DEVNULL)
        try:
            wait_for(path, process)
            os.environ.update(BENCH_REDIS=path, BENCH_REDIS_PID=str(process.pid))
            yield
        finally:
            process.terminate()
            process.wait()


def wait_for(path, process):
    until = time.monotonic() + 10
    while not os.path.exists(path):
        if process.poll() is not None or time.monotonic() > until:
            raise server.BenchError('the Redis server did not start')
        time.sleep(0.05)


def redis_command(*words):
    return server.run(['redis-cli', '-s', os.environ['BENCH_REDIS'], *words]).strip()


def driver(script, **order):
    """The output of a script of driver/ for an order."""
    try:
        output = server.run(['node', os.path.join(FOLDER, 'driver', f'{script}.mjs'), json.dumps(order)], timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise server.BenchError(f'{order["peer"]} hangs: {script} {order}') from None
    return json.loads(output.splitlines()[-1])


def environment():
    """Versions and settings of all peers."""
    packages = {}
    for name in ('pg', 'redis'):
        with open(os.path.join(MODULES, name, 'package.json')) as file:
            packages[name] = json.load(file)['version']
    version = dict(line.split(':', 1) for line in redis_command('info', 'server').splitlines() if ':' in line)
    return {'node': server.run(['node', '--version']).strip().lstrip('v'), 'redis': version['redis_version'].strip(),
            'redis_settings': {name: redis_command('config', 'get', name).splitlines()[-1]
                               for name in ('appendonly', 'appendfsync')},
            'packages': packages}
