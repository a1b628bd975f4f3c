"""`serve`, `generate` and `check`: what the command line asks of a loaded engine.

Knows what is printed and how a process starts and stops. The user's mistakes are `UsageError` and
`ModelError`; a traceback is a defect of ours.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from engines.dflash2 import kernels
from engines.dflash2.arguments import INTERRUPTED, UsageError
from engines.dflash2.config import check_pair, load_drafter_config, load_target_config
from engines.dflash2.conversion.cache import folder_to_load
from engines.dflash2.conversion.progress import ProgressLines, say
from engines.dflash2.engine import Engine, Finished, GenerationRequest, load_engine
from engines.dflash2.listener import bind, http_server, listen, url_of
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.scheduler import Scheduler
from engines.dflash2.selfcheck import DeviceOnly, check_device
from engines.dflash2.server import Facts, Server
from engines.dflash2.tokenizer import load_stop_ids, load_tokenizer

API_KEY_VARIABLE = "DFLASH2_API_KEY"


def serve_command(options: argparse.Namespace) -> int:
    given_dir, mtp_k = _drafter_dir(options), _mtp_k(options)
    _check_require_device(options)
    api_key = _api_key(options.api_key, os.environ)
    # The port is taken before the weights are read, so that a busy one is reported at once. Nobody
    # is let in before everything is ready: until then connections are refused.
    with bind(options.host, options.port, has_key=api_key is not None) as listener:
        drafter_dir = _converted(options, given_dir)
        engine = _in_a_thread_that_ends(lambda: _load_to_serve(options, drafter_dir))
        scheduler = Scheduler(engine, max_waiting=options.max_waiting)
        facts = Facts(
            served_name=options.served_name or options.model.resolve().name,
            model_dir=options.model,
            drafter_dir=drafter_dir,
            drafter_weights=_drafter_weights(drafter_dir),
            uses_mtp=mtp_k is not None,
            dtype=options.dtype,
            kernels=_kernels(options),
            num_threads=options.threads,
            version=_version(),
            commit=_commit(),
        )
        server = Server(
            engine, scheduler, facts, api_key=api_key, max_body_bytes=options.max_body_bytes
        )
        _run(server, listener, options)
    return 0


def _load_to_serve(options: argparse.Namespace, drafter_dir: Path | None) -> Engine:
    engine = _load(
        options,
        drafter_dir,
        max_concurrent_requests=options.max_concurrent_requests,
        draft_until_batch=options.draft_until_batch,
    )
    if options.require_device:
        with DeviceOnly(_device(options.device)):
            answer_once(engine)
    return engine


def _in_a_thread_that_ends(load: Callable[[], Engine]) -> Engine:
    """OpenMP keeps a pool for each thread that has computed, until that thread ends.

    The scheduler's thread is to have the only one. With more threads in all pools than there are
    cores, those that wait for the next piece of work sleep instead of spinning, and every step
    takes twice as long.
    """
    loaded: Future[Engine] = Future()

    def run() -> None:
        try:
            loaded.set_result(load())
        except Exception as error:
            loaded.set_exception(error)

    thread = threading.Thread(target=run, name="dflash2-load", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # torch does not survive the interpreter's own end in there
    return loaded.result()


def _run(server: Server, listener: socket.socket, options: argparse.Namespace) -> None:
    """Serve until a signal says to stop, then end in good order."""
    listen(listener, options.host, options.port)
    print(_greeting(server.facts, server.engine, listener), flush=True)
    # The server takes over these signals while it runs; one that comes after that has nothing left
    # to stop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    server.scheduler.start()
    http_server(server, stop_timeout_s=options.stop_timeout_s).run(sockets=[listener])
    if not server.scheduler.join(timeout_s=1.0):
        # A long prefill is still computing in its thread. Torch does not survive the
        # interpreter's own end in there, so the process ends without one.
        sys.stderr.flush()
        os._exit(0)


def _api_key(given: str | None, environment: Mapping[str, str]) -> str | None:
    """The option's, else the environment's; None: everybody is let in."""
    key = given if given is not None else environment.get(API_KEY_VARIABLE)
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
        # Not quoted: a message may end up in a log.
        raise UsageError(
            f"the API key (--api-key or {API_KEY_VARIABLE}) is empty or has characters that no "
            "HTTP header can carry; use printable ASCII, without spaces around it"
        )
    return key


def generate_command(options: argparse.Namespace) -> int:
    engine = _load(options, _converted(options, _drafter_dir(options)))
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
    """Check what was named: a device, a folder or a pair of them."""
    torch.set_num_threads(options.threads)
    if options.dflash2_model is not None and options.model is None:
        raise UsageError("--dflash2-model needs --model DIR, the target it was trained for")
    if options.device is None and options.model is None:
        raise UsageError("nothing to check; give --model DIR, --device cpu or cuda, or both")
    all_well = options.device is None or _check_device(options.device)
    if options.model is not None:
        _check_folders(options)
    return 0 if all_well else 1


def _check_device(name: str) -> bool:
    findings = check_device(_device(name))
    for finding in findings:
        print(f"{finding.name:<12}{'ok  ' if finding.ok else 'BAD '}{finding.text}")
    print(f"device      {name}: nothing was computed anywhere else")
    if name == "cpu":
        print(f"kernels     {kernels.description()}")
    print("            These are computations on random numbers: no model, and no speed.")
    return all(finding.ok for finding in findings)


def _check_folders(options: argparse.Namespace) -> None:
    """Load everything that is in the folders, convert nothing, and print what was found."""
    target = load_target_config(options.model)
    tokenizer = load_tokenizer(options.model)
    # Loading is the check: a missing, surplus or misshapen tensor is an error there.
    load_engine(
        options.model,
        options.dflash2_model,
        dtype=torch.float32,
        kv_len=None,
        max_concurrent_requests=1,
    )
    print(f"target      {options.model}")
    print(
        f"            {target.model_type}, {target.num_hidden_layers} layers, hidden "
        f"{target.hidden_size}, vocabulary {target.vocab_size}, "
        f"{target.max_position_embeddings} positions"
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
            f"{drafter.selector_rank} over {drafter.selector_top_k} candidates, weights "
            f"{_drafter_weights(options.dflash2_model)}"
        )
    print("ok          every tensor is there, none is left over, and the parts fit together")


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


def _mtp_k(options: argparse.Namespace) -> int | None:
    """How many tokens the target's own head shall propose; None: it is not asked."""
    if options.mtp == "off":
        if options.mtp_k is not None:
            raise UsageError(f"--mtp-k {options.mtp_k} is given but --mtp is off; add --mtp on")
        return None
    if options.dflash2 == "on":
        raise UsageError(
            "--mtp on and --dflash2 on: a process drafts in one way; leave one of them out"
        )
    if options.mtp_k is None:
        raise UsageError("--mtp on needs --mtp-k K, the number of tokens to propose in a round")
    mtp_k: int = options.mtp_k
    return mtp_k


