"""The list of what the tests are held against names tests that are there."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_the_list_names_stands_in_the_file_that_it_names() -> None:
    found = 0
    for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines():
        source = ""
        for file, test in re.findall(r"`((?:\w+/)*test_\w+\.py)`|`(test_\w+)`", line):
            if file:
                source = (HERE / file).read_text(encoding="utf-8")
            else:
                assert f"\ndef {test}(" in source, f"{test} of {line!r}"
                found += 1
    assert found > 30
