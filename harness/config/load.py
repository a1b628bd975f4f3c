"""A matrix file to a `records.Matrix`: every mistake of the file, each with its place.

Keys are checked first, by `entries`. Only a file whose keys are right is checked for what they say
together: names that must exist, differ or fit, and the files they stand for. Nothing is started and
no model is opened; files to lay over a container's image are, for what they hold is what it is.
"""

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError

from harness import keys, prompts
from harness.adapters import ADAPTERS
from harness.config.entries import (
    DEVICE_FACTS,
    WORKLOADS,
    ConcurrencyEntry,
    EngineEntry,
    Entry,
    MatrixEntry,
    ModelEntry,
    TimeoutsEntry,
    VariantEntry,
    WorkloadEntry,
)
from harness.config.figures import GOALS
from harness.config.tree import (
    Section,
    nearest,
    place_at,
    project_of,
    read_yaml,
    resolve,
    shown,
    written_at,
)
from harness.errors import ConfigError, Place
from harness.records import (
    Drafter,
    Engine,
    LosslessnessRules,
    Matrix,
    Model,
    Overlaid,
    Prompt,
    PromptSet,
    Sampling,
    Schedule,
    Timeouts,
    Variant,
    Workload,
)

Location: TypeAlias = tuple[str | int, ...]

E = TypeVar("E", bound=Entry)

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class _Mistake:
    message: str
    place: Place


@dataclass(frozen=True, kw_only=True)
class _File:
    """A matrix whose keys are right, and where it lies."""

    path: Path
    project: Path
    root: Section
    entry: MatrixEntry

    def mistake(self, message: str, *location: str | int) -> _Mistake:
        return _Mistake(message=message, place=place_at(self.root, location))


def load_matrix(path: Path) -> Matrix:
    """The matrix in `path`, checked. Mistakes of a kind are told together, in the file's order."""
    project = project_of(path)
    root = read_yaml(path, project)
    file = _File(path=path, project=project, root=root, entry=_check_keys(MatrixEntry, root))
    _refuse([mistake for check in _CHECKS for mistake in check(file)])
    return _matrix(file)


def _refuse(mistakes: Sequence[_Mistake]) -> None:
    if not mistakes:
        return
    first, *others = sorted(mistakes, key=lambda m: (m.place.path, m.place.line, m.place.column))
    lines = [first.message, *(f"{other.place}: {other.message}" for other in others)]
    raise ConfigError("\n".join(lines), place=first.place)


# --- keys -----------------------------------------------------------------------------------------


def _check_keys(kind: type[E], root: Section) -> E:
    try:
        return kind.model_validate(root)
    except ValidationError as error:
        _refuse([_mistake(dict(details), root) for details in error.errors()])
        raise


def _mistake(details: dict[str, Any], root: Section) -> _Mistake:
    location: Location = details["loc"]
    context: dict[str, Any] = details.get("ctx", {})
    if details["type"] == "key":
        place = place_at(root, (*location, context["key"]), key=True)
        return _Mistake(message=details["msg"], place=place)
    if details["type"] == "missing":
        message = f"`{location[-1]}` is missing here"
    elif details["type"] == "union_tag_not_found":
        message = f"`kind` is missing here: one of {', '.join(WORKLOADS)}"
    elif details["type"] == "union_tag_invalid":
        location = (*location, "kind")
        message = _not_one_of("kind", context["tag"], WORKLOADS)
    elif details["type"] == "literal_error":
        words = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        message = _not_one_of(location[-1], details["input"], words)
    else:
        message = f"`{_quote(details, root)}` {_demand(details)}"
    return _Mistake(message=message, place=place_at(root, location))


def _quote(details: dict[str, Any], root: Section) -> str:
    """`key: value` for a value of one word that may be shown; else the key."""
    location: Location = details["loc"]
    name = next(step for step in reversed(location) if isinstance(step, str))
    written = written_at(root, location)
    if isinstance(written, bool):
        written = str(written).lower()
    hidden = details["type"] == "secret" or isinstance(written, dict | list)
    return name if hidden else f"{name}: {written}"


def _not_one_of(key: str | int, written: Any, words: Sequence[str]) -> str:
    return f"`{key}: {written}` is not one of {', '.join(words)}{nearest(str(written), words)}"


