"""The same attacks on a judge that an ordinary user runs. Where root runs the tests, it becomes such a user for this.

The interpreter may lie in a closed home, so the user gets a view of the machine in which every folder that the tests
need is open; it is made by bubblewrap as root, and has no namespaces but that of mounts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.sandbox.jail import bubblewrap
from tests.hostile.conftest import ONLY, SETTINGS
from tests.hostile.surroundings import CHECKOUT
from tests.hostile.trust import WORKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="whoever runs the tests is an ordinary user already"),
]
USER = 1000
BECOME = f"""
import os, sys
os.setgroups([])
os.setresgid({USER}, {USER}, {USER})
os.setresuid({USER}, {USER}, {USER})
os.execv(sys.argv[1], sys.argv[1:])
"""


def closed_folder(path: Path) -> Path | None:
    """The outermost folder above a path that other users can not pass."""
    return next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)


def as_user(*command: str) -> list[str]:
    """The command line that runs a command as an ordinary user."""
    needed = [Path(path) for path in [*bubblewrap.needed_paths(), str(CHECKOUT)]]
    opened = {folder for path in needed if (folder := closed_folder(path))}
    words = [bubblewrap.program(), "--ro-bind", "/", "/", "--bind", "/proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/dev/shm"):
        words += ["--perms", "1777", "--tmpfs", folder]
    for folder in sorted(opened):
        words += ["--perms", "0755", "--tmpfs", str(folder)]
    for path in needed:
        if closed_folder(path):
            for parent in reversed(path.parents):
                if any(parent.is_relative_to(folder) and parent != folder for folder in opened):
                    words += ["--perms", "0755", "--dir", str(parent)]
            words += ["--ro-bind", str(path), str(path)]
    return [*words, "--chdir", str(CHECKOUT), "--", sys.executable, "-c", BECOME, *command]


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "CXX", "CC", "VIRTUAL_ENV") if name in os.environ}
    return kept | {"HOME": "/tmp/home", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"} | more


def obstacle_to_namespaces() -> str:
    """Why an ordinary user can make none here; empty where they can."""
    code = "from kernelwright.sandbox.jail import bubblewrap; print(bubblewrap.obstacle(), end='')"
    done = subprocess.run(
        as_user(sys.executable, "-c", code), env=environment(), capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("how", SETTINGS)
def test_all_attacks_fail_for_an_ordinary_user_too(how):
    if not bubblewrap.program():
        pytest.skip("no bubblewrap to change the view with")
    if how == "namespaces" and (why := obstacle_to_namespaces()):
        pytest.skip(f"an ordinary user can make no namespaces here: {why}")
    tests = str(CHECKOUT / "tests" / "hostile" / "test_attacks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", tests]
    done = subprocess.run(
        as_user(*command), env=environment(**{ONLY: how}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_without_a_jail_the_attempts_work():
    """So it is the jail that refuses them, not a slip in the attempt. Permissions alone refuse the others."""
    if not bubblewrap.program():
        pytest.skip("no bubblewrap to change the view with")
    command = as_user(sys.executable, "-m", "tests.hostile.unjailed")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(json.loads(done.stdout)) == {name for name, settings in WORKS.items() if "off, user" in settings}
