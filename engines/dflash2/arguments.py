"""What can be asked for on the command line. Reads arguments only, so it needs no torch."""

import argparse
import os
from pathlib import Path

from engines.dflash2.limits import (
    MAX_BODY_BYTES,
    MAX_CONCURRENT_REQUESTS,
    MAX_WAITING,
    STOP_TIMEOUT_S,
)

DTYPE_NAMES = ("float32", "bfloat16")
DEVICES = ("cpu", "cuda")
USAGE_ERROR, INTERRUPTED = 2, 130  # exit codes


class UsageError(Exception):
    """What was asked for cannot be done; the message says what to do instead."""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m engines.dflash2", description="DFlash 2 engine")
    commands = root.add_subparsers(
        required=True,
        dest="command",
        metavar="serve | generate | check | convert | verify | export-gguf",
    )

    serving = commands.add_parser("serve", help="answer the OpenAI API over HTTP")
    _add_model_options(serving)
    serving.add_argument("--served-name", help="name in the API (default: the folder's name)")
    _add_http_options(serving)
    _add_queue_options(serving)
    serving.add_argument(
        "--require-device",
        action="store_true",
        help="before serving, answer once and fail if anything was computed off --device cuda",
    )

    generating = commands.add_parser("generate", help="answer one prompt on stdout")
    _add_model_options(generating)
    generating.add_argument("--prompt", required=True)
    generating.add_argument("--chat", action="store_true", help="send it as a user's message")
    generating.add_argument("--max-tokens", type=_positive, default=128)
    generating.add_argument("--temperature", type=_not_negative, default=0.0)
    generating.add_argument("--seed", type=int, default=0)

    checking = commands.add_parser("check", help="validate a folder, a pair of them, or a device")
    checking.add_argument("--model", type=Path, metavar="DIR")
    checking.add_argument("--dflash2-model", type=Path, metavar="DIR")
    checking.add_argument(
        "--device", choices=DEVICES, help="compute on it what can be checked without a model"
    )
    checking.set_defaults(threads=_num_cores())
    _add_conversion_commands(commands)
    add_export_arguments(
        commands.add_parser("export-gguf", help="write a target as GGUF, for llama.cpp")
    )
    return root


def _add_conversion_commands(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    converting = commands.add_parser("convert", help="convert a BF16 drafter to affine Q8")
    converting.add_argument("source", type=Path, metavar="SRC", help="folder of the BF16 drafter")
    converting.add_argument("destination", type=Path, metavar="DST", help="a new folder")
    converting.add_argument("--source-repository", metavar="NAME", help="to record as its origin")
    converting.add_argument("--source-revision", metavar="REV", help="to record as its origin")

    verifying = commands.add_parser("verify", help="compare a drafter with what was published")
    verifying.add_argument("folder", type=Path, metavar="DIR")
    verifying.add_argument("--reference", type=Path, metavar="DIR", help="must have the same bytes")


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `export-gguf`, which is `python -m engines.gguf`, too."""
    parser.add_argument("target", type=Path, metavar="TARGET", help="folder of a qwen3 target")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument(
        "--drafter",
        type=Path,
        nargs=2,
        metavar=("DRAFTER", "OUT.gguf"),
        help="folder of its DFlash 2 drafter, and its file",
    )


def _add_http_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="where to listen; another machine's way in needs a key"
    )
    parser.add_argument("--port", type=int, default=8080, help="0: any free one")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="wanted from clients; DFLASH2_API_KEY says it without showing it in `ps`",
    )
    parser.add_argument(
        "--max-body-bytes", type=_positive, default=MAX_BODY_BYTES, help="of a request"
    )
    parser.add_argument(
        "--stop-timeout-s",
        type=_not_negative,
        default=STOP_TIMEOUT_S,
        help="for open answers to end by themselves after SIGTERM or SIGINT",
    )


def _add_queue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-concurrent-requests",
        type=_positive,
        default=MAX_CONCURRENT_REQUESTS,
        metavar="N",
        help="decoded at the same time; each has --kv-len positions, whose memory is taken at once",
    )
    parser.add_argument(
        "--max-waiting",
        type=_count,
        default=MAX_WAITING,
        metavar="N",
        help="beside those; whoever comes then gets 503 and Retry-After",
    )
    parser.add_argument(
        "--draft-until-batch",
        type=_count,
        metavar="N",
        help="do not draft while more requests than this are decoded (default: always draft)",
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the target")
    parser.add_argument("--dflash2", choices=("on", "off"), default="off")
    parser.add_argument("--dflash2-model", type=Path, metavar="DIR", help="its DFlash 2 drafter")
    parser.add_argument("--mtp", choices=("on", "off"), default="off", help="the target's own head")
    parser.add_argument(
        "--mtp-k", type=_positive, metavar="K", help="tokens that it proposes in a round"
    )
    parser.add_argument(
        "--kv-len",
        type=_positive,
        help="positions for prompt and answer together (default: 4096, or fewer if the model has)",
    )
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="to compute on")
    parser.add_argument("--dtype", choices=DTYPE_NAMES, default="float32", help="to compute in")
    parser.add_argument(
        "--threads", type=_positive, default=_num_cores(), help="of torch (default: all cores)"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0")
    return value


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
