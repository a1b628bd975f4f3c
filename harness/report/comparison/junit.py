"""JUnit XML, the form in which CI servers show test results: a figure is a test case.

A regression is a failure; what is inconclusive or not comparable is skipped, with its reason; a
comparison without a figure is an error.
"""

import re
from xml.etree import ElementTree

from harness.compare.compare import Comparison, Row
from harness.report.comparison import sentences

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Signs that XML 1.0 cannot hold, not even escaped."""


def junit_xml(comparison: Comparison) -> str:
    suites = ElementTree.Element("testsuites", name="dflashbench compare")
    suite = ElementTree.SubElement(suites, "testsuite", name=_text(comparison.baseline))
    for row in comparison.rows:
        _add_case(suite, row)
    if not comparison.compared:
        case = ElementTree.SubElement(suite, "testcase", classname="comparison", name="any figure")
        ElementTree.SubElement(case, "error", message=_text(sentences.headline(comparison)))
    counted = {
        "tests": suite.findall("testcase"),
        "failures": suite.findall("testcase/failure"),
        "errors": suite.findall("testcase/error"),
        "skipped": suite.findall("testcase/skipped"),
    }
    for name, found in counted.items():
        suite.set(name, str(len(found)))
    ElementTree.indent(suites)
    # as bytes: the declaration of a text would name the locale's encoding
    document: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document.decode() + "\n"


def _add_case(suite: ElementTree.Element, row: Row) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_text(f"{row.variant}.{row.work}"),
        name=row.metric or "all figures",
    )
    if row.word == "regressed":
        ElementTree.SubElement(case, "failure", message=_text(sentences.finding(row)))
    elif row.word in ("inconclusive", "not comparable"):
        ElementTree.SubElement(case, "skipped", message=_text(f"{row.word}: {row.reason}"))


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
