"""What chance hardly brings: time-outs, compensations that come first, a death at one point. Programs are held,
rows are locked, and the clock of a saga is put forward, so nothing depends on how long something takes."""

import contextlib
import threading

import psycopg

from books import audit, read_gateway
from customers import Customers, Intent
from world import wait_for

PATIENCE = 120    # seconds
HASTE = 40        # the same, where something is expected to go wrong
MUG = [{"sku": "mug", "quantity": 1}]


def play_scenes(verdict, world, taps, hasty=False):
    """One after the other. ``hasty``: with the books, and until something is wrong."""
    scenes = [double_click, death_after_charge, death_of_relay, compensation_first]
    if world.mode == "orchestrated":
        scenes += [cancellation_meets_payment, time_out]
    for scene in scenes:
        scene(Scene(verdict, world, taps, scene.__name__.replace("_", " "), HASTE if hasty else PATIENCE))
        if hasty and verdict.failed:
            return
    if hasty:
        for good, what, details in audit(world):
            verdict.check(good, what, details)


class Scene:
    """A customer, and eyes on the databases. ``taps``: the wiretap of each program."""

    def __init__(self, verdict, world, taps, name, patience):
        self.verdict = verdict
        self.world = world
        self.taps = taps
        self.patience = patience
        self.name = name
        self.customers = Customers(world.address, [Intent(0, MUG, tenant="page-scene")])
        self.intent, = self.customers.intents
        self.order = None

    def place(self):
        self.customers.order(self.intent)
        self.order = self.intent.answers[0]

    def cancel(self):
        self.customers.cancel(self.intent)

    def value(self, database, statement):
        """The only value of the only row, or None."""
        rows = self.world.query(database, statement, self.order)
        return rows[0][0] if rows else None

    def change(self, database, statement, *arguments):
        self.world.query(database, statement + " RETURNING 1", *arguments)

    def expect(self, database, statement, value):
        try:
            wait_for(lambda: self.value(database, statement) == value, self.patience, "")
            self.verdict.check(True, f"{self.name}: {statement} is {value}")
        except RuntimeError:
            self.verdict.check(False, f"{self.name}: {statement} is {value}", self.value(database, statement))

    def check(self, good, what, details=""):
        self.verdict.check(good, f"{self.name}: {what}", details)

    def kill_before(self, program, beginning):
        """Kills a program at the first of its points that begins so, as soon as it comes there."""
        tap = self.taps[program]
        tap.arm(next(point for point in tap.seen if point[0] == "before" and point[1].startswith(beginning)))

    def expect_death(self, program):
        with contextlib.suppress(RuntimeError):
            wait_for(lambda: not self.taps[program].armed, self.patience, "")
        self.check(self.taps[program].disarm(), f"{program} was killed")


STATE = "SELECT state FROM orders WHERE id = %s"
RESERVATION = "SELECT state FROM reservation WHERE order_id = %s"
PAYMENT = "SELECT state FROM payment WHERE order_id = %s"
ANSWER = "SELECT response_payload->>'answer' FROM idempotency_store WHERE idempotency_key = %s"
PARCEL = "SELECT state FROM parcel WHERE order_id = %s"
# but for the clock of the service, which issues commands again
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'orders' AND wait_event_type = 'Lock' AND query !~ 'due'"


def double_click(scene):
    """Two clicks at once are one order."""
    scene.intent.clicks = 2
    scene.place()
    scene.check(len(set(scene.intent.answers)) == 1, "both clicks have the same answer", scene.intent.answers)
    scene.expect("orders", STATE, "CONFIRMED")


def death_after_charge(scene):
    """Payments dies when the gateway has charged, and before it has noted so."""
    scene.kill_before("payments", "UPDATE payment SET state")
    scene.place()
    scene.expect_death("payments")
    scene.expect("orders", STATE, "CONFIRMED")
    charges = [entry for entry in read_gateway(scene.world) if entry[1] == scene.order]
    scene.check(len(charges) == 1, "the card is charged once", charges)


def death_of_relay(scene):
    """A relay dies before it sends a message."""
    scene.kill_before("relay-inventory", "publish stock.reserved")
    scene.place()
    scene.expect_death("relay-inventory")
    scene.expect("orders", STATE, "CONFIRMED")


def cancellation_meets_payment(scene):
    """Both come while the row of the saga is locked, so both have read its state, if nothing keeps them apart."""
    payments = scene.world.programs["payments"]
    payments.hold()
    scene.place()
    scene.expect("orders", STATE, "CHARGING")
    with psycopg.connect(dbname="orders") as eyes, psycopg.connect(dbname="orders") as locker:
        eyes.autocommit = True
        locker.execute("SELECT FROM saga WHERE order_id = %s FOR UPDATE", (scene.order,))
        customer = threading.Thread(target=scene.cancel, daemon=True)
        customer.start()
        payments.let_go()
        wait_for(lambda: eyes.execute(WAITING).fetchone()[0] == 2, scene.patience, "nobody waits")
    customer.join()
    scene.expect("orders", "SELECT state IN ('CONFIRMED', 'CANCELLED') FROM orders WHERE id = %s", True)
    ends = [scene.value(*where) for where in (("orders", STATE), ("payments", PAYMENT), ("shipping", PARCEL))]
    scene.check((ends[0] == "CONFIRMED") == (ends[1] == "charged") == (ends[2] == "shipped"), "the services agree", ends)


def compensation_first(scene):
    """The first message is late: all compensations come before what they take back."""
    first = {"orchestrated": "stock.reserve", "choreographed": "order.placed"}[scene.world.mode]
    relay = scene.world.programs["relay-orders"]
    relay.hold()
    scene.place()
    scene.cancel()
    key = f"{scene.order}:{first}"
    scene.change("orders", "UPDATE outbox SET sent_at = now() WHERE key = %s", key)
    relay.let_go()
    scene.expect("orders", STATE, "CANCELLED")
    scene.expect("inventory", RESERVATION, "released")
    scene.change("orders", "UPDATE outbox SET sent_at = NULL WHERE key = %s", key)
    scene.expect("inventory", ANSWER + f" || ':{first}'", "stock.refused")
    scene.expect("inventory", RESERVATION, "released")
    scene.expect("orders", STATE, "CANCELLED")
    if scene.world.mode == "choreographed":
        scene.expect("shipping", PARCEL, "recalled")
        scene.expect("payments", PAYMENT, "withdrawn")


def time_out(scene):
    """Payments is away: the command is issued again, then given up; when payments is back, it charges and refunds."""
    payments = scene.world.programs["payments"]
    payments.hold()
    scene.place()
    scene.expect("orders", STATE, "CHARGING")
    scene.change("orders", "UPDATE saga SET again_at = now() WHERE order_id = %s", scene.order)
    scene.expect("orders", "SELECT sent > 1 FROM outbox WHERE key = %s || ':payment.charge'", True)
    scene.change("orders", "UPDATE saga SET gives_up_at = now() WHERE order_id = %s", scene.order)
    scene.expect("orders", STATE, "REFUNDING")
    payments.let_go()
    scene.expect("orders", STATE, "CANCELLED")
    # the refund may overtake the charge
    scene.expect("payments", "SELECT state IN ('refunded', 'withdrawn') FROM payment WHERE order_id = %s", True)
    scene.expect("inventory", RESERVATION, "released")
