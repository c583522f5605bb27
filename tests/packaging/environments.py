"""Fresh virtual environments that have this one's packages, and of ours only what is installed into them.

Nothing is fetched: what we need is found through a path to the packages that are there, and ours is built with their
setuptools.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import kernelwright

ROOT = Path(kernelwright.__file__).parents[1]
OTHERS = sysconfig.get_path("purelib")
COLLIDING = ("agent", "evals", "problems", "prompts", "sandbox")


def done(*words: object, cwd: Path, code: int = 0, **variables: str) -> str:
    """What a program prints, after it has ended with `code`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    ended = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment | variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def tracked() -> list[str]:
    """What belongs to the checkout, by git; also what is new and not ignored."""
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [name for name in done(*words, cwd=ROOT).split("\0") if name and os.path.lexists(ROOT / name)]


def copy_checkout(to: Path) -> Path:
    """The checkout without anything that an earlier build has left in it; links stay links."""
    for name in tracked():
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    return to


class Environment:
    """A virtual environment; `site` is where pip puts what it installs."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        (self.site / "others.pth").write_text(f"{OTHERS}\n")

    def install(self, *what: object) -> "Environment":
        """By pip, with what is there already to build and to run it."""
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--no-index", "--no-deps")
        done(*pip, "--no-build-isolation", "--no-cache-dir", *what, cwd=self.site)
        return self

    def run(self, *words: object, cwd: Path, **variables: str) -> str:
        return done(self.python, *words, cwd=cwd, **variables)

    def installed(self) -> set[str]:
        return {path.name for path in self.site.iterdir() if path.suffix != ".pth" and path.name != "__pycache__"}


def folder_of_an_agent(folder: Path) -> Path:
    """Where somebody has packages that are called like our folders, and that must not be imported in their place."""
    for name in COLLIDING:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('the {name} of another project')\n")
    return folder
