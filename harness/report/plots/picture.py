"""What a picture is before it is drawn: what it shows, and what it cannot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harness.report.plots.dark import with_dark
from harness.report.plots.style import style
from harness.store import write_whole


@dataclass(frozen=True, kw_only=True)
class Picture:
    """`plot` is its row, `name` its file; `caption` says how many observations it rests on and what
    its intervals are; `notes` name what is missing; `draw` makes the figure.
    """

    plot: str
    name: str
    alt: str
    caption: str
    notes: tuple[str, ...]
    draw: Callable[[], Figure]
    section: str | None = None  # the section it belongs to; None: it shows several


_KINDS: Mapping[str, Mapping[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 160, "metadata": {"Software": None}},
}


def save(picture: Picture, folder: Path) -> None:
    """`<name>.svg`, for light and dark surroundings, and `<name>.png`; without a date in them."""
    with style():
        figure = picture.draw()
        for kind, options in _KINDS.items():
            drawn = BytesIO()
            figure.savefig(drawn, format=kind, **options)
            data = with_dark(drawn.getvalue()) if kind == "svg" else drawn.getvalue()
            write_whole(folder / f"{picture.name}.{kind}", data)
