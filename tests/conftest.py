import threading

import pytest

from tests.model_server import Server


@pytest.fixture
def model_server():
    """Starts servers with the given replies; stopped at the end of the test."""
    servers = []

    def start(*replies):
        server = Server(replies)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
