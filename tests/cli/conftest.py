import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    \"\"\"A running sum along each row.\"\"\"

    def forward(self, x):
        return torch.cumsum(x, dim=1)

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return []
"""
RIGHT = PROBLEM.replace("class Model(", "class ModelNew(")
WRONG = RIGHT.replace("dim=1", "dim=0")


@pytest.fixture
def kernelwright(tmp_path):
    """Runs the command line in an empty folder; returns the finished process."""

    def call(*words, **environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        return subprocess.run(
            [sys.executable, "-m", "kernelwright.cli", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=clean | environment,
            timeout=300,
            check=False,
        )

    return call


@pytest.fixture
def files(tmp_path):
    """A problem, a right candidate and a wrong one, as files in the folder that commands run in."""
    for name, text in (("problem.py", PROBLEM), ("right.py", RIGHT), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    return tmp_path


class Server(ThreadingHTTPServer):
    """Answers chat completions from a list of replies, one a request; the last one again and again."""

    def __init__(self, replies):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies = list(replies)
        self.requests = []

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(asked["messages"][-1]["content"])
        replies = self.server.replies
        text = replies.pop(0) if len(replies) > 1 else replies[0]
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "small", "choices": [choice]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


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


def fenced(source):
    return f"Here is the kernel.\n\n```python\n{source}\n```\n"
