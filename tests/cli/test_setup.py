"""`make setup` on machines that lack something: one sentence with the remedy, before anything large is fetched."""

import os
import shutil
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.agent.providers.test_server import Refusing

ROOT = Path(__file__).parents[2]
WITHOUT_VENV = f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n'


@pytest.fixture
def setup(tmp_path):
    """Runs `make setup` in a folder with spaces that holds what the Makefile reads; its lines of ours, at the end."""
    folder = tmp_path / "my projects"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements-dev.txt"):
        shutil.copy(ROOT / name, folder)

    def call(python=None, text=None, **environment):
        if text is not None:
            (folder / "python").write_text(text)
            (folder / "python").chmod(0o755)
            python = "./python"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        done = subprocess.run(
            ["make", "setup", f"PYTHON={python or sys.executable}"],
            capture_output=True, text=True, check=False, cwd=folder, env=clean | environment,
        )  # fmt: skip
        assert done.returncode == 2
        assert not (folder / ".venv" / ".ready").exists()
        return [line for line in done.stderr.splitlines() if line.startswith("kernelwright: ")]

    return call


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ({"python": "/nowhere/python3"}, ("/nowhere/python3", "3.11")),
        ({"text": "#!/bin/sh\nexit 1\n"}, ("./python is not", "3.11")),
        ({"text": WITHOUT_VENV}, ("virtual environment", "python3-venv")),
    ],
    ids=["not there", "too old", "without venv"],
)
def test_a_python_that_will_not_do_is_named_with_the_remedy(setup, python, words):
    (said,) = setup(**python)
    assert all(word in said for word in words)


@pytest.mark.long
@pytest.mark.slow
def test_a_proxy_that_refuses_ends_in_one_sentence_about_network_and_proxy(setup):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy = f"http://127.0.0.1:{server.server_port}"
    said = setup(https_proxy=proxy, HTTPS_PROXY=proxy, PIP_RETRIES="0", PIP_CONFIG_FILE="/dev/null", no_proxy="")
    server.shutdown()
    server.server_close()
    assert "HTTPS_PROXY" in said[-1]


def test_a_missing_compiler_is_told_before_the_download(setup):
    said = setup(text=WITHOUT_VENV.replace("ensurepip", '"-m venv"'), CXX="/nowhere/g++")
    assert "/nowhere/g++" in said[0] and "fetching torch" in said[1]


@pytest.mark.long
@pytest.mark.slow
def test_a_python_without_its_headers_is_told_which_kernels_need_them(setup):
    blind = f'#!/bin/sh\ncase "$*" in *Python.h*) exit 1;; esac\nexec "{sys.executable}" "$@"\n'
    said = setup(text=blind, PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null", PIP_FIND_LINKS="")
    assert "Python.h" in said[0] and "python3-dev" in said[0]
