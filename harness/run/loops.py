"""Which event loop the client runs on: uvloop where it is installed, else asyncio's own.

uvloop halves the client's CPU per event when every event is a read of its own. The loop's name is
recorded with every session, and calibration is measured on the loop that the session uses.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module, util


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None: asyncio's default."""
    if util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def loop_name(loop: asyncio.AbstractEventLoop) -> str:
    """Library and class, without what is private in between."""
    return f"{type(loop).__module__.partition('.')[0]}.{type(loop).__name__}"
