"""The compiler that a builder's ninja calls: the real one, with shortcuts where this call allows them.

A file with torch/extension.h is compiled with a light header first, made for its identifiers; where that fails, with
the stock one. Objects of the light header are linked with objects that the judge makes; the first builds wait for
them. A link gets the fast linker, then the usual one. So everything that builds the stock way builds here. Errors with
the light header that no header could fix are reported as they are; all others as with the stock one. Where one file
does not compile, the other jobs of its build are killed, since their results are useless.

`main(["cxx" or "nvcc", ARGUMENTS...])` reads its plan from the environment, where `install_shortcuts` puts it. Standard
library only; it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

PLAN = "KERNELWRIGHT_SHORTCUTS"
REPORT = "compilations.jsonl"
"""The report in the builder's home, with one line per compilation."""
PTXAS = "ptxas.txt"
"""The lines of ptxas about kernels, in the folder of their extension."""
VERBOSE = "-Xptxas=-v"
GLUE = ".glue"
"""Suffix of a file next to an object file, which lists the objects to link with it."""
MAKING = "making-"
"""Prefix of the lock file next to a file in preparation."""
GLUE_WAIT_S = 600.0
"""Limit from the start of this process; then the slower stock header is used."""
STARTED = time.monotonic()
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Saves compilers, which take hundreds of megabytes, a fifth of their page faults."""
OUTPUTS = ("-o", "-MF", "-MT", "-MQ", "--dependency-output")
WHAT_TO_WRITE = ("-c", "-MD", "-MMD", "--generate-dependencies-with-compile", "-S")
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Done = subprocess.CompletedProcess[bytes]
    Table = dict[int, tuple[str, int, str]]
    """Name, parent and start of every living process."""


def install_shortcuts(plan: dict[str, Any], home: str) -> None:
    """Make torch compile through this module, inside a builder, before the candidate runs.

    torch takes the compiler from `CXX` and `PYTORCH_NVCC`, as for any user, and a candidate may set them. `plan` comes
    from `Toolchain.plan` in the sandbox; an empty one changes nothing.
    """
    if not plan:
        return
    os.environ[PLAN] = json.dumps(plan | {"report": f"{home}/{REPORT}"})
    if os.access(plan["programs"]["cxx"], os.X_OK):
        os.environ["CXX"] = plan["programs"]["cxx"]
    if plan.get("nvcc") and os.access(plan["programs"]["nvcc"], os.X_OK):
        os.environ["PYTORCH_NVCC"] = plan["programs"]["nvcc"]
    if plan.get("cuda_architectures"):
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", plan["cuda_architectures"])
    os.environ["MAX_JOBS"] = str(min(int(os.environ.get("MAX_JOBS") or plan["jobs"]), plan["jobs"]))


def main(arguments: list[str]) -> None:
    """Compile, or become the real compiler where no shortcut applies; never return."""
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
        asked = any(word.startswith("-fuse-ld") for word in words)
        fast = {} if asked or not plan.get("linker") else {"fast linker": [f"-fuse-ld={plan['linker']}", *glue]}
        sys.exit(_try_in_turn(real, words, fast | {"stock": glue}, plan))
    _become(real, words)


def _compile(real: str, words: list[str], plan: dict[str, Any], folder: str) -> int:
    text = _source(words)
    objects = light_ways(words, text, plan, folder)
    light = {} if objects is None else {"light": ["-isystem", folder, "-isystem", f"{plan['light']}/light"]}
    ways: dict[str, list[str]] = light | {"stock": []}
    return _try_in_turn(real, words if real != plan.get("nvcc") else [*words, VERBOSE], ways, plan, objects or [])


def light_ways(words: list[str], text: str, plan: dict[str, Any], folder: str) -> list[str] | None:
    """Write a source's light torch/extension.h below the folder; return the objects to link, None for no header."""
    if not plan.get("light") or not allow_light(words, tuple(plan["known_folders"])):
        return None
    level = "optimised" if are_optimised(words) else "plain"
    objects = [f"{plan['light']}/{level}/{name}" for name in glue_of(text)]
    macros = f"{plan['light']}/macros"
    if FIRST.match(text) is None or not _is_there(macros):
        return None
    with open(macros, encoding="utf-8") as file:
        header = header_for(text, plan["torch_include"], frozenset(file.read().split()))
    if header is None:
        return None
    os.mkdir(f"{folder}/torch")
    with open(f"{folder}/torch/extension.h", "w", encoding="utf-8") as file:
        file.write(header)
    return objects