def _demand(details: dict[str, Any]) -> str:
    """What a value must be, in words that follow it."""
    kind = details["type"]
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"must be {words} {details['ctx'][bound]:g}"
    return _DEMANDS.get(kind, str(details["msg"]))


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
}
_DEMANDS = {
    "too_short": "must not be empty",
    "list_type": "must be a list (`[a, b]`)",
    "dict_type": "must hold keys and values (`key: value`)",
    "string_pattern_mismatch": "must be made of letters, digits, `.`, `_` and `-`",
}


# --- what keys say together -----------------------------------------------------------------------


def _variants_named_apart(file: _File) -> Iterator[_Mistake]:
    seen: dict[str, str] = {}
    for number, variant in enumerate(file.entry.variants):
        for name in _names(variant):
            slug = keys.slug(name)
            if not keys.slug(variant.name):
                message = f"`name: {name}` needs a letter or digit of ASCII, for its cells' ids"
            elif slug not in seen:
                seen[slug] = name
                continue
            elif seen[slug] == name:
                message = f"`name: {name}` names two variants; rename one"
            else:
                message = (
                    f"`name: {name}` and `{seen[slug]}` would both have cells named "
                    f"{slug}-...; let them differ by a letter or digit"
                )
            yield file.mistake(message, "variants", number, "name")


def _engines_exist(file: _File) -> Iterator[_Mistake]:
    for number, variant in enumerate(file.entry.variants):
        if variant.engine not in file.entry.engines:
            message = _unknown("engine", variant.engine, file.entry.engines, "`engines:` has")
            yield file.mistake(message, "variants", number, "engine")


_NEEDED = {"process": ("command",), "container": ("image", "command"), "attach": ("url",)}
_BELONGING = {
    "command": ("process", "container"),
    "port": ("process", "container"),
    "image": ("container",),
    "container_options": ("container",),
    "mounts": ("container",),
    "overlay": ("container",),
    "url": ("attach",),
}


def _engines_can_be_used(file: _File) -> Iterator[_Mistake]:
    for name, engine in file.entry.engines.items():
        if engine.adapter not in ADAPTERS:
            message = _unknown("adapter", engine.adapter, ADAPTERS, "there are")
            yield file.mistake(message, "engines", name, "adapter")
        for key in _NEEDED[engine.kind]:
            if not getattr(engine, key):
                message = f"engine `{name}` of kind {engine.kind} needs `{key}`"
                yield file.mistake(message, "engines", name)
        for key, kinds in _BELONGING.items():
            if getattr(engine, key) and engine.kind not in kinds:
                message = f"`{key}` means nothing for an engine of kind {engine.kind}; remove it"
                yield file.mistake(message, "engines", name, key)


def _overlays_exist(file: _File) -> Iterator[_Mistake]:
    for name, engine in file.entry.engines.items():
        for written in engine.overlay:
            if not _here(written, file).exists():
                message = (
                    f"`{written}`: there is no {_here(written, file)} to lay over the image; fetch "
                    "it, or correct the path"
                )
                yield file.mistake(message, "engines", name, "overlay", written)


def _references_exist(file: _File) -> Iterator[_Mistake]:
    names = [name for variant in file.entry.variants for name in _names(variant)]
    for number, variant in enumerate(file.entry.variants):
        if variant.reference is None:
            continue
        if variant.reference == variant.name:
            message = f"`reference: {variant.reference}` is the variant itself; leave the key out"
        elif variant.reference not in names:
            message = _unknown("reference", variant.reference, names, "variants are")
        else:
            continue
        yield file.mistake(message, "variants", number, "reference")


def _control_exists(file: _File) -> Iterator[_Mistake]:
    control = file.entry.schedule.control
    names = [name for variant in file.entry.variants for name in _names(variant)]
    if control is not None and control not in names:
        message = _unknown("control", control, names, "variants are")
        yield file.mistake(message, "schedule", "control")


def _goals_are_figures(file: _File) -> Iterator[_Mistake]:
    for name in file.entry.goals:
        if name not in GOALS:
            message = f"no figure is called `{name}`{nearest(name, GOALS)}; docs/figures.md has all"
            yield _Mistake(message=message, place=place_at(file.root, ("goals", name), key=True))


