"""The dark half of a picture: one SVG carries both, and the reader's page or system chooses.

Knows colours alone. A picture that is shown where nobody asks for dark, or printed, is the light
one.
"""

from collections.abc import Mapping

from harness.report.plots import style

DARK: Mapping[str, str] = {
    style.PAPER: "#0D1117",
    style.INK: "#E6EDF3",
    style.MUTED: "#9198A1",
    style.GRID: "#30363D",
    style.BAND: "#BB8009",
    style.BAND_INK: "#E3B341",
    **dict(
        zip(
            style.COLOURS,
            ("#2F81C9", "#F0743E", "#2DBE91", "#E08CBD", "#F2B93B", "#8AD0F5"),
            strict=True,
        )
    ),
    **dict(zip(style.PLAIN_COLOURS, ("#7D848E", "#E2E6EB", "#555C66"), strict=True)),
}
"""Light -> dark. Shades lighter than they are on paper; of the greys the darkest becomes the
lightest.
"""


def with_dark(svg: bytes) -> bytes:
    """The picture with a style sheet for dark surroundings. Matplotlib writes every colour into
    `style`, and into `fill` behind a hatch.
    """
    rules = "".join(_rules(light.lower(), dark.lower()) for light, dark in DARK.items())
    sheet = f"\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n"
    return svg.replace(b"</style>", f"{sheet}</style>".encode(), 1)


def _rules(light: str, dark: str) -> str:
    return (
        f'[style*="fill: {light}"], [fill="{light}"] {{fill: {dark} !important}}\n'
        f'[style*="stroke: {light}"] {{stroke: {dark} !important}}\n'
    )
