"""The command line: serve a model over HTTP, answer one prompt, or check what lies in a folder.

    python -m engines.dflash2 serve --model DIR --dflash2 on --dflash2-model DIR --port 8080
    python -m engines.dflash2 generate --model DIR --prompt "def add(a, b):"
    python -m engines.dflash2 check --model DIR --dflash2-model DIR

Knows arguments, exit codes and what is printed. The user's mistakes end with exit code 2 and one
message on stderr; a traceback is a defect of ours.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from engines.dflash2.config import ModelError, load_drafter_config, load_target_config
from engines.dflash2.engine import Engine, Finished, GenerationRequest, load_engine
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.scheduler import Scheduler
from engines.dflash2.server import Facts, Server, http_server
from engines.dflash2.tokenizer import load_stop_ids, load_tokenizer

USAGE_ERROR = 2
INTERRUPTED = 130
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class UsageError(Exception):
    """What was asked for cannot be done; the message says what to do instead."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        torch.set_num_threads(options.threads)
        command: Callable[[argparse.Namespace], int] = options.command
        return command(options)
    except (UsageError, ModelError) as error:
        print(f"dflash2: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def serve_command(options: argparse.Namespace) -> int:
    drafter_dir = _drafter_dir(options)
    # The port is taken before the weights are read, so that a busy one is reported at once. Nobody
    # is let in before everything is ready: until then connections are refused.
    with _bind(options.host, options.port) as listener:
        engine = _load(options, drafter_dir)
        scheduler = Scheduler(lambda request, queue_s: engine.generate(request, queue_s=queue_s))
        facts = Facts(
            served_name=options.served_name or options.model.resolve().name,
            model_dir=options.model,
            drafter_dir=drafter_dir,
            dtype=options.dtype,
            num_threads=options.threads,
            version=_version(),
            commit=_commit(),
        )
        _listen(listener, options)
        print(_greeting(facts, engine, listener), flush=True)
        # uvicorn ends cleanly on these signals and then raises them again, for whoever handled them
        # before it; by then everything is done.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        scheduler.start()
        http_server(Server(engine, scheduler, facts)).run(sockets=[listener])
        if not scheduler.join(timeout_s=1.0):
            # A long prefill is still computing in its thread. Torch does not survive the
            # interpreter's own end in there, so the process ends without one.
            sys.stderr.flush()
            os._exit(0)
    return 0


def generate_command(options: argparse.Namespace) -> int:
    engine = _load(options, _drafter_dir(options))
    prompt_ids = _prompt_ids(options, engine)
    request = GenerationRequest(
        prompt_ids=prompt_ids,
        max_tokens=min(options.max_tokens, engine.kv_len - len(prompt_ids)),
        min_tokens=0,
        sampling=SamplingParams(temperature=options.temperature, seed=options.seed),
        stop=(),
        ignore_eos=False,
    )
    for item in engine.generate(request):
        if isinstance(item, Finished):
            print(flush=True)
            print(_timings_line(item.finish_reason, item.timings), file=sys.stderr)
        else:
            print(item.text, end="", flush=True)
    return 0


def check_command(options: argparse.Namespace) -> int:
    """Load everything, as serving would, and print what was found."""
    target = load_target_config(options.model)
    tokenizer = load_tokenizer(options.model)
    # Loading is the check: a missing, surplus or misshapen tensor is an error there.
    load_engine(options.model, options.dflash2_model, dtype=torch.float32, kv_len=None)
    print(f"target      {options.model}")
    print(
        f"            qwen3, {target.num_hidden_layers} layers, hidden {target.hidden_size}, "
        f"vocabulary {target.vocab_size}, {target.max_position_embeddings} positions"
    )
    print(
        f"tokenizer   {tokenizer.num_tokens} tokens, chat template: "
        f"{'yes' if tokenizer.has_chat_template else 'no'}, "
        f"stop ids: {sorted(load_stop_ids(options.model)) or 'none'}"
    )
    if options.dflash2_model is not None:
        drafter = load_drafter_config(options.dflash2_model)
        print(f"drafter     {options.dflash2_model}")
        print(
            f"            DFlash 2, {drafter.num_hidden_layers} layers, depth "
            f"{drafter.num_proposals}, block {drafter.block_size}, window "
            f"{drafter.sliding_window}, taps {list(drafter.target_layer_ids)}, selector rank "
            f"{drafter.selector_rank} over {drafter.selector_top_k} candidates"
        )
    print("ok          every tensor is there, none is left over, and the parts fit together")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engines.dflash2", description="DFlash 2 engine"
    )
    commands = parser.add_subparsers(required=True, metavar="serve | generate | check")

    serving = commands.add_parser("serve", help="answer the OpenAI API over HTTP")
    _add_model_options(serving)
    serving.add_argument("--served-name", help="name in the API (default: the folder's name)")
    serving.add_argument("--host", default="127.0.0.1")
    serving.add_argument("--port", type=int, default=8080, help="0: any free one")
    serving.set_defaults(command=serve_command)

    generating = commands.add_parser("generate", help="answer one prompt on stdout")
    _add_model_options(generating)
    generating.add_argument("--prompt", required=True)
    generating.add_argument("--chat", action="store_true", help="send it as a user's message")
    generating.add_argument("--max-tokens", type=_positive, default=128)
    generating.add_argument("--temperature", type=_not_negative, default=0.0)
    generating.add_argument("--seed", type=int, default=0)
    generating.set_defaults(command=generate_command)

    checking = commands.add_parser("check", help="validate a model folder, or a pair of them")
    checking.add_argument("--model", type=Path, required=True, metavar="DIR")
    checking.add_argument("--dflash2-model", type=Path, metavar="DIR")
    checking.set_defaults(command=check_command, threads=_num_cores())
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the target")
    parser.add_argument("--dflash2", choices=("on", "off"), default="off")
    parser.add_argument("--dflash2-model", type=Path, metavar="DIR", help="its DFlash 2 drafter")
    parser.add_argument(
        "--kv-len",
        type=_positive,
        help="positions for prompt and answer together (default: 4096, or fewer if the model has)",
    )
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32", help="to compute in")
    parser.add_argument(
        "--threads", type=_positive, default=_num_cores(), help="of torch (default: all cores)"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0 (0 is greedy decoding)")
    return value


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _drafter_dir(options: argparse.Namespace) -> Path | None:
    """The drafter to load: the switch and the folder have to be given together."""
    if options.dflash2 == "on" and options.dflash2_model is None:
        raise UsageError(
            "--dflash2 on needs --dflash2-model DIR, the folder of a drafter for this target"
        )
    if options.dflash2 == "off" and options.dflash2_model is not None:
        raise UsageError(
            f"--dflash2-model {options.dflash2_model} is given but --dflash2 is off; "
            "add --dflash2 on, or leave the drafter out"
        )
    drafter_dir: Path | None = options.dflash2_model
    return drafter_dir


def _load(options: argparse.Namespace, drafter_dir: Path | None) -> Engine:
    return load_engine(
        options.model, drafter_dir, dtype=DTYPES[options.dtype], kv_len=options.kv_len
    )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _listen(listener: socket.socket, options: argparse.Namespace) -> None:
    # SO_REUSEADDR lets two processes bind a port on which nobody listens yet; the second learns of
    # the first one here.
    try:
        listener.listen()
    except OSError as error:
        raise _cannot_listen(options.host, options.port, error) from error


def _cannot_listen(host: str, port: int, error: Exception) -> UsageError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} on {host} is in use; give another --port (0 takes any free one), "
            "or stop the process that has it"
        )
    return UsageError(f"cannot listen on {host} port {port}: {error}; check --host and --port")


