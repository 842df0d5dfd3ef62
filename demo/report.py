"""What the demo shows: a progress line, a table, the money, the verdict."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


def make_console():
    """A console for people at a terminal, plain lines for everything else."""
    sys.stdout.reconfigure(errors="backslashreplace")
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def count(number):
    return f"{number:,}"


def money(cents):
    """Cents as an amount with two decimals."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100:,}.{abs(cents) % 100:02}"


def news(tally):
    """One short line of what has happened so far."""
    return f"killed {killed(tally)}, takeovers {tally.takeovers}"


def killed(tally):
    """How many consumers died, at a planned point or a random one."""
    return tally.kills + sum(n for fault, n in tally.faults.items() if fault.startswith("die"))


class LiveProgress:
    """One line that is drawn again and again, for a terminal."""

    def __init__(self, console, title, total):
        self.next = 0
        # No thread may draw: the broker forks.
        self.progress = Progress(
            TextColumn(f"{title:<16}"), BarColumn(16), TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TimeElapsedColumn(), TextColumn("[dim]{task.fields[news]}"), console=console, auto_refresh=False)
        self.task = self.progress.add_task("", total=total, news="")

    def __enter__(self):
        self.progress.start()
        return self

    def __exit__(self, *failure):
        self.progress.stop()

    def __call__(self, tally):
        done = tally.acknowledged == self.progress.tasks[0].total
        if time.monotonic() >= self.next or done:
            self.next = time.monotonic() + 0.1
            self.progress.update(self.task, completed=tally.acknowledged, news=news(tally), refresh=True)


class PlainProgress:
    """A line for every quarter of the way, for files and pipes."""

    def __init__(self, console, title, total):
        self.console, self.title, self.total = console, title, total
        self.quarter = 1

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        pass

    def __call__(self, tally):
        if tally.acknowledged * 4 >= self.total * self.quarter:
            self.quarter = tally.acknowledged * 4 // self.total + 1
            self.console.print(f"{self.title}: {count(tally.acknowledged)} of {count(self.total)}"
                               f" deliveries, {news(tally)}", markup=False)


def progress(console, title, total):
    """A context manager to be called with every new Tally."""
    return (LiveProgress if console.is_terminal else PlainProgress)(console, title, total)


def rows(run):
    """The table's rows for one run: what, figure, and whether it is bad."""
    tally, found = run.tally, run.findings.figures
    return (
        ("messages", count(found.messages), False),
        ("deliveries", count(tally.deliveries), False),
        ("  again: consumer was killed", count(tally.redelivered), False),
        ("  again: in progress elsewhere", count(tally.answers["in progress"]), False),
        ("  again: gateway did not answer", count(tally.answers["gateway error"]), False),
        ("  again: late owner was fenced off", count(tally.answers["fenced off"]), False),
        ("effects (payments made)", count(found.effects), found.effects != found.accepted),
        ("replays", count(tally.answers["replay"]), False),
        ("declined (permanent failures)", count(tally.answers["declined"]), False),
        ("failures replayed", count(tally.answers["failure replayed"]), False),
        ("takeovers", count(tally.takeovers), False),
        ("refused (same id, other amount)", count(tally.answers["refused"]), False),
        ("payments charged twice or more", count(found.twice), found.twice),
        ("payments never made", count(found.never), found.never),
        ("money taken too much", money(found.overpaid), found.overpaid),
    )


def print_table(console, protected, naive):
    """Both runs side by side."""
    table = Table(title="The same deliveries", title_justify="left")
    table.add_column("")
    table.add_column("with idempotency", justify="right")
    table.add_column("without", justify="right")
    for (what, with_it, bad_with), (_, without, bad_without) in zip(rows(protected), rows(naive)):
        if what.startswith("payments charged"):
            table.add_section()
        table.add_row(what, marked(with_it, bad_with), marked(without, bad_without))
    console.print(table)


def marked(figure, is_bad):
    return f"[bold red]{figure}[/]" if is_bad else figure


def print_money(console, protected, naive):
    """The sum of the accounts against the sum of the messages, and the cards."""
    table = Table(title="The sums", title_justify="left")
    for heading in ("", "should be", "with idempotency", "without"):
        table.add_column(heading, justify="right" if heading else "left")
    good, bad = protected.findings.figures, naive.findings.figures
    for what, due, figures in (
            ("accounts, against messages", good.due, (good.spent, bad.spent)),
            ("gateway, against card messages", good.due_by_card,
             (good.taken_by_gateway, bad.taken_by_gateway))):
        table.add_row(what, money(due), *(marked(money(f), f != due) for f in figures))
    console.print(table)


def print_verdict(console, problems, protected, naive):
    """The last lines: what was shown, or everything that went wrong."""
    if problems:
        console.print("FAILED", style="bold red")
        for problem in problems:
            console.print(f"  {problem}", markup=False)
        return
    good, bad = protected.findings.figures, naive.findings.figures
    console.print(f"[bold green]OK[/]  with idempotency: {payments(good.accepted)} made exactly once,"
                  f" {good.messages - good.accepted} declined and never made")
    console.print(f"    without: {payments(bad.twice)} made twice or more, {money(bad.overpaid)} taken too much")


def payments(number):
    return f"{number:,} payment" + ("" if number == 1 else "s")
