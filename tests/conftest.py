"""What all tests share: none waits for somebody who measures on this machine, or stops them."""

from collections.abc import Iterator

import pytest

from harness.run.device_lock import FOLDER_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def _own_device_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("locks")))
        yield
