"""What a picture is before it is drawn: what it shows, and what it cannot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harness.report.plots.style import style
from harness.store import write_whole


@dataclass(frozen=True, kw_only=True)
class Picture:
    """`plot` is its row, `name` its file; `notes` stand under it; `draw` makes the figure."""

    plot: str
    name: str
    alt: str
    notes: tuple[str, ...]
    draw: Callable[[], Figure]
    section: str | None = None  # the section it belongs to; None: it shows several


_KINDS: Mapping[str, Mapping[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 160, "metadata": {"Software": None}},
}


def save(picture: Picture, folder: Path) -> None:
    """`<name>.svg` and `<name>.png`, without a date in them."""
    with style():
        figure = picture.draw()
        for kind, options in _KINDS.items():
            drawn = BytesIO()
            figure.savefig(drawn, format=kind, **options)
            write_whole(folder / f"{picture.name}.{kind}", drawn.getvalue())
