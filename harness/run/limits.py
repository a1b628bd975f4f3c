"""What the operating system allows a process that holds many connections."""

import resource

from harness.errors import UsageError

BESIDE_CONNECTIONS = 256
"""Open files of everything else: logs, records, the parser, libraries."""


def allow_open_files(num_connections: int) -> None:
    """Raise this process's limit, and that of the engines it starts; a clear refusal where that
    cannot be, before anything runs: later it would look like connections that fail.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_connections + BESIDE_CONNECTIONS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"c = {num_connections} needs {needed} open files, and this user may have {hard} "
            "(`ulimit -Hn`); raise that limit (limits.conf, or LimitNOFILE of a service), or lower "
            "the highest level"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
