"""The compiler as a builder's ninja sees it: the real one, with the shortcuts that this one call can take.

A file with torch/extension.h is compiled with a light one first, made for its words (`light`); where that does not
compile, with the stock one. What was compiled with the light one is linked with objects that the judge has made; the
first builds wait for those here. A link gets the fast linker, then the usual one. So whatever builds the stock way
builds here. What fails with the light header and can be mended by no other is told in its words; all else in those of
the stock one. Where one file does not compile, the others of its build are ended: what becomes of them is of no use.

`main(["cxx" or "nvcc", ARGUMENTS...])`; the plan is in the environment. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time

from kernelwright_child.building import flags, light

PLAN = "KERNELWRIGHT_SHORTCUTS"
GLUE = ".glue"
"""Ends the name of a file beside an object file, with the paths of what that has to be linked with."""
MAKING = "making-"
"""Begins the name of a file that lies beside what is being made."""
GLUE_WAIT_S = 600.0
"""From the start of this process on; then the stock header serves, which takes longer."""
STARTED = time.monotonic()
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""For the compilers, which take hundreds of megabytes: a fifth of their page faults fewer."""
OUTPUTS = ("-o", "-MF", "-MT", "-MQ", "--dependency-output")
WHAT_TO_WRITE = ("-c", "-MD", "-MMD", "--generate-dependencies-with-compile", "-S")
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Done = subprocess.CompletedProcess[bytes]


def main(arguments: list[str]) -> None:
    """Compile, or become the real compiler where there is nothing to shorten; never returns."""
    kind, words = arguments[0], arguments[1:]
    plan = json.loads(os.environ.get(PLAN, "{}"))
    real = plan.get(kind) or ("c++" if kind == "cxx" else "nvcc")
    if not plan:
        _become(real, words)
    glue = _glue(words)
    if "-c" in words:
        with tempfile.TemporaryDirectory(prefix="light-") as folder:
            code = _compile(real, words, plan, folder)
        sys.exit(code)
    if glue or "-shared" in words:
        sys.exit(_try_in_turn(real, words, _links(words, plan, glue), plan))
    _become(real, words)


def _compile(real: str, words: list[str], plan: dict[str, Any], folder: str) -> int:
    text = _source(words)
    objects = light_ways(words, text, plan, folder)
    ways = {"stock": []} if objects is None else {"light": _first(folder, plan), "stock": []}
    return _try_in_turn(real, words, ways, plan, objects or [])


def light_ways(words: list[str], text: str, plan: dict[str, Any], folder: str) -> list[str] | None:
    """Write a source's light torch/extension.h below the folder; what it is linked with then, None if it gets none."""
    if not plan.get("light") or not flags.allow_light(words, tuple(plan["known_folders"])):
        return None
    objects = [f"{plan['light']}/{_level(words)}/{name}" for name in light.glue_of(text)]
    macros = f"{plan['light']}/macros"
    if light.FIRST.match(text) is None or not _is_there(macros):
        return None
    with open(macros, encoding="utf-8") as file:
        header = light.header_for(text, plan["torch_include"], frozenset(file.read().split()))
    if header is None:
        return None
    os.mkdir(f"{folder}/torch")  # noqa: PTH102
    with open(f"{folder}/torch/extension.h", "w", encoding="utf-8") as file:
        file.write(header)
    return objects


def _level(words: list[str]) -> str:
    return "optimised" if flags.are_optimised(words) else "plain"


def _is_there(path: str) -> bool:
    """Whether the judge has made it; waits while it is being made."""
    while not os.path.exists(path) and time.monotonic() < STARTED + GLUE_WAIT_S and is_being_made(path):  # noqa: PTH110
        time.sleep(0.02)
    return os.path.exists(path)  # noqa: PTH110


