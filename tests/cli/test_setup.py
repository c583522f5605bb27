"""`make setup` on machines that lack something: one sentence with the remedy, before anything large is fetched."""

import os
import shutil
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.agent.providers.test_proxies import Refusing

ROOT = Path(__file__).parents[2]
OLD = "#!/bin/sh\nexit 1\n"
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


def test_a_python_that_is_not_there_is_named(setup):
    (said,) = setup(python="/nowhere/python3")
    assert "/nowhere/python3" in said and "3.11" in said


def test_a_python_that_is_too_old_is_named(setup):
    (said,) = setup(text=OLD)
    assert "./python is not" in said and "3.11" in said


def test_a_python_without_venv_is_told_what_to_install(setup):
    (said,) = setup(text=WITHOUT_VENV)
    assert "virtual environment" in said and "python3-venv" in said


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
