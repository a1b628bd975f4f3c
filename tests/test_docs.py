"""Every relative link of the documents leads somewhere, to the heading too."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "*/README.md", "engines/**/*.md", "tests/**/README.md")
    for path in CHECKOUT.glob(pattern)
    if not path.relative_to(CHECKOUT).parts[0].startswith((".", "build"))
)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_ELSEWHERE = ("http://", "https://", "mailto:")


def links(document: Path) -> Iterator[str]:
    text = _CODE.sub("", document.read_text(encoding="utf-8"))
    yield from (link for link in _LINK.findall(text) if not link.startswith(_ELSEWHERE))


def anchors(document: Path) -> set[str]:
    """As GitHub makes them: lower case, spaces to hyphens, other signs away."""
    found: dict[str, int] = {}
    text = re.sub(r"^(```|~~~).*?^\1", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        times = found.get(anchor, 0)
        found[anchor] = times + 1
        if times:
            found[f"{anchor}-{times}"] = 1
    return set(found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    for link in links(document):
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def test_the_documents_that_a_reader_begins_with_are_among_them() -> None:
    names = {path.relative_to(CHECKOUT).as_posix() for path in DOCUMENTS}
    assert {"README.md", "docs/terms.md", "docs/howto/nightly.md"} <= names


def test_a_heading_becomes_the_anchor_that_github_gives_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `nightly`: what, and why?\n\n## Twice\n\n## Twice\n\n```\n# no heading\n```\n"
    )
    assert anchors(page) == {"a-nightly-what-and-why", "twice", "twice-1"}