def is_being_made(path: str) -> bool:
    """Whether a living process holds the lock on the mark beside the path."""
    making = os.path.join(os.path.dirname(path), MAKING + os.path.basename(path))  # noqa: PTH118, PTH119, PTH120
    try:
        with open(making, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _first(folder: str, plan: dict[str, Any]) -> list[str]:
    return ["-isystem", folder, "-isystem", f"{plan['light']}/light"]


def _links(words: list[str], plan: dict[str, Any], glue: list[str]) -> dict[str, list[str]]:
    asked = any(word.startswith("-fuse-ld") for word in words)
    fast = {} if asked or not plan.get("linker") else {"fast linker": [f"-fuse-ld={plan['linker']}", *glue]}
    return fast | {"stock": glue}


def _try_in_turn(
    real: str, words: list[str], ways: dict[str, list[str]], plan: dict[str, Any], glue: list[str] | None = None
) -> int:
    """Try one way after another; the last one's words are what is shown. Returns the exit code."""
    start = time.perf_counter()
    for name, value in LARGE_PAGES.items():
        os.environ.setdefault(name, value)
    failed: list[str] = []
    for way, extra in ways.items():
        done = subprocess.run([real, *extra, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode == 0 and (way != "light" or all([_is_there(path) for path in glue or []])):
            break
        if way == "stock" or (way == "light" and done.returncode and _is_unmendable(real, words, extra[1], done)):
            break
        failed.append(way)
    if done.returncode != 0:
        from kernelwright_child.building.siblings import end_siblings  # only what fails needs it

        end_siblings()
    if glue is not None:
        _note_glue(words, glue if way == "light" else [])
    _report(plan, words, (way, failed, done.returncode == 0), time.perf_counter() - start)
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _is_unmendable(real: str, words: list[str], folder: str, done: Done) -> bool:
    """Whether the stock header would not help, as far as what the compiler has said tells."""
    from kernelwright_child.building import unmendable  # only what fails needs it

    path = words[words.index("-c") + 1]
    error = unmendable.first_error(done.stdout.decode(errors="replace"), path)
    if done.returncode not in (1, 2) or error is None:
        return False
    includes = f"{folder}/includes{os.path.splitext(path)[1]}"  # noqa: PTH122
    with open(includes, "w", encoding="utf-8") as file:
        file.write(unmendable.includes_of(_source(words)))
    return unmendable.is_unmendable(error, lambda: _words_of(real, [*_preprocessing(words), "-E", includes], path))


def _words_of(real: str, words: list[str], own: str) -> frozenset[str]:
    """All words that a preprocessed file brings; where that fails, those of the source itself, so that none is new."""
    from kernelwright_child.building import unmendable

    done = subprocess.run([real, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        with open(own, encoding="utf-8", errors="replace") as file:
            return unmendable.words_of(file.read())
    return unmendable.words_of(done.stdout.decode(errors="replace"))


def _preprocessing(words: list[str]) -> list[str]:
    left, todo = [], iter(words)
    for word in todo:
        if word in OUTPUTS or word == "-c":
            next(todo, "")
        elif word not in WHAT_TO_WRITE:
            left.append(word)
    return left


def _glue(words: list[str]) -> list[str]:
    """What the object files of a link have to be linked with, since they were compiled with a light header.

    Each object once, though nvcc's files and the C++ compiler's may ask for it at two levels of optimisation.
    """
    found: list[str] = []
    for word in words:
        try:
            with open(word + GLUE, encoding="utf-8") as file:
                found += file.read().split("\n")
        except OSError:
            continue
    return list({os.path.basename(path): path for path in sorted(found, reverse=True)}.values())  # noqa: PTH119


def _note_glue(words: list[str], objects: list[str]) -> None:
    path = words[words.index("-o") + 1] + GLUE if "-o" in words[:-1] else ""
    if objects and path:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(objects))
    elif os.path.exists(path):  # noqa: PTH110
        os.unlink(path)  # noqa: PTH108


def _source(words: list[str]) -> str:
    path = words[words.index("-c") + 1] if "-c" in words[:-1] else ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _report(plan: dict[str, Any], words: list[str], outcome: tuple[str, list[str], bool], seconds: float) -> None:
    """One line for the record; ninja may run several of us at once, and short appended lines stay whole.

    The outcome: the last way, those that failed before, and whether the last did not.
    """
    way, failed, compiled = outcome
    path = words[words.index("-c") + 1] if "-c" in words[:-1] else words[words.index("-o") + 1]
    entry: dict[str, Any] = {
        "extension": os.path.basename(os.getcwd()),  # noqa: PTH109, PTH119
        "file": os.path.basename(path),  # noqa: PTH119
        "way": way,
        "failed": failed,
        "seconds": round(seconds, 3),
        "compiled": compiled,
    }
    try:
        with open(plan["report"], "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError:
        pass


def _become(real: str, words: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execvp(real, [real, *words])
