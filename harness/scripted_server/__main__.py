"""The scripted server as a process: `python -m harness.scripted_server --port N ...`.

It takes the bundled engine's command line, and words for its timetable. For a benchmark of clients:

    python -m harness.scripted_server --port 9100 --core 0 --served-name m \\
        --prefill-ms 50 --round-ms 20 --num-tokens 128 --tokens-per-event 1

`GET /log` tells, as JSON, every request with the moments of what was sent (`perf_counter_ns`, one
clock for all processes of a machine); `DELETE /log` forgets them.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Coroutine, Sequence
from importlib import util
from typing import Any

from harness.scripted_server.engine import FakeEngine, Law
from harness.scripted_server.script import Received, Script, page
from harness.scripted_server.server import Answer, ScriptedServer


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.scripted_server", description=__doc__)
    law = Law()
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--dflash2", choices=("on", "off"), default="off")
    parser.add_argument("--dflash2-model")
    parser.add_argument("--served-name", default=law.served_name)
    parser.add_argument("--kv-len", type=int, default=law.kv_len)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--core", type=int, help="the only processor core to run on")
    parser.add_argument("--prefill-ms", type=float, default=law.prefill_ms)
    parser.add_argument("--round-ms", type=float, default=law.round_ms)
    parser.add_argument("--num-tokens", type=int, help="of every answer, unless max_tokens is less")
    parser.add_argument("--tokens-per-event", type=int, help="instead of one event per round")
    parser.add_argument("--slots", type=int, help="requests worked on at once; more wait")
    parser.add_argument("--loading-s", type=float, default=law.loading_s)
    parser.add_argument("--dialect", choices=("dflash2", "vllm", "llamacpp"), default=law.dialect)
    parser.add_argument("--die-at-request", type=int, help="exit when this many were asked")
    parser.add_argument("--die-after-answers", type=int, help="exit when this many were answered")
    parser.add_argument("--hang-at-request", type=int, help="answer no more from this one on")
    parser.add_argument("--parts-at", type=int, help="from which token on answers are others")
    parser.add_argument("--odds-gap-nats", type=float, default=law.odds_gap_nats)
    parser.add_argument("--accept-delay-s", type=float, default=0.0)
    parser.add_argument("--refuse-to-boot", action="store_true")
    return parser.parse_args(arguments)


def _law(options: argparse.Namespace) -> Law:
    return Law(
        served_name=options.served_name,
        drafting=options.dflash2 == "on",
        kv_len=options.kv_len,
        prefill_ms=options.prefill_ms,
        round_ms=options.round_ms,
        num_tokens=options.num_tokens,
        tokens_per_event=options.tokens_per_event,
        slots=options.slots,
        loading_s=options.loading_s,
        dialect=options.dialect,
        die_at_request=options.die_at_request,
        die_after_answers=options.die_after_answers,
        hang_at_request=options.hang_at_request,
        parts_at=options.parts_at,
        odds_gap_nats=options.odds_gap_nats,
    )


async def _serve(options: argparse.Namespace) -> None:
    engine = FakeEngine(_law(options))

    def respond(request: Received) -> Script:
        return _log(server, request) if request.path == "/log" else engine.respond(request)

    server = ScriptedServer(respond, accept_delay_s=options.accept_delay_s)
    await server.start(options.host, options.port)
    await asyncio.Event().wait()


# --- the log --------------------------------------------------------------------------------------


def _log(server: ScriptedServer, request: Received) -> Script:
    if request.method == "DELETE":
        server.answers.clear()
        server.in_flight_max = server.in_flight
        return page("{}")
    return page(
        json.dumps(
            {
                "clock": {"perf_counter_ns": time.perf_counter_ns(), "unix_ns": time.time_ns()},
                "in_flight_max": server.in_flight_max,
                "num_connections": server.num_connections,
                "answers": [_told(answer) for answer in server.answers if answer.received.body],
            }
        )
    )


def _told(answer: Answer) -> dict[str, Any]:
    return {
        "path": answer.received.path,
        "connection": answer.received.connection,
        "nth": answer.received.nth,
        "received_ns": answer.received.at_ns,
        "sent_ns": answer.sent_ns,
        "end_ns": answer.end_ns,
        "whole": answer.whole,
    }


# --- the process ----------------------------------------------------------------------------------


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed: a turn of its loop costs half."""
    if util.find_spec("uvloop") is None:
        asyncio.run(main)
        return
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.refuse_to_boot:
        sys.exit("scripted engine: refusing to boot as asked")
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    gc.disable()  # nothing here makes cycles that grow, and a collection would shift the timetable
    _run(_serve(options))


if __name__ == "__main__":
    main()
