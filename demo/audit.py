"""The truth after a run, by SQL over the tables of the shop and the gateway."""

from dataclasses import dataclass

import psycopg

from gateway import connect

# For every message: how often it took effect, and the amounts. A card payment
# has two effects, the booking and the charge; the customer has paid the amount
# that the gateway took. due is the right amount.
EFFECTS = """
CREATE TEMP VIEW effect AS
SELECT m.id, m.method, m.accepted, CASE WHEN m.accepted THEN m.amount ELSE 0 END AS due,
       coalesce(p.times, 0) AS booked, coalesce(p.amount, 0) AS booked_amount,
       coalesce(c.amount, 0) AS charged_amount,
       CASE m.method WHEN 'card' THEN coalesce(c.amount, 0) ELSE coalesce(p.amount, 0) END AS paid,
       greatest(p.times, c.times, 0) > 1 AS twice,
       coalesce(c.times, 0) > 1 AS charged_twice,
       m.accepted AND (p.times IS NULL OR m.method = 'card' AND c.times IS NULL) AS never
FROM message m
LEFT JOIN (SELECT message_id, count(*) AS times, sum(amount) AS amount
           FROM payment GROUP BY 1) p ON p.message_id = m.id
LEFT JOIN (SELECT reference, count(*) AS times, sum(amount) AS amount
           FROM charge GROUP BY 1) c ON c.reference = m.id
"""

SUMMARY = """
SELECT count(*) AS messages,
       count(*) FILTER (WHERE accepted) AS accepted,
       sum(booked) AS effects,
       count(*) FILTER (WHERE twice) AS twice,
       count(*) FILTER (WHERE charged_twice) AS charged_twice,
       count(*) FILTER (WHERE never) AS never,
       count(*) FILTER (WHERE NOT twice AND NOT never AND (booked_amount <> due
           OR charged_amount <> CASE method WHEN 'card' THEN due ELSE 0 END)) AS wrong,
       sum(greatest(paid - due, 0)) AS overpaid,
       sum(due) AS due,
       (SELECT coalesce(sum(spent), 0) FROM account) AS spent,
       coalesce(sum(due) FILTER (WHERE method = 'card'), 0) AS due_by_card,
       (SELECT coalesce(sum(amount), 0) FROM charge) AS taken_by_gateway,
       (SELECT count(*) FROM account a WHERE spent <>
           (SELECT coalesce(sum(due), 0) FROM effect e JOIN message m USING (id)
            WHERE m.account = a.id)) AS wrong_accounts
FROM effect
"""

STRAYS = """
SELECT (SELECT count(*) FROM payment WHERE message_id NOT IN (SELECT id FROM message))
     + (SELECT count(*) FROM charge WHERE reference NOT IN (SELECT id FROM message))
"""

STORE = """
SELECT count(*) FILTER (WHERE status = 'COMPLETED'), count(*) FILTER (WHERE status = 'FAILED'), count(*)
FROM idempotency_store WHERE scope = 'payments'
"""


@dataclass
class Findings:
    """What the audit counted; see the column names of SUMMARY."""

    figures: object
    strays: int
    payments: dict
    outages_left: int
    store: tuple | None


def audit(databases, protected):
    """Findings about a run that has ended."""
    with connect(databases.gateway) as gateway, connect(databases.shop) as shop:
        copy_ledger(gateway, shop)
        shop.execute(EFFECTS)
        cursor = shop.cursor(row_factory=psycopg.rows.namedtuple_row)
        return Findings(
            figures=cursor.execute(SUMMARY).fetchone(),
            strays=shop.execute(STRAYS).fetchone()[0],
            payments=dict(shop.execute("SELECT message_id, array_agg(id) FROM payment GROUP BY 1")),
            outages_left=gateway.execute("SELECT count(*) FROM outage WHERE calls_left > 0").fetchone()[0],
            store=shop.execute(STORE).fetchone() if protected else None)


def copy_ledger(gateway, shop):
    """Copies the gateway's ledger into the shop's database, for one query over both."""
    shop.execute("CREATE TEMP TABLE charge (reference text, amount bigint)")
    with shop.cursor().copy("COPY charge FROM STDIN") as copy:
        for row in gateway.execute("SELECT reference, amount FROM ledger"):
            copy.write_row(row)


def breaches(plan, findings, tally):
    """Each violation of the guarantee, in words; an empty list if there is none."""
    f = findings.figures
    checks = (
        (f.twice, "payments that took effect twice"),
        (f.never, "payments that took no effect"),
        (f.wrong, "payments of a wrong amount, or made though declined"),
        (f.wrong_accounts, "accounts that hold a wrong sum"),
        (findings.strays, "effects that belong to no message"),
        (f.spent - f.due, "cents too many in the accounts"),
        (f.taken_by_gateway - f.due_by_card, "cents too many at the gateway"),
        (wrong_receipts(findings, tally), "messages answered with another payment than theirs"),
        (plan.tampered_deliveries() - tally.answers["refused"], "deliveries with a false amount not refused"),
        (ends_missing(findings), "messages without their end in idempotency_store"),
    )
    return [f"{what}: {count}" for count, what in checks if count]


def ends_missing(findings):
    """By how many records the store differs from one end for each message."""
    f = findings.figures
    completed, failed, records = findings.store
    return max(abs(completed - f.accepted), abs(failed - (f.messages - f.accepted)), abs(records - f.messages))


def wrong_receipts(findings, tally):
    """How many messages had a delivery answered with a payment that is not theirs."""
    return sum(1 for message_id, answered in tally.receipts.items()
               if answered != set(findings.payments.get(message_id, ())))


def missed(plan, findings, tally):
    """Planned faults that did not happen: a run without them proves less."""
    checks = (
        (len(plan.faults) - sum(tally.faults.values()), "planned faults"),
        (len(plan.kills) - tally.kills, "planned kills"),
        (findings.outages_left, "planned gateway errors"),
    )
    return [f"{what} that never happened: {count}" for count, what in checks if count]
