import contextlib
import threading

import pytest

from tests.model_server import Server


@contextlib.contextmanager
def serving(*replies):
    """A server with these replies."""
    server = Server(replies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def model_server():
    """Starts servers with the given replies; stopped at the end of the test."""
    with contextlib.ExitStack() as servers:
        yield lambda *replies: servers.enter_context(serving(*replies))


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, so that at the end no worker is left alone with one."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