def _converted(options: argparse.Namespace, drafter_dir: Path | None) -> Path | None:
    """The folder to load for the one given: a BF16 drafter is converted when it is first used."""
    if drafter_dir is None:
        return None
    # A drafter of another target is refused here, before minutes of converting it.
    check_pair(load_drafter_config(drafter_dir), load_target_config(options.model))
    return folder_to_load(drafter_dir, os.environ, say, ProgressLines(sys.stderr))


def _drafter_weights(drafter_dir: Path | None) -> str | None:
    if drafter_dir is None:
        return None
    config = load_drafter_config(drafter_dir)
    return "q8g64" if config.is_quantized else config.dtype


def _load(
    options: argparse.Namespace,
    drafter_dir: Path | None,
    *,
    max_concurrent_requests: int = 1,
    draft_until_batch: int | None = None,
) -> Engine:
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    if drafter_dir is not None and load_target_config(options.model).num_mtp_layers:
        text = "the target's own MTP head stays unused: --dflash2 on drafts in its place"
        print(f"[dflash2-load] {text}", file=sys.stderr, flush=True)
    return load_engine(
        options.model,
        drafter_dir,
        dtype=dtype,
        kv_len=options.kv_len,
        device=_device(options.device),
        max_concurrent_requests=max_concurrent_requests,
        draft_until_batch=draft_until_batch,
        mtp_k=_mtp_k(options),
    )


def _kernels(options: argparse.Namespace) -> str:
    """What computes, and why not the library in C if it is not that."""
    if (options.device, options.dtype) != ("cpu", "float32"):
        return f"torch ({options.dtype} on {options.device})"
    return kernels.description()


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "--device cuda: this torch sees no CUDA device; install a CUDA build of PyTorch, or "
            "give --device cpu"
        )
    return torch.device(name)


def _check_require_device(options: argparse.Namespace) -> None:
    if options.require_device and options.device == "cpu":
        raise UsageError(
            "--require-device needs --device cuda; on the cpu there is nothing to fall back from"
        )


def answer_once(engine: Engine) -> None:
    """A short answer to a short prompt, drafted, sampled and verified; nobody reads it."""
    request = GenerationRequest(
        prompt_ids=(0,) * 8,
        max_tokens=16,
        min_tokens=16,
        sampling=SamplingParams(temperature=1.0, seed=0),
        stop=(),
        ignore_eos=True,
    )
    for _ in engine.generate(request):
        pass


def _greeting(facts: Facts, engine: Engine, listener: socket.socket) -> str:
    names = {"dflash2": "DFlash 2", "mtp": "MTP"}
    name = names.get(facts.drafter)
    drafter = "no drafter" if name is None else f"{name}, depth {engine.depth}"
    return (
        f"dflash2: serving {facts.served_name} at {url_of(listener)} "
        f"({drafter}, {engine.max_concurrent_requests} x {engine.kv_len} positions, "
        f"{facts.dtype}, {facts.num_threads} threads, kernels: {facts.kernels})"
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