def _device_facts_are_known_or_far(file: _File) -> Iterator[_Mistake]:
    """A key of one's own is kept; one that is nearly ours would be kept, too, and never asked."""
    for name in file.entry.device:
        known = {fact.casefold(): fact for fact in DEVICE_FACTS}
        close = difflib.get_close_matches(name.casefold(), known, n=1, cutoff=0.85)
        if name not in DEVICE_FACTS and close:
            message = f"`{name}` is read by nothing; did you mean `{known[close[0]]}`?"
            yield _Mistake(message=message, place=place_at(file.root, ("device", name), key=True))


def _warmup_passes_have_a_warmup(file: _File) -> Iterator[_Mistake]:
    for number, workload in enumerate(file.entry.workloads):
        if workload.warmup is None and "warmup_passes" in workload.model_fields_set:
            message = "`warmup_passes` needs `warmup`: name a prompt set, or remove it"
            yield file.mistake(message, "workloads", number, "warmup_passes")


def _models_exist(file: _File) -> Iterator[_Mistake]:
    for number, variant in enumerate(file.entry.variants):
        places: list[tuple[str, Location]] = [(variant.target, ("target",))]
        if variant.drafter and variant.drafter.model is not None:
            places.append((variant.drafter.model, ("drafter", "model")))
        for written, location in places:
            try:
                _model(written, file)
            except ConfigError as error:
                if error.place is None:
                    yield file.mistake(str(error), "variants", number, *location)
                else:  # the mistake stands in the model's own file
                    raise


def _prompt_sets_exist(file: _File) -> Iterator[_Mistake]:
    known = prompts.prompt_set_names(_prompts_dir(file))
    for number, workload in enumerate(file.entry.workloads):
        for key in ("prompts", "warmup"):
            written = getattr(workload, key)
            if written is not None and written not in known:
                message = _unknown("prompt set", written, known, f"{shown(_prompts_dir(file))} has")
                yield file.mistake(message, "workloads", number, key)


def _warmups_are_other_prompts(file: _File) -> Iterator[_Mistake]:
    known = prompts.prompt_set_names(_prompts_dir(file))
    for number, workload in enumerate(file.entry.workloads):
        if workload.warmup not in known or workload.prompts not in known:
            continue
        measured = {_sent(prompt): prompt for prompt in _prompt_set(workload.prompts, file).prompts}
        for prompt in _prompt_set(workload.warmup, file).prompts:
            if _sent(prompt) in measured:
                message = (
                    f"`warmup: {workload.warmup}` holds the measured prompt "
                    f"`{measured[_sent(prompt)].prompt_id}`, which would then run warm; take others"
                )
                yield file.mistake(message, "workloads", number, "warmup")


def _levels_rise(file: _File) -> Iterator[_Mistake]:
    for number, workload in enumerate(file.entry.workloads):
        levels = workload.levels if isinstance(workload, ConcurrencyEntry) else []
        for index, (before, level) in enumerate(pairwise(levels), start=1):
            if level <= before:
                message = f"level {level} stands after {before}; write each once, rising"
                yield file.mistake(message, "workloads", number, "levels", index)


def _counts_fit_their_loads(file: _File) -> Iterator[_Mistake]:
    for number, workload in enumerate(file.entry.workloads):
        if not isinstance(workload, ConcurrencyEntry) or workload.num_requests is None:
            continue
        where: Location = ("workloads", number, "num_requests")
        if workload.load == "wave":
            message = "`num_requests` means nothing for waves, each has c requests; remove it"
            yield file.mistake(message, *where)
        elif workload.load == "closed" and workload.num_requests < max(workload.levels):
            message = (
                f"`num_requests: {workload.num_requests}` cannot keep {max(workload.levels)} in "
                "flight; write at least four times the highest level"
            )
            yield file.mistake(message, *where)


def _rates_belong_to_arrivals(file: _File) -> Iterator[_Mistake]:
    for number, workload in enumerate(file.entry.workloads):
        if not isinstance(workload, ConcurrencyEntry):
            continue
        where: Location = ("workloads", number)
        if workload.load in ("wave", "closed"):
            if workload.rate_per_s is not None:
                message = (
                    f"`rate_per_s` means nothing for `load: {workload.load}`; remove it, or write "
                    "`load: constant` or `load: poisson`"
                )
                yield file.mistake(message, *where, "rate_per_s")
            continue
        for key, example in (("rate_per_s", 2), ("num_requests", 100)):
            if getattr(workload, key) is None:
                message = f"`load: {workload.load}` needs `{key}`, for example `{key}: {example}`"
                yield file.mistake(message, *where)


