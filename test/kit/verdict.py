"""The last lines of a harness in Python: what failed, and N passed, N failed."""

import signal
import sys
import traceback


class Verdict:
    """Counts checks, and says which failed. As a context it ends the program: it prints
    the line whatever happens, and exits with 0 only if something passed and nothing
    failed. If a signal ends the program, what cleans up still runs."""

    def __init__(self):
        self.passed = self.failed = 0
        self.failures = []

    def check(self, good, what, details=""):
        """One check, and what is wrong if it failed."""
        self.count(bool(good), not good)
        if not good:
            self.failures.append(what)
        print(f'{"ok" if good else "not ok"}: {what}' + (f"\n{details}" if details and not good else ""), flush=True)

    def count(self, passed, failed):
        """Checks that have been reported."""
        self.passed += passed
        self.failed += failed

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            traceback.print_exception(kind, error, trace, file=sys.stdout)
            self.failed += 1
            self.failures.append(f"it ended with {kind.__name__}")
        for what in self.failures[:20]:
            print(f"failed: {what}")
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(self.failed > 0 or self.passed == 0)
