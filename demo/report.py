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
    """The table's rows for one run: a title and a figure. None begins a new
    section, in which any figure but zero is a loss."""
    tally, found = run.tally, run.findings.figures
    return (
        ("messages", count(found.messages)),
        ("deliveries", count(tally.deliveries)),
        ("  again: consumer killed", count(tally.redelivered)),
        ("  again: in progress", count(tally.answers["in progress"])),
        ("  again: gateway error", count(tally.answers["gateway error"])),
        ("  again: lease lost", count(tally.answers["fenced off"])),
        ("payments made", count(found.effects)),
        ("answers replayed", count(tally.answers["replay"])),
        ("failures replayed", count(tally.answers["failure replayed"])),
        ("takeovers", count(tally.takeovers)),
        ("other amount refused", count(tally.answers["refused"])),
        None,
        ("made twice or more", count(found.twice)),
        ("  card charged twice", count(found.charged_twice)),
        ("never made", count(found.never)),
        ("money taken by mistake", money(found.overpaid)),
        ("duplicates not answered", count(tally.answers["duplicate"])),
        ("declined, tried again", count(tried_again(run))),
        ("other amount accepted", count(let_through(run))),
    )


def tried_again(run):
    """How often a consumer checked a payment again that was declined before."""
    found = run.findings.figures
    return max(0, run.tally.answers["declined"] - (found.messages - found.accepted))


def let_through(run):
    """Deliveries with a false amount that no consumer refused."""
    return run.plan.tampered_deliveries() - run.tally.answers["refused"]


def print_table(console, runs):
    """All runs side by side; losses are red."""
    table = Table(title="The same deliveries", title_justify="left")
    table.add_column("", no_wrap=True)
    for run in runs:
        table.add_column(run.kind.heading, justify="right")
    losses = False
    for row in zip(*(rows(run) for run in runs)):
        if row[0] is None:
            table.add_section()
            losses = True
        else:
            table.add_row(row[0][0], *(marked(figure, losses and figure not in ("0", "0.00")) for _, figure in row))
    console.print(table)


def marked(figure, is_bad):
    return f"[bold red]{figure}[/]" if is_bad else figure


def print_money(console, runs):
    """The sums of the accounts and of the card gateway, and the right sums."""
    table = Table(title="The sums", title_justify="left")
    for heading in ("", "should be", *(run.kind.heading for run in runs)):
        table.add_column(heading, justify="right" if heading else "left")
    due = runs[0].findings.figures
    for what, right, sums in (
            ("accounts", due.due, [run.findings.figures.spent for run in runs]),
            ("card gateway", due.due_by_card, [run.findings.figures.taken_by_gateway for run in runs])):
        table.add_row(what, money(right), *(marked(money(found), found != right) for found in sums))
    console.print(table)


def print_verdict(console, problems, protected, *others):
    """The last lines: the result, or everything that went wrong."""
    if problems:
        console.print("FAILED", style="bold red")
        for problem in problems:
            console.print(f"  {problem}", markup=False)
        return
    good = protected.findings.figures
    console.print(f"[bold green]OK[/]  {protected.kind.title}: {payments(good.accepted)} made exactly once,"
                  f" {good.messages - good.accepted} declined and never made")
    for run in others:
        bad = run.findings.figures
        console.print(f"    {run.kind.title}: {payments(bad.twice)} made twice or more,"
                      f" {money(bad.overpaid)} taken by mistake")


def payments(number):
    return f"{number:,} payment" + ("" if number == 1 else "s")
