"""An at-least-once queue and the consumer processes that it feeds.

The broker keeps the promise of real brokers: it delivers again what no consumer
has acknowledged. It also makes the plan's faults happen, and kills consumers at
the plan's moments: only consumers that it started itself, and never one that
works towards a planned fault.
"""

import heapq
import itertools
import multiprocessing
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from consumer import WAKE_UP, run_consumer
from plan import SEED

processes = multiprocessing.get_context("fork")


class RunFailed(Exception):
    """The run ended early; the text says why."""


@dataclass
class Worker:
    """A consumer process as the broker sees it."""

    process: processes.Process
    pipe: Connection
    delivery: object = None
    asleep: bool = False


@dataclass
class Tally:
    """Counts of a run: answers, faults and kills by name; and for each message
    the payments in the answers to its deliveries."""

    acknowledged: int = 0
    deliveries: int = 0
    redelivered: int = 0
    answers: Counter = field(default_factory=Counter)
    faults: Counter = field(default_factory=Counter)
    kills: int = 0
    takeovers: int = 0
    receipts: dict = field(default_factory=dict)


class Broker:
    """Runs one plan against one kind of consumer."""

    def __init__(self, plan, kind, databases, consumers, watch):
        self.plan = plan
        self.kind = kind
        self.databases = databases
        self.consumers = consumers
        self.watch = watch
        self.rng = random.Random(SEED)
        self.ready = deque(plan.deliveries)
        self.later = []
        self.order = itertools.count()
        self.held = {}
        self.to_strike = set(plan.faults)
        self.settled = set()
        self.kills = deque(plan.kills)
        self.workers = []
        self.tally = Tally()

    def run(self):
        """The Tally, once every delivery is acknowledged. No consumer is left
        behind, and it ends in bounded time, whatever happens."""
        total = len(self.plan.deliveries)
        give_up = time.monotonic() + 30 + 0.05 * total
        try:
            for _ in range(self.consumers):
                self.start_worker()
            while self.tally.acknowledged < total:
                self.hand_out()
                self.kill_if_due()
                self.listen()
                self.watch(self.tally)
                if time.monotonic() > give_up:
                    raise RunFailed(f"gave up: {total - self.tally.acknowledged} of {total}"
                                    " deliveries are still not acknowledged")
            return self.tally
        finally:
            self.stop_workers()

    # Consumers

    def start_worker(self):
        ours, theirs = processes.Pipe()
        close_first = [worker.pipe for worker in self.workers] + [ours]
        process = processes.Process(target=run_consumer, daemon=True,
                                    args=(self.kind, self.databases, theirs, close_first))
        process.start()
        theirs.close()
        self.workers.append(Worker(process, ours))

    def stop_workers(self):
        for worker in self.workers:
            worker.pipe.close()
        patience = time.monotonic() + 2
        for worker in self.workers:
            worker.process.join(max(0, patience - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def kill_if_due(self):
        """SIGKILL for a working consumer, at the planned moments."""
        if not self.kills or self.tally.acknowledged < self.kills[0]:
            return
        victims = [w for w in self.workers if w.delivery and not w.delivery.fault]
        if victims:
            self.rng.choice(victims).process.kill()
            self.kills.popleft()
            self.tally.kills += 1

    # Handing out

    def hand_out(self):
        """Gives every free consumer the next delivery that need not wait."""
        self.take_back_in()
        for worker in self.workers:
            if worker.delivery is None:
                delivery = self.next_delivery()
                if delivery is None:
                    return
                self.give(worker, delivery)

    def take_back_in(self):
        """Deliveries whose pause is over are ready again."""
        now = time.monotonic()
        while self.later and self.later[0][0] <= now:
            self.ready.append(heapq.heappop(self.later)[2])

    def give(self, worker, delivery):
        worker.delivery = delivery
        self.tally.deliveries += 1
        try:
            worker.pipe.send(delivery)
        except OSError:
            pass  # it is dead; listen() will see the end of its pipe

    def next_delivery(self):
        """The next delivery; deliveries that have to wait are put aside."""
        while self.ready:
            delivery = self.ready.popleft()
            if self.must_wait(delivery):
                self.held.setdefault(delivery.message.id, []).append(delivery)
            elif self.too_many_sleepers(delivery):
                self.put_back(delivery, 0.05)
            else:
                return delivery
        return None

    def must_wait(self, delivery):
        """A message with a planned fault goes to no second consumer before the
        fault has happened. A tampered one goes out after the original has ended."""
        if delivery.tampered:
            return delivery.message.id not in self.settled
        return delivery.message.id in self.to_strike and not delivery.fault

    def too_many_sleepers(self, delivery):
        """Some consumers must stay awake to wake the sleepers."""
        if not is_sleep(delivery):
            return False
        sleepers = sum(1 for w in self.workers if w.delivery and is_sleep(w.delivery))
        return sleepers >= max(1, self.consumers // 3)

    def put_back(self, delivery, seconds):
        heapq.heappush(self.later, (time.monotonic() + seconds, next(self.order), delivery))

    def release(self, message_id):
        """Makes the deliveries of this message ready that were put aside."""
        self.ready.extendleft(self.held.pop(message_id, []))

    # Listening

    def listen(self):
        """Handles reports of consumers, as long as nothing else is due."""
        timeout = 0.2
        if self.later:
            timeout = min(timeout, max(0, self.later[0][0] - time.monotonic()))
        by_pipe = {worker.pipe: worker for worker in self.workers}
        for pipe in wait(list(by_pipe), timeout):
            worker = by_pipe[pipe]
            try:
                kind, content = pipe.recv()
            except (EOFError, OSError):
                self.bury(worker)
            else:
                self.heard(worker, kind, content)

    def heard(self, worker, kind, content):
        if kind == "answer":
            self.answered(worker, content)
        elif kind == "fault":
            self.struck(worker)
        elif kind == "takeover":
            self.tally.takeovers += 1
            self.wake(worker.delivery.message.id)
        else:
            raise RunFailed(f"a consumer failed: {content}")

    def bury(self, worker):
        """A killed consumer: its delivery goes out again, and another consumer
        takes its place. One that ended in any other way stops the run."""
        worker.process.join(5)
        if worker.process.exitcode != -9:
            raise RunFailed(f"a consumer ended by itself (exit code {worker.process.exitcode})")
        self.workers.remove(worker)
        worker.pipe.close()
        if worker.delivery:
            self.tally.redelivered += 1
            self.ready.appendleft(worker.delivery)
        self.start_worker()

    def struck(self, worker):
        """A planned fault has happened: it happens once, and now other consumers
        may get the message."""
        delivery = worker.delivery
        self.tally.faults[delivery.fault] += 1
        self.to_strike.discard(delivery.message.id)
        if is_sleep(delivery):
            worker.asleep = True
        else:
            delivery.fault = None
        self.release(delivery.message.id)

    def answered(self, worker, answer):
        delivery, worker.delivery, worker.asleep = worker.delivery, None, False
        message_id = delivery.message.id
        self.tally.answers[answer.what] += 1
        if message_id not in self.to_strike:
            delivery.fault = None
        if answer.again is not None:
            self.put_back(delivery, answer.again)
            return
        self.tally.acknowledged += 1
        if answer.payment is not None:
            self.tally.receipts.setdefault(message_id, set()).add(answer.payment)
        if not delivery.tampered:
            self.to_strike.discard(message_id)
            self.settled.add(message_id)
            self.release(message_id)
            self.wake(message_id)

    def wake(self, message_id):
        """Another consumer has handled the message: a consumer that sleeps goes on."""
        for worker in self.workers:
            if worker.asleep and worker.delivery.message.id == message_id:
                worker.asleep = False
                worker.pipe.send(WAKE_UP)


def is_sleep(delivery):
    return (delivery.fault or "").startswith("sleep")