def _limits_leave_the_load_as_it_is(file: _File) -> Iterator[_Mistake]:
    limits = {
        name: engine.max_rate_per_s
        for name, engine in file.entry.engines.items()
        if engine.max_rate_per_s is not None
    }
    for name in limits:
        if file.entry.engines[name].kind == "process":
            message = (
                "`max_rate_per_s` is for servers that are not ours (`kind: attach`); remove it"
            )
            yield file.mistake(message, "engines", name, "max_rate_per_s")
    used = {variant.engine for variant in file.entry.variants}
    for name in sorted(limits.keys() & used):
        for number, workload in enumerate(file.entry.workloads):
            if _is_distorted(workload, limits[name]):
                message = (
                    f"`max_rate_per_s: {limits[name]:g}` of engine `{name}` would distort this "
                    "load; take `kind: generate`, or `load: constant` with a rate_per_s of at most "
                    f"{limits[name]:g}"
                )
                yield file.mistake(message, "workloads", number)


def _is_distorted(workload: WorkloadEntry, limit_per_s: float) -> bool:
    """Evenly spaced sends leave one request at a time and evenly spaced arrivals as they are."""
    if not isinstance(workload, ConcurrencyEntry):
        return False
    return workload.load != "constant" or (workload.rate_per_s or 0.0) > limit_per_s


def _boots_are_even(file: _File) -> Iterator[_Mistake]:
    schedule = file.entry.schedule
    if schedule.order == "abba" and schedule.boots % 2:
        message = (
            f"`boots: {schedule.boots}` with `order: abba` leaves the machine's drift on one side; "
            f"write {schedule.boots + 1}, or `order: listed`"
        )
        yield file.mistake(message, "schedule", "boots")


_CHECKS: tuple[Callable[[_File], Iterator[_Mistake]], ...] = (
    _variants_named_apart,
    _engines_exist,
    _engines_can_be_used,
    _overlays_exist,
    _references_exist,
    _control_exists,
    _goals_are_figures,
    _device_facts_are_known_or_far,
    _warmup_passes_have_a_warmup,
    _models_exist,
    _prompt_sets_exist,
    _warmups_are_other_prompts,
    _levels_rise,
    _counts_fit_their_loads,
    _rates_belong_to_arrivals,
    _limits_leave_the_load_as_it_is,
    _boots_are_even,
)


def _unknown(what: str, written: str, known: Iterable[str], they: str) -> str:
    names = ", ".join(known) or "none"
    return f"unknown {what} `{written}`{nearest(written, known)}; {they}: {names}"


def _sent(prompt: Prompt) -> tuple[tuple[str, str], ...]:
    return tuple((message["role"], message["content"]) for message in prompt.messages)


# --- what names stand for -------------------------------------------------------------------------


def _prompts_dir(file: _File) -> Path:
    return file.project / "prompts"


def _prompt_set(name: str, file: _File) -> PromptSet:
    return prompts.load_prompt_set(prompts.prompt_set_path(name, _prompts_dir(file)))


def _model(written: str, file: _File) -> Model:
    """A name from configs/models, else a folder or a GGUF file, else a hub name as it is."""
    models_dir = file.project / "configs" / "models"
    described = models_dir / f"{written}.yaml"
    if described.is_file():
        section = read_yaml(described, file.project)
        entry = _check_keys(ModelEntry, section)
        path = _model_path(entry.path, described, section, file.project)
        return Model(name=written, path=path, published=entry.published)
    folder = resolve(written, beside=file.path, project=file.project)
    if _holds_model(folder):
        return Model(name=written, path=shown(folder))
    if _HUB_NAME.fullmatch(written):
        return Model(name=written, path=written)
    known = sorted(path.stem for path in models_dir.glob("*.yaml"))
    raise ConfigError(_unknown("model", written, known, f"{shown(models_dir)} has"))


