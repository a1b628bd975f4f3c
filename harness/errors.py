"""What the harness raises when the user has to do something.

HarnessError
├── ConfigError        a matrix, engine, model or prompt file says something that cannot be run
├── UsageError         the command line
├── ResultsError       a results folder that cannot be read or written
├── BootError          an engine that did not start, or died
│   └── PortInUseError
└── EngineError        an engine that answers, but not as its adapter expects

Each message quotes what was written, says what is wrong and what to do. A failed request is not
among them: it is data (`records.RequestError`). The harness's own mistakes stay assertions and
plain tracebacks.
"""

from dataclasses import dataclass


class HarnessError(Exception):
    """Base of all; `exit_code` is what the command ends with."""

    exit_code = 4


@dataclass(frozen=True)
class Place:
    """Where in a file something stands, one-based."""

    path: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class ConfigError(HarnessError):
    """`place` leads the message when the mistake stands in a file."""

    def __init__(self, message: str, *, place: Place | None = None) -> None:
        self.place = place
        super().__init__(f"{place}: {message}" if place else message)


class UsageError(HarnessError):
    pass


class ResultsError(HarnessError):
    exit_code = 3


class BootError(HarnessError):
    exit_code = 3


class PortInUseError(BootError):
    pass


class EngineError(HarnessError):
    exit_code = 3
