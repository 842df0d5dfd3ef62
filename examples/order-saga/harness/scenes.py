"""What chance hardly brings: time-outs, and compensations that come first. Programs are held, and the
clock of a saga is put forward, so nothing depends on how long something takes."""

import json

from customers import Customers, Intent
from world import wait_for

PATIENCE = 120    # seconds
MUG = [{"sku": "mug", "quantity": 1}]


def play_scenes(verdict, world):
    """One after the other."""
    scenes = [compensation_first]
    if world.mode == "orchestrated":
        scenes.append(time_out)
    for scene in scenes:
        scene(Scene(verdict, world, scene.__name__.replace("_", " ")))


class Scene:
    """A customer, and eyes on the databases."""

    def __init__(self, verdict, world, name):
        self.verdict = verdict
        self.world = world
        self.name = name
        self.customers = Customers(world.address, [Intent(0, MUG, tenant="page-scene")])
        self.intent, = self.customers.intents
        self.order = None

    def place(self):
        """Clicks once; gives the order's id."""
        self.customers.click(self.intent, json.dumps({"items": MUG, "card": "tok_good", "city": "Lisbon"}).encode(), 0)
        self.order = self.intent.answers[0]

    def cancel(self):
        """The customer thinks better of it."""
        self.customers.cancel(self.intent)

    def value(self, database, statement):
        """The only value of the only row, or None."""
        rows = self.world.query(database, statement, self.order)
        return rows[0][0] if rows else None

    def change(self, database, statement, *arguments):
        """Of a row."""
        self.world.query(database, statement + " RETURNING 1", *arguments)

    def expect(self, database, statement, value):
        """Comes in time."""
        try:
            wait_for(lambda: self.value(database, statement) == value, PATIENCE, "")
            self.verdict.check(True, f"{self.name}: {statement} is {value}")
        except RuntimeError:
            self.verdict.check(False, f"{self.name}: {statement} is {value}", self.value(database, statement))


STATE = "SELECT state FROM orders WHERE id = %s"
RESERVATION = "SELECT state FROM reservation WHERE order_id = %s"
PAYMENT = "SELECT state FROM payment WHERE order_id = %s"
ANSWER = "SELECT response_payload->>'answer' FROM idempotency_store WHERE idempotency_key = %s"
PARCEL = "SELECT state FROM parcel WHERE order_id = %s"


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
