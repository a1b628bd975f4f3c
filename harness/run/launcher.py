"""Become an engine that dies with the harness: `launcher.py PARENT PROGRAM ARGUMENTS...`.

Linux sends a process the signal of its choice when its parent ends, however that ends; the wish
survives `exec`. It is made here, in a program of its own, because code between fork and exec would
run inside a process with threads. SIGTERM, so that an engine may stop what it started itself.
Standard library only: it runs before the engine, with `python -I -S`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent, program, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it ended before the wish was made
        sys.exit("the harness is gone")
    try:
        os.execvp(program, arguments)
    except OSError as error:
        sys.exit(f"{program!r} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
