"""A node's side: an actor that starts the part's process, keeps it alive and hands out its files.

The actor holds the node's resources as long as it lives, so Ray lets nobody else measure there.
When it goes, whatever the reason, the process loses its stdin and stops in good order.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import msgspec

from harness import keys
from harness.cluster.bundle import Bundle, Seen, gather
from harness.cluster.part import Job
from harness.run import machine
from harness.run.processes import PROJECT

PARTS = Path(tempfile.gettempdir()) / f"dflashbench-parts-{os.getuid()}"
"""What a part writes lies here until the head has it, a second later."""

GRACE_S = 60.0
"""How long a part may take to stop its engine."""

LAST_WORDS_BYTES = 2000


@dataclass(frozen=True, kw_only=True)
class About:
    """Which machine a node is."""

    hostname_hash: str
    device_key: str
    cpu: str
    accelerators: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What is new, and whether more will come. `exit_code` is None while the process runs."""

    bundle: Bundle
    exit_code: int | None
    last_words: str


def about() -> About:
    facts = machine.machine_facts()
    return About(
        hostname_hash=facts.hostname_hash,
        device_key=keys.device_key(facts),
        cpu=facts.cpu,
        accelerators=facts.accelerators,
    )


class Node:
    """Measures one part. Its methods run one after the other."""

    def begin(self, job_json: bytes) -> None:
        """`job_json`: a `part.Job` without what is this node's to say."""
        job = msgspec.json.decode(job_json, type=Job)
        self._work_dir = PARTS / f"{job.session_id}-{uuid4().hex[:8]}"
        self._folder = self._work_dir / job.manifest.run_id
        self._work_dir.mkdir(parents=True)
        job = replace(job, work_dir=str(self._work_dir), cluster=_address())
        with open(self._work_dir / "part.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.cluster.part"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                start_new_session=True,  # Ray's signals to this worker are not the part's
            )
        self._say(msgspec.json.encode(job))

    def gather(self, seen: Seen) -> Delivery:
        """What the part wrote since `seen`; asking keeps it going."""
        exit_code = self._process.poll()  # before the files: what ended wrote all it had
        if exit_code is None:
            self._say(b"")
        return Delivery(
            bundle=gather(self._folder, seen), exit_code=exit_code, last_words=self._last_words()
        )

    def stop(self) -> None:
        """In good order; returns when its engine is gone too."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def forget(self) -> None:
        """The head has everything."""
        shutil.rmtree(self._work_dir)

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; `poll` tells with which code

    def _last_words(self) -> str:
        data = (self._work_dir / "part.log").read_bytes()[-LAST_WORDS_BYTES:]
        return data.decode(errors="replace").strip()


def _address() -> str:
    """Of the cluster that this actor is part of."""
    import ray

    return str(ray.get_runtime_context().gcs_address)