def _holds_model(path: Path) -> bool:
    return path.is_dir() or (path.suffix == ".gguf" and path.is_file())


def _model_path(written: str, beside: Path, section: Section, project: Path) -> str:
    folder = resolve(written, beside=beside, project=project)
    if _holds_model(folder):
        return shown(folder)
    if _HUB_NAME.fullmatch(written):
        return written
    raise ConfigError(
        f"`path: {written}`: there is no folder {shown(folder)}",
        place=place_at(section, ("path",)),
    )


# --- the matrix -----------------------------------------------------------------------------------


def _matrix(file: _File) -> Matrix:
    entry = file.entry
    return Matrix(
        name=entry.name,
        path=shown(file.path),
        purpose=entry.purpose,
        variants=tuple(each for variant in entry.variants for each in _swept(variant, file)),
        workloads=tuple(_workload(workload, file) for workload in entry.workloads),
        sampling=Sampling(**entry.sampling.model_dump()),
        schedule=Schedule(**entry.schedule.model_dump()),
        held_constant=entry.held_constant,
        device=entry.device,
        goals=entry.goals,
        transport=entry.client.transport,
        rate_ceiling_tok_per_s=entry.client.rate_ceiling_tok_per_s,
        losslessness=LosslessnessRules(**entry.losslessness.model_dump()),
    )


def _swept(entry: VariantEntry, file: _File) -> Iterator[Variant]:
    """One, or one for each of its drafter's depths."""
    variant = _variant(entry, file)
    depths = entry.drafter.depths if entry.drafter else []
    if variant.drafter is None or not depths:
        yield variant
        return
    for name, k in zip(_names(entry), depths, strict=True):
        yield replace(variant, name=name, drafter=replace(variant.drafter, k=k))


def _names(entry: VariantEntry) -> list[str]:
    """Of the variants that an entry stands for."""
    depths = entry.drafter.depths if entry.drafter else []
    return [f"{entry.name} k={k}" for k in depths] or [entry.name]


def _variant(entry: VariantEntry, file: _File) -> Variant:
    drafter = entry.drafter
    return Variant(
        name=entry.name,
        engine=_engine(entry.engine, file.entry.engines[entry.engine], file),
        target=_model(entry.target, file),
        drafter=None
        if drafter is None
        else Drafter(
            method=drafter.method,
            model=None if drafter.model is None else _model(drafter.model, file),
            k=drafter.k,
        ),
        flags=entry.flags,
        reference=entry.reference,
    )


def _engine(name: str, entry: EngineEntry, file: _File) -> Engine:
    values = entry.model_dump(
        exclude={"command", "metrics_urls", "timeouts", "container_options", "mounts", "overlay"}
    )
    return Engine(
        name=name,
        command=tuple(entry.command),
        metrics_urls=tuple(entry.metrics_urls),
        timeouts=_timeouts(entry.timeouts),
        container_options=tuple(entry.container_options),
        mounts={str(_here(here, file)): inside for here, inside in entry.mounts.items()},
        overlaid=tuple(_overlaid(entry, file)),
        **values,
    )


def _here(written: str, file: _File) -> Path:
    home = Path(written).expanduser()
    return resolve(str(home), beside=file.path, project=file.project).resolve()


def _overlaid(entry: EngineEntry, file: _File) -> Iterator[Overlaid]:
    """Each file alone: a folder that is mounted hides all that the image has there."""
    for written, place in entry.overlay.items():
        root = _here(written, file)
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                inside = PurePosixPath(place, path.relative_to(root).as_posix())
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                yield Overlaid(path=str(path), target=str(inside), sha256=digest)


def _timeouts(entry: TimeoutsEntry) -> Timeouts:
    return Timeouts(**entry.model_dump())


def _workload(entry: WorkloadEntry, file: _File) -> Workload:
    values = entry.model_dump(exclude={"prompts", "warmup", "levels", "timeouts"})
    if isinstance(entry, ConcurrencyEntry):
        values["levels"] = tuple(entry.levels)
    return Workload(
        prompts=_prompt_set(entry.prompts, file),
        warmup=None if entry.warmup is None else _prompt_set(entry.warmup, file),
        timeouts=None if entry.timeouts is None else _timeouts(entry.timeouts),
        **values,
    )
