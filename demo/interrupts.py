"""What an interrupt does while a program imports what it needs: it ends the program
without a traceback. Import this first, and call listen() when the program is ready.
The first line of a program blocks interrupts, as Python itself answers one with a
traceback until it gets here."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def listen():
    """From now on an interrupt is a KeyboardInterrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
