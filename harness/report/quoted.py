"""Quoted figures as tables of their own: no column of ours stands beside them."""

from collections.abc import Mapping

from harness.records import QuotedDocument
from harness.report import format as fmt
from harness.report.markdown import markdown_table
from harness.report.tables.table import Entry, Table


def quoted_table(name: str, document: QuotedDocument) -> Table:
    return Table(
        name=f"quoted_{fmt.slug(name)}",
        title=f"Quoted from “{document.title}”",
        columns=("section", "of", "figure", "as printed"),
        rows=tuple(
            tuple(
                Entry(text=text, value=text)
                for text in (figure.section, figure.subject, figure.what, figure.printed)
            )
            for figure in document.figures
        ),
        notes=(document.remark,),
        num_labels=4,
    )


def quoted_page(documents: Mapping[str, QuotedDocument]) -> str:
    """results/published/README.md."""
    lines = [
        "# Quoted figures",
        "",
        "What others printed, word for word and without the measurements under it (`raw: null`). "
        "These figures are text: no table of ours holds one, nothing is computed from them, and "
        "`compare` does not take them. Figures that follow from printed numbers are computed by "
        "our code in `tests/harness/test_published_study.py`.",
    ]
    for name, document in documents.items():
        table = quoted_table(name, document)
        lines += ["", f"## {fmt.escape(document.title)}", "", f"`{name}.json`", ""]
        lines += [markdown_table(table)]
    return "\n".join(lines) + "\n"
