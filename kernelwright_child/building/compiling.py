"""The compiler as a builder's ninja sees it: the real one, with the shortcuts that this one call can take.

A C++ file that starts with torch/extension.h is compiled with a precompiled header: first a lean or narrow one, then,
where that does not compile, the whole one, which is the same text as without us. What was compiled with a lean one is
linked with the binding that lies beside it. A CUDA file gets a narrow torch/extension.h
first on its include path, then the whole one. A link gets the fast linker, then the usual one. So whatever builds the
stock way builds here, and what does not is told in the words of the whole header. Where one file does not compile, the
others of the same build are ended: what becomes of them is of no use.

`main(["cxx" or "nvcc", ARGUMENTS...])`; the plan is in the environment. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from kernelwright_child.building import flags

PLAN = "KERNELWRIGHT_SHORTCUTS"
BINDING = ".binding"
"""Ends the name of a file beside an object file, with the path of what that has to be linked with."""
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""For the compilers, which take hundreds of megabytes: a fifth of their page faults fewer."""
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main(arguments: list[str]) -> None:
    """Compile, or become the real compiler where there is nothing to shorten; never returns."""
    kind, words = arguments[0], arguments[1:]
    plan = json.loads(os.environ.get(PLAN, "{}"))
    real = plan.get(kind) or ("c++" if kind == "cxx" else "nvcc")
    if not plan:
        _become(real, words)
    if "-c" in words:
        ways = cxx_ways(words, plan) if kind == "cxx" else cuda_ways(words, plan)
    elif "-shared" in words:
        bindings, asked = _bindings(words), any(word.startswith("-fuse-ld") for word in words)
        fast = {} if asked or not plan.get("linker") else {"fast linker": [f"-fuse-ld={plan['linker']}", *bindings]}
        ways = fast | {"stock": bindings}
    else:
        _become(real, words)
    sys.exit(_try_in_turn(real, words, ways, plan))


def cxx_ways(words: list[str], plan: dict[str, Any]) -> dict[str, list[str]]:
    """What to put in front of a C++ compilation's arguments, by the name of the way, the best first."""
    text = _source(words)
    wanted = flags.relevant(words, tuple(plan["known_folders"]))
    if wanted is None or not flags.starts_with_extension_h(text):
        return {"stock": []}
    found: dict[str, list[str]] = {}
    fitting = flags.HEADERS[flags.HEADERS.index(flags.header_for(text)) :]
    for way in (way for way in fitting if way in plan["folders"]):
        folder = f"{plan['headers']}/{flags.digest(wanted)}/{plan['folders'][way]}"
        there = os.path.exists(f"{folder}/torch/extension.h.gch")  # noqa: PTH110 - pathlib costs milliseconds at start
        # What does not compile with the lean header hardly ever does with the narrow one: it is mostly wrong.
        if there and not (way == "narrow" and found):
            found[way] = ["-isystem", folder]
    return found if "whole" in found else found | {"stock": []}


def cuda_ways(words: list[str], plan: dict[str, Any]) -> dict[str, list[str]]:
    """The same for a CUDA file. The narrow header is text: nvcc knows no precompiled ones."""
    text = _source(words)
    lacks_binding = "PYBIND11_MODULE" in text  # pybind is what costs most, so the narrow header has none
    fits = "torch/extension.h" in text and not lacks_binding and not flags.needs_whole_header(text)
    if not plan.get("narrow_cuda") or not fits:
        return {"stock": []}
    return {"narrow": ["-isystem", plan["narrow_cuda"]], "stock": []}


def _try_in_turn(real: str, words: list[str], ways: dict[str, list[str]], plan: dict[str, Any]) -> int:
    """Try one way after another; the last one's words are what is shown. Returns the exit code."""
    start = time.perf_counter()
    for name, value in LARGE_PAGES.items():
        os.environ.setdefault(name, value)
    failed: list[str] = []
    last = list(ways)[-1]
    for way, extra in ways.items():
        done = subprocess.run([real, *extra, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode == 0 or way == last:
            break
        failed.append(way)
    if done.returncode != 0 and way != "stock" and _is_the_headers_fault(done):
        failed.append(way)
        way = "stock"
        done = subprocess.run([real, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        from kernelwright_child.building.siblings import end_siblings  # only what fails needs it

        end_siblings()
    if "-c" in words:
        _note_binding(words, ways[way][-1] if way == "lean" else None)
    _report(plan, words, (way, failed, done.returncode == 0), time.perf_counter() - start)
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _bindings(words: list[str]) -> list[str]:
    """What the object files of a link have to be linked with, since they were compiled with a lean header."""
    found: list[str] = []
    for word in words:
        try:
            with open(word + BINDING, encoding="utf-8") as file:
                found.append(file.read())
        except OSError:
            continue
    return list(dict.fromkeys(found))


def _note_binding(words: list[str], folder: str | None) -> None:
    """Leave word for the link, or take it back."""
    path = words[words.index("-o") + 1] + BINDING if "-o" in words[:-1] else ""
    if folder is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{folder}/binding.o")
    elif os.path.exists(path):  # noqa: PTH110
        os.unlink(path)  # noqa: PTH108


def _is_the_headers_fault(done: subprocess.CompletedProcess[bytes]) -> bool:
    """Whether the compiler broke down, or could not place a precompiled header in memory, which it says by its name."""
    broke_down = done.returncode != 1
    return broke_down or b"PCH" in done.stdout


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
    text = _source(words)
    if "-c" in words and flags.starts_with_extension_h(text):
        entry["flags"] = flags.relevant(words, tuple(plan["known_folders"]))
        entry["header"] = "whole" if failed else flags.header_for(text)
    try:
        with open(plan["report"], "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError:
        pass


def _become(real: str, words: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execvp(real, [real, *words])
