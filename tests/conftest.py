import asyncio
import contextlib
import inspect
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.support.servers import http_stub


@pytest.fixture
def model_server():
    """Starts servers with the given replies; stopped at the end of the test."""
    with contextlib.ExitStack() as servers:
        yield lambda *replies: servers.enter_context(http_stub(*replies))


@pytest.fixture(scope="session")
def outcomes():
    """The table of outcomes; what a session on the whole corpora finds is written to it."""
    from tests.honest.test_honest import HONEST
    from tests.hostile.cheats.corpus import CHEATS
    from tests.support.outcomes import Outcomes

    found = Outcomes()
    yield found
    found.write([*(f"hostile: {name}" for name in CHEATS), *(f"honest: {name}" for name in HONEST)])


def pytest_configure():
    """Of several runners each has a temporary place, and so turns, of its own: no test waits for another's judging.

    And no thread of torch spins while it waits, as in the judge: runners share cores, and some took four times as long.
    Compiled modules are kept, whatever the environment says: else each of hundreds of processes compiles them anew.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    runner = os.environ.get("PYTEST_XDIST_WORKER")
    if runner is not None:
        place = Path(tempfile.gettempdir()) / f"tests-of-kernelwright-{os.getuid()}-{runner}"
        place.mkdir(mode=0o700, exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(place)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


def pytest_collection_modifyitems(items):
    """Files with the most slow tests come first, so that at the end no worker is left alone with one."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
