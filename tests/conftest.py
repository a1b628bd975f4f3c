"""What all tests share: none waits for somebody who measures on this machine, or stops them.

And tables are as wide as in a file, whatever terminal the tests were started from.
"""

from collections.abc import Iterator

import pytest

from harness.run.device_lock import FOLDER_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def _no_terminal() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_device_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("locks")))
        yield
