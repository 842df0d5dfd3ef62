"""Inventory: reserves stock for an order, and puts it back."""

import json

from service import Service


def reserve(tx, order):
    """All items or none. An order that was released before it came here is refused."""
    new = tx.execute(
        "INSERT INTO reservation VALUES (%s, 'reserved', %s::jsonb) ON CONFLICT DO NOTHING",
        (order["order"], json.dumps(order["items"]))).rowcount == 1
    if new and not take(tx, order["items"]):
        tx.execute("UPDATE reservation SET state = 'refused' WHERE order_id = %s", (order["order"],))
    return "stock.reserved" if state_of(tx, order) == "reserved" else "stock.refused"


def release(tx, order):
    """What was reserved goes back, once. If nothing was, nothing will be."""
    tx.execute("INSERT INTO reservation VALUES (%s, 'released', '[]') ON CONFLICT DO NOTHING", (order["order"],))
    if state_of(tx, order) == "reserved":
        tx.execute("UPDATE reservation SET state = 'released' WHERE order_id = %s", (order["order"],))
        change(tx, order["items"], 1)
    return "stock.released"


def state_of(tx, order):
    """The state of the reservation, which stays locked."""
    return tx.execute("SELECT state FROM reservation WHERE order_id = %s FOR UPDATE", (order["order"],)).fetchone()[0]


def take(tx, items):
    """Whether there was enough of everything. Rows are locked in one order, so two orders cannot deadlock."""
    available = dict(tx.execute(
        "SELECT sku, available FROM stock WHERE sku = ANY(%s) ORDER BY sku FOR UPDATE",
        ([item["sku"] for item in items],)).fetchall())
    if any(available.get(item["sku"], 0) < item["quantity"] for item in items):
        return False
    change(tx, items, -1)
    return True


def change(tx, items, sign):
    """Moves the stock of each item, in the order of their names."""
    for item in sorted(items, key=lambda item: item["sku"]):
        tx.execute("UPDATE stock SET available = available + %s WHERE sku = %s", (sign * item["quantity"], item["sku"]))


if __name__ == "__main__":
    Service("inventory", {
        "stock.reserve": reserve, "order.placed": reserve,
        "stock.release": release, "payment.declined": release, "payment.refunded": release,
    }).run()
