"""What a run prints: its figures, each fault and how often it hit, and what was wrong."""

from collections import Counter


def figures(options, schedule, evidence, ended):
    deliveries = Counter(line["number"] for line in evidence.events["delivery"])
    yield "seed", options.seed
    yield "schedule", schedule
    yield "operations", len(deliveries)
    yield "duplicates delivered", sum(deliveries.values()) - len(deliveries)
    yield "answers", len(evidence.events["answered"])
    yield "effects", len(evidence.effects)
    yield "leases", len(evidence.events["lease"])
    yield "takeovers", sum(1 for line in evidence.events["lease"] if line["taken_over"])
    yield "unfinished commits refused", len(evidence.events["refused"])
    yield "lost leases reported", ended


def print_report(lines, controller, unavailable, findings):
    for name, value in lines:
        print(f"{name + ':':<28} {value}")
    print("faults:                      struck     hit")
    for name in sorted(controller.tries):
        print(f"  {name:<26} {controller.tries[name]:>6} {controller.hits[name]:>7}")
    for name, reason in unavailable.items():
        print(f"  {name:<26} not possible here: {reason}")
    for node in controller.pair.nodes:
        for hang in node.hangs:
            print(f"did not come up by itself:   {node.name}: {hang}")
    findings.report()
