"""The version and commit of this kernelwright, for the header of a run and for a bug report."""

import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def own_version() -> str:
    """Return the installed version, or that of the checkout where the packages are used without being installed."""
    try:
        return version("kernelwright")
    except PackageNotFoundError:
        project = ROOT / "pyproject.toml"
        return tomllib.loads(project.read_text())["project"]["version"] if project.exists() else "unknown"


def commit() -> str | None:
    """Return the commit of this file's checkout, with `+` where it has changes; None outside a checkout."""
    if not (ROOT / ".git").exists():
        return None
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def version_words() -> str:
    found = commit()
    return f"kernelwright {own_version()}" + (f", commit {found}" if found else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
