"""Shipping: hands parcels over to the carrier. A parcel that has left cannot be recalled: after this step no
order goes back."""

import json

from service import Service

NOT_SERVED = ("Atlantis",)


def ship(tx, order):
    """Sends the parcel, unless it was recalled before, or the carrier does not go there."""
    return settle(tx, order, "refused" if order["city"] in NOT_SERVED else "shipped")


def recall(tx, order):
    """Keeps the parcel here, unless it has left."""
    return settle(tx, order, "recalled")


def settle(tx, order, state):
    """Whoever comes first decides what becomes of the parcel."""
    tx.execute("INSERT INTO parcel VALUES (%s, %s, %s::jsonb) ON CONFLICT DO NOTHING",
               (order["order"], state, json.dumps(order["items"])))
    state, = tx.execute("SELECT state FROM parcel WHERE order_id = %s", (order["order"],)).fetchone()
    return "parcel.shipped" if state == "shipped" else "parcel.refused"


if __name__ == "__main__":
    Service("shipping", {
        "parcel.ship": ship, "payment.charged": ship,
        "parcel.recall": recall, "order.cancelled": recall,
    }).run()
