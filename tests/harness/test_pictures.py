"""Pictures that everybody can read: any colour vision, black and white, light and dark, and any
number of variants.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from harness.analysis.summary import Summary, summarise
from harness.report import plots
from harness.report.plots import style
from harness.report.plots.bars import Bars
from harness.report.plots.captions import between
from harness.report.plots.dark import DARK, with_dark

from . import synthetic

NAMES = [f"a drafter with a long name, {number}" for number in range(1, 12)]


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Plain and eleven drafters with long names."""
    asked = synthetic.matrix(levels=(1, 2), boots=2, drafters=NAMES, repetitions=1)
    behaviours = dict.fromkeys(NAMES, synthetic.DFLASH2)
    folder = synthetic.write_run(tmp_path_factory.mktemp("results"), asked, behaviours=behaviours)
    return summarise(folder)


@pytest.fixture(scope="module")
def crossing(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """DFlash2 is ahead with one stream and behind with sixteen."""
    asked = synthetic.matrix(levels=(1, 16), boots=4)
    return summarise(synthetic.write_run(tmp_path_factory.mktemp("results"), asked))


def drawn(picture: plots.Picture) -> Figure:
    with style.style():
        figure = picture.draw()
        figure.draw_without_rendering()
    return figure


# --- colours --------------------------------------------------------------------------------------

# What each kind of colour vision makes of linear red, green and blue: Machado, Oliveira and
# Fernandes 2009, severity 1.0.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])  # D65


def linear(colour: str) -> np.ndarray:
    shares = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE 1976 L*a*b*."""
    share = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(share > 216 / 24389, np.cbrt(share), (24389 / 27 * share + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def luminance(colour: str) -> float:
    return float(TO_XYZ[1] @ linear(colour))


VARIANTS = (*style.COLOURS, *style.PLAIN_COLOURS)


def test_the_distance_of_two_colours_is_that_of_the_standard() -> None:
    """Black to white is 100, and red and green look alike to who has no red or no green cones."""
    assert np.linalg.norm(lab(linear("#FFFFFF")) - lab(linear("#000000"))) == pytest.approx(
        100, abs=0.1
    )
    seen = [lab(VISION["deuteranopia"] @ linear(colour)) for colour in ("#CC79A7", "#8A8F98")]
    assert np.linalg.norm(seen[0] - seen[1]) < 6


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(
    "palette", [VARIANTS, tuple(DARK[colour] for colour in VARIANTS)], ids=["light", "dark"]
)
def test_any_two_variants_differ_in_colour_for_every_kind_of_colour_vision(
    vision: str, palette: Sequence[str]
) -> None:
    """2.3 is a difference that can just be seen."""
    for one, two in combinations(palette, 2):
        seen = [lab(VISION[vision] @ linear(colour)) for colour in (one, two)]
        assert np.linalg.norm(seen[0] - seen[1]) > 12, (one, two)


@pytest.mark.parametrize("words", [style.INK, style.MUTED, style.BAND_INK])
def test_words_stand_out_from_the_paper_in_light_and_dark(words: str) -> None:
    """At 4.5 to 1, as WCAG 2.2 asks of text."""
    for ink, paper in ((words, style.PAPER), (DARK[words], DARK[style.PAPER])):
        lighter, darker = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) > 4.5


def test_no_two_of_twelve_variants_look_alike_in_any_kind_of_picture(twelve: Summary) -> None:
    looks = list(style.looks(twelve).values())

    assert len(looks) == 12
    assert len({(look.colour, look.marker) for look in looks}) == 12
    assert len({(look.colour, look.hatch) for look in looks}) == 12
    assert len({(look.colour, look.line) for look in looks}) == 12


def test_without_colour_the_first_seven_variants_have_markers_of_their_own(
    twelve: Summary,
) -> None:
    looks = list(style.looks(twelve).values())

    assert len({look.marker for look in looks[:7]}) == 7
    assert len({look.hatch for look in looks[:7]}) == 7


def test_a_shade_that_comes_again_gets_another_sign() -> None:
    """In turn the third would be a again, which the first of its shade has."""
    assert style.apart(["red", "blue", "red"], ("a", "b")) == ["a", "b", "b"]
    assert style.apart(["red", "blue", "grey"], ("a", "b", "c")) == ["a", "b", "c"]


# --- light and dark -------------------------------------------------------------------------------


def test_every_colour_of_a_picture_has_one_for_dark_surroundings(
    crossing: Summary, tmp_path: Path
) -> None:
    known = {colour.lower() for colour in DARK}
    for picture in plots.pictures(crossing):
        plots.save(picture, tmp_path)
        svg = (tmp_path / f"{picture.name}.svg").read_text(encoding="utf-8")
        sheet, _, body = svg.partition("</style>")
        used = set(re.findall(r"(?:fill|stroke)(?:: |=\")(#[0-9a-f]{6})", body))

        assert used <= known, picture.name
        assert "@media (prefers-color-scheme: dark)" in sheet
        assert all(f'"fill: {colour}"' in sheet for colour in used)


def test_dark_rules_hit_what_matplotlib_writes_and_come_once() -> None:
    """Colours stand in `style`, those behind a hatch in `fill`."""
    svg = b'<svg><style>*{}</style><path style="fill: #ffffff"/><rect fill="#0072b2"/></svg>'
    told = with_dark(svg).decode()

    assert told.count("@media") == 1
    assert '[style*="fill: #ffffff"], [fill="#ffffff"] {fill: #0d1117 !important}' in told
    assert '[fill="#0072b2"] {fill: #2f81c9 !important}' in told
    assert told.endswith('<path style="fill: #ffffff"/><rect fill="#0072b2"/></svg>')


# --- captions -------------------------------------------------------------------------------------


def test_every_picture_says_how_many_and_what_its_intervals_are(crossing: Summary) -> None:
    for picture in plots.pictures(crossing):
        assert re.search(r"n = \d+", picture.caption), picture.name
        assert "interval" in picture.caption.lower(), picture.name


def test_counts_that_differ_are_told_as_a_range() -> None:
    assert [between([40, 40]), between([40, 20, 30]), between([])] == ["40", "20 to 40", "0"]


def test_one_boot_says_under_its_picture_that_it_decides_nothing(tmp_path: Path) -> None:
    run = summarise(synthetic.write_run(tmp_path, synthetic.matrix(levels=(), boots=1)))
    (bars,) = plots.PLOTS["decode_rate_by_kind"](run)

    assert "n = 15 requests in 1 boot a variant" in bars.caption
    assert "(bootstrap within one boot, which decides nothing)" in bars.caption


# --- speed-up over c ------------------------------------------------------------------------------


def test_speed_up_over_c_stands_beside_the_aggregate_with_the_band_of_the_crossover(
    crossing: Summary,
) -> None:
    (picture,) = plots.PLOTS["speedup_by_concurrency"](crossing)
    figure = drawn(picture)
    (wave, closed) = figure.axes

    assert [axes.get_yscale() for axes in (wave, closed)] == ["log", "log"]
    assert picture.section == plots.PLOTS["throughput_by_concurrency"](crossing)[0].section
    words = {text.get_text() for text in wave.findobj(Text)}
    assert "DFlash2 falls behind:\nc = 1 to 16" in words
    assert "plain" not in words  # it is what the others are over
    # an ahead by half and a behind by half are as far from 1x
    up, down = (wave.transData.transform((1, at))[1] for at in (1.5, 1 / 1.5))
    middle = wave.transData.transform((1, 1.0))[1]
    assert up - middle == pytest.approx(middle - down)


def test_a_caption_explains_a_band_only_where_there_is_one(
    crossing: Summary, tmp_path: Path
) -> None:
    alone = summarise(synthetic.write_run(tmp_path, synthetic.matrix(levels=(1, 2), drafters=())))
    (with_band,) = plots.PLOTS["throughput_by_concurrency"](crossing)
    (without,) = plots.PLOTS["throughput_by_concurrency"](alone)

    assert with_band.caption.endswith(
        "A yellow band is where a drafter falls behind its reference."
    )
    assert "yellow" not in without.caption


def test_without_a_reference_there_is_no_speed_up_to_draw(tmp_path: Path) -> None:
    run = summarise(synthetic.write_run(tmp_path, synthetic.matrix(levels=(1, 2), drafters=())))

    assert plots.PLOTS["speedup_by_concurrency"](run) == []
    assert len(plots.PLOTS["throughput_by_concurrency"](run)) == 1


# --- room -----------------------------------------------------------------------------------------


def boxes(figure: Figure, texts: Sequence[Text]) -> list[Bbox]:
    return [text.get_window_extent() for text in texts if text.get_text() and text.get_visible()]


def test_twelve_long_names_stay_within_the_picture_and_apart(twelve: Summary) -> None:
    for picture in plots.pictures(twelve):
        figure = drawn(picture)
        for legend in figure.legends:
            names = boxes(figure, legend.get_texts())
            assert not any(one.overlaps(two) for one, two in combinations(names, 2)), picture.name
            assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 + 1 for box in names), picture.name


def test_axes_keep_their_width_whatever_the_words_above_them(twelve: Summary) -> None:
    for picture in plots.pictures(twelve):
        figure = drawn(picture)
        width = sum(axes.get_position().width for axes in figure.axes)
        assert width > 0.4, picture.name


def test_labels_of_bars_do_not_touch(crossing: Summary) -> None:
    (picture,) = plots.PLOTS["decode_rate_by_kind"](crossing)
    (axes,) = drawn(picture).axes
    labels = [text for text in axes.texts if re.fullmatch(r"[\d.]+x?", text.get_text())]
    found = boxes(axes.figure, labels)  # type: ignore[arg-type]

    assert len(found) == 12
    assert not any(one.overlaps(two) for one, two in combinations(found, 2))


def test_bars_too_thin_for_a_label_have_none_and_the_caption_says_so(twelve: Summary) -> None:
    assert not Bars(kinds=("all", *"abcde"), num_variants=12).have_labels
    assert Bars(kinds=("all", *"abcde"), num_variants=5).have_labels
    (picture,) = plots.PLOTS["decode_rate_by_kind"](twelve)

    assert "too many to be labelled" in picture.caption


def test_a_kind_of_its_own_is_drawn_once(tmp_path: Path) -> None:
    """Of a single kind, all kinds are that one."""
    asked = synthetic.matrix(levels=(), boots=2)
    only = replace(
        asked.workloads[0].prompts,
        prompts=tuple(p for p in asked.workloads[0].prompts.prompts if p.kind == "code"),
    )
    asked = synthetic.matrix(levels=(), boots=2, prompts=only)
    (picture,) = plots.PLOTS["decode_rate_by_kind"](summarise(synthetic.write_run(tmp_path, asked)))
    (axes,) = drawn(picture).axes

    assert [label.get_text() for label in axes.get_xticklabels()] == ["all kinds"]
