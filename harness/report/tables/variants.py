"""What varied: each variant's engine, models and settings, and the command that started it."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.summary import Summary
from harness.cell_view import CellView
from harness.records import Boot
from harness.report import format as fmt
from harness.report.tables.table import Entry, Table, label

_SHOWN_ELSEWHERE = ("target", "drafter", "drafter_model", "k")


def variants(summary: Summary) -> list[Table]:
    """One row each, in the matrix's order; settings that are equal for all are left to the text."""
    first = {view.cell.variant: view for view in reversed(summary.data.views)}
    views = [
        first[name] for name in dict.fromkeys(view.cell.variant for view in summary.data.views)
    ]
    own = _own_settings([_settings(summary, view) for view in views])
    return [
        Table(
            name="variants",
            title="What varies",
            columns=(
                "variant",
                "engine",
                "target",
                "drafter",
                "its checkpoint",
                "k",
                "settings",
                "speed-up over",
            ),
            rows=tuple(_row(view, settings) for view, settings in zip(views, own, strict=True)),
            num_labels=8,
        )
    ]


def _row(view: CellView, settings: Mapping[str, Any]) -> tuple[Entry, ...]:
    cell = view.cell
    told = ", ".join(f"{name} {value}" for name, value in settings.items())
    reference = view.reference.cell.variant if view.reference else cell.reference_reason
    return (
        label(cell.variant),
        label(cell.engine),
        label(cell.target),
        label(cell.drafter or fmt.DASH),
        label(cell.drafter_model or fmt.DASH),
        label(fmt.DASH if cell.k is None else str(cell.k)),
        label(told or fmt.DASH),
        label(reference or fmt.DASH),
    )


def _settings(summary: Summary, view: CellView) -> Mapping[str, Any]:
    """Of its last boot: what was wanted, beside the models, and the environment that we set."""
    boots = [boot for boot in summary.data.boots if boot.variant == view.cell.variant]
    if not boots:
        return {}
    boot = boots[-1]
    wanted = {name: value for name, value in boot.wanted.items() if name not in _SHOWN_ELSEWHERE}
    return {**wanted, **boot.environment}


def _own_settings(settings: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Without what all of them have alike."""
    shared = {
        name
        for name, value in settings[0].items()
        if all(name in other and other[name] == value for other in settings)
    }
    return [
        {name: value for name, value in each.items() if name not in shared} for each in settings
    ]


def setup(summary: Summary) -> list[tuple[str, str]]:
    """Variant and the command line of its last boot, as it can be typed again."""
    last: dict[str, Boot] = {boot.variant: boot for boot in summary.data.boots}
    return [(variant, _command(boot)) for variant, boot in last.items() if boot.argv]


def _command(boot: Boot) -> str:
    words = [f"{name}={_quoted(value)}" for name, value in boot.environment.items()]
    return " ".join([*words, *(_quoted(word) for word in boot.argv)])


def _quoted(word: str) -> str:
    """For a POSIX shell; the placeholder of our own interpreter stays readable."""
    safe = word and all(sign.isalnum() or sign in "@%+=:,./-_{}" for sign in word)
    return word if safe else "'" + word.replace("'", "'\"'\"'") + "'"
