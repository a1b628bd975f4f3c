"""Which subject of a run may be held against which of the baseline: by keys, never by name.

Names serve one purpose: to say what changed where a cell of the same name did other work.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import TypeAlias

from harness.compare.night import Night, Subject

COMPARED_FIELDS: Mapping[str, str] = {
    "engine": "engine",
    "adapter": "adapter",
    "target": "target",
    "drafter": "drafter",
    "k": "k",
    "workload": "workload",
    "load": "load",
    "concurrency": "c",
    "assignment": "assignment",
    "length": "length",
    "max_tokens": "max_tokens",
    "num_requests": "requests per repetition",
    "rate_per_s": "arrivals per second",
    "cache": "cache",
    "sampling": "sampling",
}
"""Fields of a cell that a reader can be told of, and how they are called."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A subject of the run and the same of each night that measured it; `reason`: why the two, or
    the one, cannot be compared.
    """

    new: Subject | None
    nights: tuple[Subject, ...] = ()
    reason: str | None = None

    @property
    def shown(self) -> Subject:
        """Whose names stand in the table."""
        return self.new or self.nights[-1]


def match(run: Night, nights: Sequence[Night]) -> tuple[Pair, ...]:
    """In the run's order, then what only the baseline has."""
    there = [night for night in nights if night.device_key == run.device_key]
    if not there:
        reason = f"another device: {run.device} (baseline: {nights[-1].device})"
        return tuple(Pair(new=subject, reason=reason) for subject in run.subjects)
    twins = _twins((run, *there))
    stored = _by_key(there, twins)
    asked = {_key(subject, twins) for subject in run.subjects}
    gone = {_name(subjects[-1]): subjects for key, subjects in stored.items() if key not in asked}
    pairs = [_pair(subject, stored.get(_key(subject, twins)), gone) for subject in run.subjects]
    named = {_name(subject) for subject in run.subjects}
    lost = [subjects for name, subjects in gone.items() if name not in named]
    return (*pairs, *(Pair(new=None, nights=found, reason="not in the run") for found in lost))


Key: TypeAlias = tuple[str, str | None]


def _key(subject: Subject, twins: Set[str]) -> Key:
    return subject.key, subject.variant if subject.key in twins else None


def _twins(nights: Sequence[Night]) -> Set[str]:
    """Keys that two variants of one run share (a control): there the name decides after all."""
    counts = [Counter(subject.key for subject in night.subjects) for night in nights]
    return {key for count in counts for key, number in count.items() if number > 1}


def _by_key(nights: Sequence[Night], twins: Set[str]) -> Mapping[Key, tuple[Subject, ...]]:
    found: dict[Key, tuple[Subject, ...]] = {}
    for night in nights:
        for subject in night.subjects:
            key = _key(subject, twins)
            found[key] = (*found.get(key, ()), subject)
    return found


def _name(subject: Subject) -> tuple[str, str]:
    return subject.variant, subject.work


def _pair(
    new: Subject,
    stored: tuple[Subject, ...] | None,
    gone: Mapping[tuple[str, str], tuple[Subject, ...]],
) -> Pair:
    if stored is None:
        namesakes = gone.get(_name(new), ())
        reason = _difference(new, namesakes[-1]) if namesakes else "not in the baseline"
        return Pair(new=new, nights=namesakes, reason=reason)
    if new.level == "invalid":
        return Pair(new=new, nights=stored, reason=f"invalid: {', '.join(new.verdicts)}")
    valid = tuple(subject for subject in stored if subject.level != "invalid")
    if not valid:
        reason = f"invalid in the baseline: {', '.join(stored[-1].verdicts)}"
        return Pair(new=new, nights=stored, reason=reason)
    return Pair(new=new, nights=valid)


# --- what is not the same -------------------------------------------------------------------------


def _difference(new: Subject, old: Subject) -> str:
    """Of two subjects of one name."""
    if new.cell is None or old.cell is None:
        return "its boots ran other cells"
    found = list(_differing(new, old)) or [_hidden_difference(new, old)]
    return f"not the same: {', '.join(found)}"


def _differing(new: Subject, old: Subject) -> Iterator[str]:
    if new.prompts_sha256 != old.prompts_sha256:
        yield f"prompts {_prompts(new)} (baseline: {_prompts(old)})"
    assert new.cell is not None
    assert old.cell is not None
    ours, theirs = asdict(new.cell), asdict(old.cell)
    for name, word in COMPARED_FIELDS.items():
        unknown = name == "cache" and None in (ours[name], theirs[name])  # a run of an older form
        if ours[name] != theirs[name] and not unknown:
            yield f"{word} {_said(ours[name])} (baseline: {_said(theirs[name])})"


def _prompts(subject: Subject) -> str:
    assert subject.cell is not None
    return f"{subject.cell.prompt_set} {(subject.prompts_sha256 or 'unknown')[:8]}"


def _said(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {item}" for key, item in value.items() if item is not None)
    return "none" if value is None else str(value)


def _hidden_difference(new: Subject, old: Subject) -> str:
    """Of what enters a key and stands in no field of a cell."""
    assert new.cell is not None
    assert old.cell is not None
    if new.cell.workload_key != old.cell.workload_key:
        return "the seed of its arrivals"
    if new.cell.subject_key != old.cell.subject_key:
        return "declared flags, environment or the files of a model"
    return "protocol: the definitions, retries or the transport"
