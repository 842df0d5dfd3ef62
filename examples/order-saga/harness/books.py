"""The books at the end: what the gateway, the shelves, the parcels, and the orders say must fit together."""

import os
import sqlite3
import time
from collections import Counter

import pika

from world import SERVICES


def audit(world, intents=None):
    """A list of (right, what, details). ``intents``: the customers' side, if there is one."""
    orders = {str(id): (state, amount) for id, state, amount in world.query("orders", "SELECT id, state, amount FROM orders")}
    states = {name: {str(id): state for id, state in world.query(name, f"SELECT order_id, state FROM {table}")}
              for name, table in (("payments", "payment"), ("inventory", "reservation"), ("shipping", "parcel"))}
    entries = read_gateway(world)
    found = [
        *money(world, orders, entries), *shelves(world), *fits_together(orders, states),
        *nothing_left(world)]
    if intents is not None:
        found += customers(world, intents)
    return found


def read_gateway(world):
    with sqlite3.connect(f"file:{world.gateway_books}?mode=ro", uri=True) as books:
        return books.execute("SELECT kind, order_id, amount, charge FROM entry WHERE status = 201").fetchall()


def money(world, orders, entries):
    """Charged once, refunded once, and what is left is what was paid for."""
    charges = Counter(order for kind, order, _, _ in entries if kind == "charge")
    refunds = Counter(order for kind, order, _, _ in entries if kind == "refund")
    left = sum(amount if kind == "charge" else -amount for kind, _, amount, _ in entries)
    paid = sum(amount for state, amount in orders.values() if state == "CONFIRMED")
    booked, = world.query("payments", "SELECT coalesce(sum(amount), 0) FROM payment WHERE state = 'charged'")[0]
    yield left == booked == paid, f"money: {left} at the gateway = {booked} booked by payments = {paid} of confirmed orders", ""
    twice = [order for count in (charges, refunds) for order, number in count.items() if number > 1]
    yield not twice, f"no order was charged or refunded twice ({len(charges)} charges, {len(refunds)} refunds)", twice
    wrong = [order for order, (state, _) in orders.items() if (charges[order] - refunds[order]) != (state == "CONFIRMED")]
    yield not wrong, "each confirmed order is paid, and no other one", wrong


def shelves(world):
    """Stock + shipped = stock at the start."""
    available = dict(world.query("inventory", "SELECT sku, available FROM stock"))
    shipped = dict(world.query("shipping", """
        SELECT item->>'sku', sum((item->>'quantity')::int)::int FROM parcel, jsonb_array_elements(items) AS item
        WHERE state = 'shipped' GROUP BY 1"""))
    wrong = [sku for sku, count in world.stock.items() if available[sku] + shipped.get(sku, 0) != count]
    there, gone = sum(available.values()), sum(shipped.values())
    yield not wrong, f"stock: {there} there + {gone} shipped = {sum(world.stock.values())} at the start", wrong


def fits_together(orders, states):
    """Every order is confirmed, or cancelled with everything compensated."""
    stuck = [order for order, (state, _) in orders.items() if state not in ("CONFIRMED", "CANCELLED")]
    yield not stuck, "no order is stuck", stuck
    confirmed = {order for order, (state, _) in orders.items() if state == "CONFIRMED"}
    for name, end in (("payments", "charged"), ("inventory", "reserved"), ("shipping", "shipped")):
        there = {order for order, state in states[name].items() if state == end}
        what = f"{name}: the {len(there)} orders that are {end} are the {len(confirmed)} confirmed ones"
        yield there == confirmed, what, there ^ confirmed
    open_charges = [order for order, state in states["payments"].items() if state == "charging"]
    yield not open_charges, "no charge is open", open_charges


def nothing_left(world):
    """No message, no lease, no dead letter."""
    for name in SERVICES:
        left = what_is_left(world, name)
        yield not any(left), f"{name}: no message is unsent, no operation is open", left
    dead = dead_letters()
    yield not any(dead.values()), "there are no dead letters", dead


def what_is_left(world, name, seconds=60):
    """Unsent messages and open operations. The relay may still be sending what came with an order's end."""
    end = time.monotonic() + seconds
    while True:
        unsent, = world.query(name, "SELECT count(*) FROM outbox WHERE sent_at IS NULL")[0]
        left = (unsent, open_operations(world, name))
        if not any(left) or time.monotonic() > end:
            return left
        time.sleep(0.1)


def open_operations(world, name):
    return world.query(name, "SELECT count(*) FROM idempotency_store WHERE status <> 'COMPLETED'")[0][0]


def dead_letters():
    """How many each service has."""
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["DEMO_AMQP"]))
    channel = connection.channel()
    counts = {name: channel.queue_declare(f"{name}.dead", passive=True).method.message_count for name in SERVICES}
    connection.close()
    return counts


def customers(world, intents):
    """Each customer has one order, however often they clicked. The page has customers of its own."""
    orders = {str(id) for id, in world.query("orders", "SELECT id FROM orders WHERE tenant NOT LIKE 'page-%%'")}
    several = [intent.number for intent in intents if len(set(intent.answers)) != 1]
    yield not several, f"each of {len(intents)} customers has one answer, however often they asked", several
    known = {answer for intent in intents for answer in intent.answers}
    yield known == orders, f"there are {len(orders)} orders, and no other one", known ^ orders
