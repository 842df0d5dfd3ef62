"""What an interrupt does while a program imports what it needs: it ends the program
without a traceback. Import this first, and call listen() when the program is ready."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)


def listen():
    """From now on an interrupt is a KeyboardInterrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
