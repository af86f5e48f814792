"""Shares the tests out among several pytests that run at the same time."""

from __future__ import annotations

import hashlib
import os
from typing import Any


def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool | None:
    """True, which is the end of the matter: another process has taken the test.
    A file by its name, in the folder GFT_TAKEN, says so."""
    folder = os.environ.get("GFT_TAKEN")
    if not folder:
        return None
    name = hashlib.sha256(item.nodeid.encode()).hexdigest()
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        # What the last test left set up for this one, and the next does not need.
        item.session._setupstate.teardown_exact(nextitem)
        return True
    return None
