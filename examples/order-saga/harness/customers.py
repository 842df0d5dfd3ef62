"""The customers: what each of them orders, and how they treat the Pay button, all drawn from one seed."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import List, Optional

from pg_idempotency.caller import Caller, DictStore, GaveUp, fetch_by_urllib
from pg_idempotency.retry import Retry

GOODS = ("kettle", "mug", "beans", "scale", "filter")
SCARCE = "grinder"
RETRY = Retry(attempts=100, base=0.2, cap=1.0)
AT_ONCE = 12


@dataclass
class Intent:
    """One order that somebody wants, once. ``cancels_after``: seconds, or None."""

    number: int
    items: List[dict]
    card: str = "tok_good"
    city: str = "Lisbon"
    clicks: int = 1
    hangs_up: bool = False
    cancels_after: Optional[float] = None
    tenant: str = "tenant-1"
    answers: List[str] = field(default_factory=list)


def draw_all(seed, orders):
    chance = random.Random(seed)
    return [draw(number, chance) for number in range(orders)]


def draw(number, chance):
    goods = chance.sample(GOODS, chance.randint(1, 3))
    if chance.random() < 0.08:
        goods.append(SCARCE)
    return Intent(
        number=number,
        items=[{"sku": sku, "quantity": chance.randint(1, 3)} for sku in goods],
        card="tok_declined" if chance.random() < 0.12 else "tok_good",
        city="Atlantis" if chance.random() < 0.06 else "Lisbon",
        clicks=2 if chance.random() < 0.15 else 1,
        hangs_up=chance.random() < 0.08,
        cancels_after=chance.choice((0, 0.01, 0.03, 0.1, 0.5)) if chance.random() < 0.15 else None,
        tenant=f"tenant-{chance.randint(1, 5)}")


class Customers:
    """``address``: where the shop is."""

    def __init__(self, address, intents):
        self.address = address
        self.intents = intents
        self.store = DictStore()
        self.pool = ThreadPoolExecutor(AT_ONCE)
        self.pending = []
        self.asked = 0
        self.counting = threading.Lock()

    def play(self, seconds):
        """All orders, spread over that time."""
        began = time.monotonic()
        for place, intent in enumerate(self.intents):
            time.sleep(max(0.0, began + seconds * place / len(self.intents) - time.monotonic()))
            self.pending.append(self.pool.submit(self.order, intent))

    def wait(self):
        """Until each has an answer. Raises what went wrong."""
        for each in self.pending:
            each.result()
        self.pool.shutdown()

    def order(self, intent):
        """Clicks, and perhaps thinks better of it."""
        body = json.dumps({"items": intent.items, "card": intent.card, "city": intent.city}).encode()
        clicks = [threading.Thread(target=self.click, args=(intent, body, click)) for click in range(intent.clicks)]
        for each in clicks:
            each.start()
        for each in clicks:
            each.join()
        if intent.cancels_after is not None and intent.answers:
            time.sleep(intent.cancels_after)
            self.cancel(intent)

    def click(self, intent, body, click):
        """One click, with all the tries that it takes."""
        fetch = self.hanging_up() if intent.hangs_up and click == 0 else fetch_by_urllib
        answer = self.send(intent, f"order {intent.number}", "/orders", body, fetch)
        intent.answers.append(json.loads(answer.body)["id"])

    def cancel(self, intent):
        """The order, if that comes in time."""
        self.send(intent, f"cancel {intent.number}", f"/orders/{intent.answers[0]}/cancel", b"{}", fetch_by_urllib)

    def send(self, intent, name, path, body, fetch):
        """Until there is a 2xx: a customer who gets a 500 tries again, too."""
        headers = {"Content-Type": "application/json", "X-Tenant": intent.tenant}
        while True:
            try:
                caller = Caller(self.store, self.counted(fetch), retry=RETRY)
                answer = caller.call(name, "POST", self.address + path, body, headers)
                if answer.status < 300:
                    return answer
                if answer.status < 500:
                    raise RuntimeError(f"{name}: {answer.status} {answer.body}")
            except GaveUp:
                pass
            time.sleep(0.5)

    def counted(self, fetch):
        def count(*arguments):
            with self.counting:
                self.asked += 1
            return fetch(*arguments)
        return count

    def hanging_up(self):
        """The first request is sent, and its answer never read."""
        first = threading.Event()

        def fetch(method, url, headers, body):
            if first.is_set():
                return fetch_by_urllib(method, url, headers, body)
            first.set()
            return fetch_by_urllib(method, url, headers, body, timeout=0.003)
        return fetch
