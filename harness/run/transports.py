"""TRANSPORTS: what can carry a load's requests, by the name that a matrix uses.

Another one is a class with the methods of `client.Transport` and a row here.
"""

from collections.abc import Callable, Mapping

from harness.records import Timeouts, TransportName
from harness.run.client import Endpoint, Pool, Transport
from harness.run.httpx_client import HttpxTransport

TRANSPORTS: Mapping[TransportName, Callable[[Endpoint, Timeouts], Transport]] = {
    "asyncio": Pool,
    "httpx": HttpxTransport,
}
