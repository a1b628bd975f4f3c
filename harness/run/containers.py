"""docker or podman, by its command line: what a container is run from, and ended for certain.

A container is run in the foreground, so that its output is the output of a process of ours and its
end is that process's. It carries the run and the boot as labels and stays when it ended: whatever a
killed harness left is found by the labels and removed. Images are never pulled. Knows nothing of
engines and how they are asked.
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.errors import BootError
from harness.records import Container, Engine, Overlaid, Where

PROGRAMS = ("docker", "podman")  # in order; their command lines agree in all that is used here

_ANSWER_S = 60.0  # how long it may take to anything but a start or a stop
_MODELS = "/models"


def program() -> str:
    found = next((name for name in PROGRAMS if shutil.which(name)), None)
    if found is None:
        raise BootError(
            "an engine of kind container needs docker or podman, and neither is on the PATH; "
            "install one, or start the server yourself and write `kind: attach`"
        )
    return found


# --- what it is run from --------------------------------------------------------------------------


def described(engine: Engine, where: Where, models: Mapping[str, Path]) -> Container:
    """The container as it will be started; refused where it would be another than was planned.

    models: place in the container: file or folder here.
    """
    name = program()
    _refuse_changed(engine.overlaid)
    _refuse_missing(engine)
    image_id, repo_digests = _image(name, engine)
    return Container(
        program=name,
        name=f"dflashbench-{where.run_id}-{where.boot_id}",
        image=str(engine.image),
        image_id=image_id,
        repo_digests=repo_digests,
        options=engine.container_options,
        mounts={
            **{inside: Path(here).name for here, inside in engine.mounts.items()},
            **{inside: path.name for inside, path in models.items()},
        },
        overlaid={each.target: each.sha256 for each in engine.overlaid},
    )


def refuse_unstartable(engine: Engine) -> None:
    """What would end a start before there is anything of the engine in it."""
    _refuse_missing(engine)
    _image(program(), engine)


def place_of(role: str, path: Path) -> str:
    """Where a model that is a file or folder here lies inside: /models/target, .../drafter."""
    return f"{_MODELS}/{role}{path.suffix if path.is_file() else ''}"


def _refuse_changed(overlaid: Iterable[Overlaid]) -> None:
    for each in overlaid:
        if _sha256(Path(each.path)) != each.sha256:
            raise BootError(
                f"{each.path}, which lies over the image's {each.target}, changed since this run "
                "began, so the rest would measure another engine; restore it, or start a new run"
            )


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _refuse_missing(engine: Engine) -> None:
    """docker would make an empty folder, and own it as root."""
    missing = next((here for here in engine.mounts if not Path(here).exists()), None)
    if missing is not None:
        raise BootError(
            f"engine {engine.name!r}: `mounts` names {missing}, and nothing is there; make it or "
            "correct the path"
        )


def _image(name: str, engine: Engine) -> tuple[str, tuple[str, ...]]:
    """Its id, and the digests by which registries know it."""
    asked = _ask(name, "image", "inspect", str(engine.image))
    if asked.returncode != 0:
        raise BootError(
            f"engine {engine.name!r}: `{name} image inspect {engine.image}` says "
            f"{asked.stderr.strip()!r}; fetch the image first: {name} pull {engine.image}"
        )
    (told,) = json.loads(asked.stdout)
    return told["Id"], tuple(told.get("RepoDigests") or ())


# --- start ----------------------------------------------------------------------------------------


def run_words(
    container: Container, engine: Engine, where: Where, models: Mapping[str, Path], port: int
) -> tuple[str, ...]:
    """All that stands before the container's own command; values of variables are left out, they
    are inherited.
    """
    mounts = [
        *(_mount(Path(here), inside) for here, inside in engine.mounts.items()),
        *(_mount(path, inside, read_only=True) for inside, path in models.items()),
        *(_mount(Path(each.path), each.target, read_only=True) for each in engine.overlaid),
    ]
    return (
        *(container.program, "run", "--name", container.name, "--pull", "never"),
        *(word for label in _labels(where) for word in ("--label", label)),
        *("--publish", f"127.0.0.1:{port}:{port}"),
        *(word for mount in mounts for word in ("--mount", mount)),
        *(word for name in engine.environment for word in ("--env", name)),
        *container.options,
        container.image,
    )


def _mount(here: Path, inside: str, *, read_only: bool = False) -> str:
    return f"type=bind,source={here.resolve()},target={inside}{',readonly' if read_only else ''}"


def pid(container: Container) -> int | None:
    """Of its first process, as the machine knows it; None while it does not run."""
    asked = _ask(container.program, "inspect", "--format", "{{.State.Pid}}", container.name)
    said = asked.stdout.strip()
    return int(said) if said.isdecimal() and said != "0" else None


# --- stop -----------------------------------------------------------------------------------------


def remove(container: Container, where: Where, *, grace_s: float) -> None:
    """SIGTERM, time to end, SIGKILL; then its remains. All that bear its labels."""
    for name in _labelled(container, where):
        patience_s = grace_s + _ANSWER_S
        _ask(container.program, "stop", "-t", f"{grace_s:.0f}", name, patience_s=patience_s)
        _ask(container.program, "rm", "--force", name)
    left = _labelled(container, where)
    if left:
        raise BootError(
            f"container {container.name} cannot be removed; see `{container.program} inspect "
            f"{left[0]}` and remove it"
        )


def is_there(container: Container, where: Where) -> bool:
    """Running or ended, but not removed."""
    return bool(_labelled(container, where))


def _labelled(container: Container, where: Where) -> tuple[str, ...]:
    filters = [word for label in _labels(where) for word in ("--filter", f"label={label}")]
    asked = _ask(container.program, "ps", "--all", "--quiet", *filters)
    if asked.returncode != 0:
        raise BootError(
            f"whether container {container.name} is still there cannot be told: "
            f"`{container.program} ps` says {asked.stderr.strip()!r}"
        )
    return tuple(asked.stdout.split())


def _labels(where: Where) -> tuple[str, str]:
    return f"dflashbench.run={where.run_id}", f"dflashbench.boot={where.boot_id}"


def _ask(name: str, *words: str, patience_s: float = _ANSWER_S) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [name, *words], capture_output=True, text=True, timeout=patience_s, check=False
        )
    except FileNotFoundError:
        raise BootError(f"{name}, which this run's containers need, is not on the PATH") from None
    except subprocess.TimeoutExpired:
        raise BootError(
            f"`{name} {' '.join(words)}` does not answer in {patience_s:g} s; look after its daemon"
        ) from None