def _is_there(path: str) -> bool:
    """Wait while the judge makes the file; return whether it exists then."""
    while not os.path.exists(path) and time.monotonic() < STARTED + GLUE_WAIT_S and is_being_made(path):
        time.sleep(0.02)
    return os.path.exists(path)


def is_being_made(path: str) -> bool:
    """Check whether a living process holds the lock file next to the path."""
    making = os.path.join(os.path.dirname(path), MAKING + os.path.basename(path))
    try:
        with open(making, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _try_in_turn(
    real: str, words: list[str], ways: dict[str, list[str]], plan: dict[str, Any], glue: list[str] | None = None
) -> int:
    """Try the ways in order, print the output of the last one, and return its exit code."""
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
        end_siblings()
    if glue is not None:
        _note_glue(words, glue if way == "light" else [])
    _report(plan, words, (way, failed, done.returncode == 0), time.perf_counter() - start)
    sys.stdout.buffer.write(_without_ptxas(done.stdout) if VERBOSE in words else done.stdout)
    sys.stdout.flush()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _without_ptxas(printed: bytes) -> bytes:
    """Move what ptxas says of kernels into its file, and return the rest."""
    lines = printed.splitlines(keepends=True)
    said = [
        line for line in lines if line.startswith((b"ptxas info", b"    ")) and (b"ptxas" in line or b" bytes " in line)
    ]
    with contextlib.suppress(OSError), open(PTXAS, "ab") as file:
        file.write(b"".join(said))
    moved = set(said)
    return b"".join(line for line in lines if line not in moved)


def _is_unmendable(real: str, words: list[str], folder: str, done: Done) -> bool:
    """Decide by the compiler's output that the stock header would not help."""
    path = words[words.index("-c") + 1]
    error = first_error(done.stdout.decode(errors="replace"), path)
    if done.returncode not in (1, 2) or error is None:
        return False
    includes = f"{folder}/includes{os.path.splitext(path)[1]}"
    with open(includes, "w", encoding="utf-8") as file:
        file.write(includes_of(_source(words)))
    return is_unmendable(error, lambda: _words_of(real, [*_preprocessing(words), "-E", includes], path))


def _words_of(real: str, words: list[str], own: str) -> frozenset[str]:
    """Return all identifiers of a preprocessed file; where that fails, those of the source."""
    done = subprocess.run([real, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        with open(own, encoding="utf-8", errors="replace") as file:
            return words_of(file.read())
    return words_of(done.stdout.decode(errors="replace"))


def _preprocessing(words: list[str]) -> list[str]:
    left, todo = [], iter(words)
    for word in todo:
        if word in OUTPUTS or word == "-c":
            next(todo, "")
        elif word not in WHAT_TO_WRITE:
            left.append(word)
    return left


def _glue(words: list[str]) -> list[str]:
    """Return the objects that a link needs for object files with a light header.

    Each object comes once, though files of nvcc and of the C++ compiler may need it at two levels of optimisation.
    """
    found: list[str] = []
    for word in words:
        try:
            with open(word + GLUE, encoding="utf-8") as file:
                found += file.read().split("\n")
        except OSError:
            continue
    return list({os.path.basename(path): path for path in sorted(found, reverse=True)}.values())


def _note_glue(words: list[str], objects: list[str]) -> None:
    path = words[words.index("-o") + 1] + GLUE if "-o" in words[:-1] else ""
    if objects and path:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(objects))
    elif os.path.exists(path):
        os.unlink(path)


def _source(words: list[str]) -> str:
    path = words[words.index("-c") + 1] if "-c" in words[:-1] else ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _report(plan: dict[str, Any], words: list[str], outcome: tuple[str, list[str], bool], seconds: float) -> None:
    """Append one line to the report; short appended lines of parallel processes stay intact.

    The outcome: the last way, the failed ways before it, and whether the last one compiled.
    """
    way, failed, compiled = outcome
    path = words[words.index("-c") + 1] if "-c" in words[:-1] else words[words.index("-o") + 1]
    entry: dict[str, Any] = {
        "extension": os.path.basename(os.getcwd()),
        "file": os.path.basename(path),
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


# The conditions for the light header. It is compiled with any flags of the candidate. Its objects were compiled with
# other flags, so nothing may change memory layouts or the meaning of names.

FORBIDDEN = re.compile(
    r"@.*|-(?:include|imacros|x|ansi|nostdinc.*|m(?:32|x32|abi=.*|long-double.*)|f(?:abi|pack|short|no-gnu|plugin).*)"
    r"|-[DU] *(?!TORCH_EXTENSION_NAME=|TORCH_API_INCLUDE_EXTENSION_H$|PYBIND11_(?:COMPILER_TYPE|STDLIB|BUILD_ABI)=)"
    r"(?:_GLIBCXX|AT_|TORCH|C10|CAFFE2|PYBIND11|KERNELWRIGHT|Py|_?STD).*"
)
"""Files with more text or flags, other layouts, and macros that headers of torch or the standard library read."""
FOLDER_FLAGS = ("-I", "-isystem", "-iquote", "-idirafter")
SHADOWING = ("torch", "ATen", "c10", "caffe2", "pybind11", "torch_stable", "kernelwright", "Python.h")
OPTIMISED = re.compile(r"-O(?!0$)")


def allow_light(words: list[str], known_folders: tuple[str, ...] = ()) -> bool:
    """Check that the light header is equivalent to the stock one with these flags.

    `known_folders` are the include folders of torch and Python; no other may hold headers of their names.
    """
    todo = iter(words)
    for word in todo:
        if FORBIDDEN.fullmatch(word + next(todo, "") if word in ("-D", "-U") else word):
            return False
        flag = next((flag for flag in FOLDER_FLAGS if word.startswith(flag)), None)
        if flag is not None:
            folder = word[len(flag) :] or next(todo, "")
            real = os.path.realpath(folder)
            paths = [os.path.join(real, name) for name in SHADOWING]
            if real not in known_folders and any(os.path.exists(path) for path in paths):
                return False
    return True


def are_optimised(words: list[str]) -> bool:
    """Check that host code is optimised; the last flag decides, as in the compiler."""
    levels = [word for word in words if word.startswith("-O")]
    return bool(levels) and OPTIMISED.match(levels[-1]) is not None


# The light header of one source: the common declarations, and the operators that the source names. A source with a
# macro of the stock header alone, or a namespace that could clash, gets the stock one.

FIRST = re.compile(r"\A(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*+\*/)*+#\s*include\s*[<\"]torch/(extension|types)\.h[>\"]")
STOCK = re.compile(
    r"torch::(?:nn|optim|data|jit|serialize|autograd)\b|at::(?:native|_ops|jit)\b|c10::(?:List|Dict|IValue)\b"
    r"|namespace\s+(?:torch|at|c10|pybind11|py|kernelwright)\b(?!\s*(?:=|::\s*(?:literals|indexing)))"
    r"|CustomClassHolder|\b(?:KERNELWRIGHT|kernelwright)|#\s*(?:include_next|pragma\s+once)"
    r"|#\s*include\s*(?:\"(?!torch/extension\.h\"|torch/types\.h\")|[^\s<\"])"
)
"""Names that the light header lacks or could clash with, and includes of the candidate's own files."""
BINDING = re.compile(
    r"\nPYBIND11_MODULE\(TORCH_EXTENSION_NAME, m\) \{\n"
    r"(?:m\.def\(\"[\w:]+\", torch::wrap_pybind_function\([\w:]+\), \"[^\n]*\"\);\n)+\}\s*\Z"
)
"""The code that `load_inline` writes for its `functions`."""
PYTHON = re.compile(r"pybind11|PYBIND11|\bpy::|\bTHP|torch/(?:csrc|python)|HANDLE_TH_ERRORS")
WORD = re.compile(r"[A-Za-z_]\w*")
NO_OPERATOR = re.compile(r"_(?:native|ops|meta|dispatch)$")
MORE = {"indexing": "ATen/TensorIndexing.h", "globalContext": "ATen/Context.h", "IValue": "ATen/core/ivalue.h"}
"""Headers by a name that only they declare."""
PYBIND = ("torch/csrc/Exceptions.h", "torch/csrc/utils/pybind.h")
MODULE = "kernelwright/module.h"
TEXT = """#ifndef KERNELWRIGHT_EXTENSION_H
#define KERNELWRIGHT_EXTENSION_H
{before}#include <kernelwright/core.h>
#define KERNELWRIGHT_INSIDE
#define AT_PER_OPERATOR_HEADERS
{operators}#undef AT_PER_OPERATOR_HEADERS
#undef KERNELWRIGHT_INSIDE
{after}#endif
"""


def glue_of(text: str) -> tuple[str, ...]:
    if _binding(text) == MODULE:
        return ("binding.o", "factories.o")
    return () if _binds_itself(text) else ("factories.o",)


def header_for(text: str, torch_include: str, whole_macros: frozenset[str]) -> str | None:
    """Return the light header's text for a source; None for the stock header.

    `whole_macros` are the macros of the stock header that the light one lacks.
    """
    words = frozenset(WORD.findall(text))
    binds = _binds_itself(text)
    lacking = {word for word in words & whole_macros if not (binds and word.startswith(("PYBIND11", "HANDLE", "END_")))}
    if FIRST.match(text) is None or "torch/extension.h" not in text or STOCK.search(text) or lacking:
        return None
    names = sorted(word for word in words if not NO_OPERATOR.search(word))
    operators = [name for name in names if os.path.exists(f"{torch_include}/ATen/ops/{name}.h")]
    after = [MORE[name] for name in names if name in MORE]
    return TEXT.format(
        before="#define KERNELWRIGHT_PYBIND\n" if binds else "",
        operators=_includes([*(f"ATen/ops/{name}.h" for name in operators), *(PYBIND if binds else ())]),
        after=_includes([*after, *([MODULE] if _binding(text) else [])]),
    )


def _binds_itself(text: str) -> bool:
    return _binding(text) is None and PYTHON.search(text) is not None


def _binding(text: str) -> str | None:
    """Return the binding header for a source whose only Python binding comes from `load_inline`."""
    found = BINDING.search(text)
    return MODULE if found and not PYTHON.search(text[: found.start()]) else None


def _includes(names: list[str]) -> str:
    return "".join(f"#include <{name}>\n" for name in names)


# After a failed compilation: whether the stock header could fix it, and the end of the other jobs of its build. A
# compilation with the stock header costs many times as much. It is not needed where the error names something that the
# stock header does not declare.

ROUNDS = 3
"""Searches for jobs: a compiler may start another one during a search."""
ERROR = re.compile(r"^(?P<file>[^\s:(][^:(]*)(?::\d+:\d+|\(\d+\)):\s+(?:fatal )?error:?\s*(?P<words>.*)$", re.M)
QUOTE, UNQUOTE = "['\u2018\"]", "['\u2019\"]"
UNKNOWN = re.compile(
    rf"{QUOTE}(?:[\w:]*::)?(?P<one>\w+){UNQUOTE} (?:was not declared|is not a member of|does not name a type)"
    rf"|identifier \"(?:[\w:]*::)?(?P<two>\w+)\" is undefined|has no member (?:named )?{QUOTE}(?P<three>\w+){UNQUOTE}"
)
SYNTAX = re.compile(r"^expected |: No such file or directory$")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"][^\n]*$", re.M)


def first_error(said: str, source_path: str) -> str | None:
    found = ERROR.search(said)
    return found["words"] if found and found["file"] == source_path else None


def is_unmendable(error: str, stock: Callable[[], frozenset[str]]) -> bool:
    """Check that no header could fix the error. `stock` returns all identifiers of the stock header.

    A compiler reports unknown names first, so a syntax error among known names stays one with more declarations. Only
    a macro could change that, and the light header lacks none that the source names.
    """
    if unknown := UNKNOWN.search(error):
        return next(name for name in unknown.groups() if name) not in stock()
    return SYNTAX.search(error) is not None


def includes_of(source: str) -> str:
    return "\n".join([*INCLUDE.findall(source), ""])


def words_of(preprocessed: str) -> frozenset[str]:
    return frozenset(WORD.findall(STRING.sub("", preprocessed)))


def end_siblings() -> None:
    """Kill the other jobs of the ninja above this process, if there is one.

    SIGKILL, since ninja takes other signals for an interrupt by the user. Of two jobs that fail at once only one kills:
    else both could end without output.
    """
    table = _processes()
    line = [os.getpid()]
    while line[-1] in table and not table[line[-1]][0].startswith("ninja"):
        line.append(table[line[-1]][1])
    ninja = line.pop()
    if ninja not in table:
        return
    try:
        mark = f".failed-{ninja}-{table[ninja][2]}"
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    except OSError:
        return
    for _ in range(ROUNDS):
        found = _others(table, ninja, line)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        table = _processes()


def _others(table: Table, ninja: int, line: list[int]) -> list[int]:
    found = [ninja]
    for above in found:
        found += [pid for pid, (_, parent, _) in table.items() if parent == above and pid not in line]
    return found[1:]


def _processes() -> Table:
    table: Table = {}
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(entry)}/stat", "rb") as file:
                front, _, rest = file.read().rpartition(b")")
            fields = rest.decode().split()
            if fields[0] != "Z":
                name = front.partition(b"(")[2].decode(errors="replace")
                table[int(entry)] = (name, int(fields[1]), fields[19])
        except (OSError, ValueError, IndexError):
            continue
    return table