def _greeting(facts: Facts, engine: Engine, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    drafter = f"DFlash 2, depth {engine.depth}" if facts.drafter_dir else "no drafter"
    return (
        f"dflash2: serving {facts.served_name} at http://{host}:{port} "
        f"({drafter}, {engine.kv_len} positions, {facts.dtype}, {facts.num_threads} threads)"
    )


def _prompt_ids(options: argparse.Namespace, engine: Engine) -> tuple[int, ...]:
    if options.chat:
        message = {"role": "user", "content": options.prompt}
        prompt_ids = tuple(engine.tokenizer.encode_chat([message], {}))
    else:
        prompt_ids = tuple(engine.tokenizer.encode(options.prompt))
    if not 1 <= len(prompt_ids) < engine.kv_len:
        raise UsageError(
            f"the prompt has {len(prompt_ids)} tokens; it must have at least one and leave room "
            f"for an answer within --kv-len {engine.kv_len}"
        )
    return prompt_ids


def _timings_line(finish_reason: str, timings: dict[str, Any]) -> str:
    rate = timings["predicted_per_second"]
    line = (
        f"{timings['predicted_n']} tokens, ended by {finish_reason}; "
        f"prompt {timings['prompt_n']} tokens in {timings['prompt_ms']:.1f} ms; "
        f"decode {'n/a' if rate is None else f'{rate:.1f} tok/s'}"
    )
    if timings["rounds"] > 0:
        line += (
            f"; {timings['rounds']} rounds, {timings['accepted']}/{timings['drafted']} drafts "
            f"accepted, acceptance length {1 + timings['accepted'] / timings['rounds']:.2f}, "
            f"draft {timings['draft_ms']:.1f} ms, verify {timings['verify_ms']:.1f} ms"
        )
    return line


def _version() -> str | None:
    try:
        return metadata.version("dflashbench")
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit; None outside of one or without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
