"""Mutants that the tests kill: small faults in functions that decide numbers, kept as data and drawn once.

`python -m bench mutants` applies each mutant of `bench/records/mutants.json` and runs the quick tests that call the
mutated function. It prints killed, survived and lost of each subject, and fails where a mutant of the baseline is no
longer killed. `--subject NAME` runs one subject; `--trace` records again which test files call which functions,
otherwise kept in `build/mutants`.

A mutant names its function and its expression, not its file, so it survives a move of the function. After a rename,
set `"alias"` of the record to the new qualified name, such as `Judge.judge`. After an expression was rewritten, edit
`original` and `replacement` of the record; `id` and the fault stay the same.

Sources are never changed. A process that has imported all tests forks once a mutant and exchanges the function's code
object there. So tests do not count that start a Python process of their own, nor does code that runs in an import. A
stopped run goes on where it was. Never replace a mutant to get rid of a survivor.
"""

import argparse
import ast
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib.util
import inspect
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from bench.measuring import Report

PACKAGES = ("kernelwright_child", "problems", "prompts", "sandbox", "agent", "evals", "programs", "kernelwright")
QUICK = "not slow and not long and not gpu and not corpus"
MOST_FILES, FILES_S, TEST_S = 8, 30.0, 3.0
"""Test files that a mutant is tried on, the most specific first; how long they may take together, and one test."""
TEST_CPU_S, CPU_S = 9, 120
"""Processor time of one test, after which its mutant counts as killed; and of a file of tests, or all of a mutant."""
MOST_BYTES = 12 << 30
BROKEN, PR_SET_PDEATHSIG = 70, 1
"""Exit code of a fork that failed by an error of this bench; and the call that ends a fork with its parent."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Mutant(NamedTuple):
    """One fault, independent of the file in which its function lies."""

    id: str
    subject: str
    function: str
    """Qualified name within its module."""
    kind: str
    """`expression` or `statement`."""
    original: str
    """Source text as `ast.unparse` writes it."""
    occurrence: int
    """Position among the same texts of the function, counted from 0."""
    replacement: str
    alias: str | None = None
    """Qualified name that the function has now, after a rename."""


class Definition(NamedTuple):
    path: Path
    name: str
    node: Function

    @property
    def first_line(self) -> int:
        """`co_firstlineno` of its code object."""
        return min(one.lineno for one in (*self.node.decorator_list, self.node))


class Tree(NamedTuple):
    """The checkout, or a smaller one in the tests of this bench."""

    root: Path = Path(__file__).parent.parent
    packages: Sequence[str] = PACKAGES

    @property
    def records(self) -> Path:
        return self.root / "bench" / "records" / "mutants.json"

    @property
    def baseline(self) -> Path:
        return self.records.with_name("mutants-baseline.json")

    @property
    def build(self) -> Path:
        """Files that may be deleted at any time."""
        return self.root / "build" / "mutants"

    def mutants(self) -> list[Mutant]:
        return [Mutant(**one) for one in json.loads(self.records.read_text(encoding="utf-8"))]

    def sources(self) -> list[Path]:
        """Return each shipped module once, whatever links lead to it."""
        paths = {path.resolve() for one in self.packages for path in (self.root / one).rglob("*.py")}
        texts = {self.root / "problems" / "catalog", self.root / "prompts" / "examples"}
        return sorted(path for path in paths if not texts & set(path.parents))

    def tests(self) -> list[Path]:
        return sorted((self.root / "tests").rglob("test_*.py"))


class Code:
    """All functions of a tree, by qualified name and by its last part."""

    def __init__(self, tree: Tree) -> None:
        self.definitions: dict[str, list[Definition]] = {}
        self.by_last_name: dict[str, list[Definition]] = {}
        for path in tree.sources():
            for name, node in functions(ast.parse(path.read_text(encoding="utf-8")).body):
                self.definitions.setdefault(name, []).append(Definition(path, name, node))
                self.by_last_name.setdefault(name.rpartition(".")[2], []).append(Definition(path, name, node))

    def locate(self, mutant: Mutant) -> Definition | str:
        """Return the one function that holds the mutant's text, or the reason why there is none.

        Where no function has the qualified name, one of its last part will do: a method may have changed its class.
        """
        name = mutant.alias or mutant.function
        definitions = self.definitions.get(name) or self.by_last_name.get(name.rpartition(".")[2], [])
        holding = [definition for definition in definitions if exchanged(definition.node, mutant, None)]
        if len(holding) == 1:
            return holding[0]
        return f"{len(holding)} of {len(definitions)} functions named {name} hold `{mutant.original}`"


def functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield functions and methods of a module's body; those nested in a function belong to it."""
    for node in body:
        if isinstance(node, Function):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from functions([*node.body, *node.orelse], prefix)


def spots(parent: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, str, int | None]]:
    """Yield each node below with parent, field and index; without decorators, parameters and annotations."""
    for field, value in ast.iter_fields(parent):
        if field in {"decorator_list", "args", "returns", "annotation"} and not isinstance(parent, ast.Call):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                yield node, parent, field, index
                yield from spots(node)


def exchanged(function: Function, mutant: Mutant, new: ast.AST | None) -> bool:
    """Return whether the function holds the mutant's original; where there is a new node, put it there."""
    kind = ast.stmt if mutant.kind == "statement" else ast.expr
    same = [one for one in spots(function) if isinstance(one[0], kind) and ast.unparse(one[0]) == mutant.original]
    if mutant.occurrence >= len(same):
        return False
    _, parent, field, index = same[mutant.occurrence]
    if new is not None and index is None:
        setattr(parent, field, new)
    elif new is not None:
        getattr(parent, field)[index] = new
    return True


def mutated(definition: Definition, mutant: Mutant) -> types.CodeType:
    """Return the function's code with the fault in it; its lines stay those of the source."""
    module = ast.parse(definition.path.read_text(encoding="utf-8"))
    (node,) = (
        node
        for name, node in functions(module.body)
        if name == definition.name and node.lineno == definition.node.lineno
    )
    (statement,) = ast.parse(mutant.replacement).body
    new = statement if mutant.kind == "statement" else ast.parse(mutant.replacement, mode="eval").body
    assert exchanged(node, mutant, new), mutant
    code = compile(ast.fix_missing_locations(module), str(definition.path), "exec")
    return next(
        one for one in codes(code) if one.co_qualname == definition.name and one.co_firstlineno == definition.first_line
    )


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def run(*words: str, tree: Tree | None = None) -> Report:
    """Small faults that the tests must notice, each applied and tried."""
    tree = tree or Tree()
    everything = tree.mutants()
    parser = argparse.ArgumentParser("python -m bench mutants", allow_abbrev=False)
    parser.add_argument("--subject", choices=list(dict.fromkeys(one.subject for one in everything)))
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args(words)
    if options.trace:
        shutil.rmtree(tree.build, ignore_errors=True)
    mutants = [one for one in everything if options.subject in {None, one.subject}]
    before = json.loads(tree.baseline.read_text()) if tree.baseline.is_file() else {}
    code = Code(tree)
    definitions = {one.id: code.locate(one) for one in mutants}
    tree.build.mkdir(parents=True, exist_ok=True)
    nursery = Nursery(tree, before, os.fdopen(os.dup(2), "w", buffering=1))
    todo = [
        (one, definition)
        for one in mutants
        if isinstance(definition := definitions[one.id], Definition) and one.id not in nursery.done
    ]
    log = tree.build / "nursery.log"
    if todo and forked(lambda: nursery.try_all(todo), log):
        raise RuntimeError(f"the bench itself failed: {log.read_text()[-2000:]}")
    done = nursery.done | {name: "lost" for name, definition in definitions.items() if isinstance(definition, str)}
    found = {one.id: done[one.id] for one in mutants}
    # New mutants are noted and those that are killed now; a killed one stays noted as that.
    noted = before | {name: one for name, one in found.items() if name not in before or one == "killed"}
    tree.baseline.write_text(json.dumps(dict(sorted(noted.items())), indent=0) + "\n", encoding="utf-8")
    nursery.forget(found)
    regressions = [name for name, one in found.items() if before.get(name) == "killed" != one]
    lines = [f"  {name}: {definition}" for name, definition in definitions.items() if isinstance(definition, str)]
    lines += [nursery.note(), f"  {'subject':<12} killed survived lost"]
    for subject in dict.fromkeys(one.subject for one in mutants):
        count = Counter(found[one.id] for one in mutants if one.subject == subject)
        lines.append(f"  {subject:<12} {count['killed']:6} {count['survived']:8} {count['lost']:4}")
    for one in mutants:
        if found[one.id] != "killed":
            was = "; WAS KILLED" if one.id in regressions else ""
            lines.append(f"  {found[one.id]}: {one.id} {one.function}: {one.original!r} -> {one.replacement!r}{was}")
    return Report("\n".join(lines), not regressions)


class Nursery:
    """A process that has imported the tests, and runs them with a mutant each in its forks."""

    def __init__(self, tree: Tree, before: dict[str, str], progress: TextIO) -> None:
        self.tree, self.before, self.progress = tree, before, progress
        self.files = {digest(path): path for path in tree.tests()}
        self.state = digest(tree.records, *tree.sources(), *tree.tests())
        self.imported: set[Path] = set()
        self.results, self.kept_traces = tree.build / "progress.jsonl", tree.build / "traces.json"
        self.traces: dict[str, dict[str, Any]] = (
            json.loads(self.kept_traces.read_text()) if self.kept_traces.is_file() else {}
        )
        """By digest of a test file, so that it is found again after a move: functions, seconds, tests to leave out."""

    @property
    def done(self) -> dict[str, str]:
        """Results of a run over the same sources that was stopped."""
        return {one["id"]: one["found"] for one in self._noted() if one["state"] == self.state}

    def _noted(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.results.read_text().splitlines()] if self.results.is_file() else []

    def forget(self, names: Iterable[str]) -> None:
        left = [one for one in self._noted() if one["id"] not in set(names)]
        self.results.write_text("".join(json.dumps(one) + "\n" for one in left))

    def note(self) -> str:
        traces = json.loads(self.kept_traces.read_text()) if self.kept_traces.is_file() else {}
        left_out = [name for one in traces.values() if one["state"] == self.state for name in one["left_out"]]
        named = f", such as {left_out[0]}" if left_out else ""
        return f"  {len(left_out)} tests that fail without a mutant or take too long do not count{named}"

    def try_all(self, todo: Sequence[tuple[Mutant, Definition]]) -> int:
        os.chdir(self.tree.root)
        sys.path.insert(0, str(self.tree.root))
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            os.environ |= {"TMPDIR": folder, "XDG_CACHE_HOME": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
            os.environ.pop("KERNELWRIGHT_CACHE", None)
            tempfile.tempdir = folder
            _settle_hypothesis()
            self._trace([name for name in self.files if name not in self.traces])
            chosen = {one.id: self._chosen(one, definition) for one, definition in todo}
            wanted = list(dict.fromkeys(name for names in chosen.values() for name in names))
            self._trace(self._stale(wanted))
            self._import(wanted)
            live = Live([definition for _, definition in todo], self.tree.sources())
            for number, (mutant, definition) in enumerate(todo, 1):
                start = time.monotonic()
                found = self._tried(mutant, definition, chosen[mutant.id], live)
                if found != "killed" == self.before.get(mutant.id):
                    others = [name for name in self._callers(mutant, definition) if name not in chosen[mutant.id]]
                    self._trace(self._stale(others))
                    found = self._tried(mutant, definition, others, live)
                with self.results.open("a") as results:
                    results.write(json.dumps({"state": self.state, "id": mutant.id, "found": found}) + "\n")
                taken = time.monotonic() - start
                self.progress.write(f"  {number} of {len(todo)}: {mutant.id} {found} ({taken:.1f} s)\n")
        return 0

    def _stale(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.traces[name]["state"] != self.state]

    def _callers(self, mutant: Mutant, definition: Definition) -> list[str]:
        """Return test files that call a function, by either name; those first that call few others."""
        names = {definition.name, mutant.function}
        calling = [name for name in self.files if names & set(self.traces[name]["functions"])]
        return sorted(calling, key=lambda name: (len(self.traces[name]["functions"]), name))

    def _chosen(self, mutant: Mutant, definition: Definition) -> list[str]:
        """Return the first of them, as far as there is time; at least one."""
        chosen, taken = [], 0.0
        for name in self._callers(mutant, definition)[:MOST_FILES]:
            if taken + self.traces[name]["seconds"] <= FILES_S or not chosen:
                chosen.append(name)
                taken += self.traces[name]["seconds"]
        return chosen

    def _import(self, names: Iterable[str]) -> None:
        import pytest

        fresh = [path for name in names if (path := self.files[name]) not in self.imported]
        if fresh:
            pytest.main([*map(str, fresh), "--collect-only", *self._flags()])
            self.imported.update(fresh)

    def _flags(self) -> list[str]:
        return ["-q", "-m", QUICK, "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={self.tree.root}"]

    def _trace(self, names: Sequence[str]) -> None:
        """Run test files without a mutant: which functions each calls, which tests fail or take too long."""
        self._import(names)
        found = self.tree.build / "trace.json"
        for number, name in enumerate(names, 1):
            found.unlink(missing_ok=True)
            path = self.files[name]
            forked(lambda path=path: self._traced(path, found), self.tree.build / "trace.log", CPU_S)
            nothing = {"functions": [], "seconds": 0.0, "left_out": [path.name]}
            self.traces[name] = (json.loads(found.read_text()) if found.is_file() else nothing) | {"state": self.state}
            if number % 20 == 0 or number == len(names):
                self.progress.write(f"  traced {number} of {len(names)} test files\n")
                self.kept_traces.write_text(json.dumps(self.traces))

    def _traced(self, path: Path, found: Path) -> int:
        import pytest

        called: set[types.CodeType] = set()
        watch = Watch()
        sys.settrace(lambda frame, _event, _value: called.add(frame.f_code))
        code = pytest.main([str(path), *self._flags()], plugins=[watch])
        sys.settrace(None)
        ours = set(self.tree.sources())
        names = sorted({one.co_qualname for one in called if Path(one.co_filename).resolve() in ours})
        left_out = watch.failed | {name for name, seconds in watch.seconds.items() if seconds > TEST_S}
        seconds = sum(one for name, one in watch.seconds.items() if name not in left_out)
        found.write_text(json.dumps({"functions": names, "seconds": seconds, "left_out": sorted(left_out)}))
        return int(code)

    def _tried(self, mutant: Mutant, definition: Definition, names: Sequence[str], live: "Live") -> str:
        if not names:
            return "survived"
        left_out = {test for name in names for test in self.traces[name]["left_out"]}
        log = self.tree.build / "mutant.log"
        code = forked(lambda: self._tests(live, mutant, definition, names, left_out), log, CPU_S)
        if code in {4, BROKEN}:
            raise RuntimeError(f"{mutant} could not be tried: {log.read_text()[-2000:]}")
        return "survived" if code in {0, 5} else "killed"

    def _tests(
        self, live: "Live", mutant: Mutant, definition: Definition, names: Sequence[str], left_out: set[str]
    ) -> int:
        import pytest

        live.exchange(definition, mutated(definition, mutant))
        return int(pytest.main([*(str(self.files[name]) for name in names), "-x", *self._flags()], [Strict(left_out)]))


def _settle_hypothesis() -> None:
    """Let property tests draw the same examples each time, and end at the first failure."""
    with contextlib.suppress(ModuleNotFoundError):
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
        settings.load_profile("mutants")


class Watch:
    """A plugin of pytest that notes how long tests take and which did not pass."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


class Strict:
    """A plugin of pytest that leaves tests out, and ends the process where another takes too long."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.names]

    def pytest_runtest_setup(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)  # without a handler the signal kills


class Live:
    def __init__(self, definitions: Sequence[Definition], sources: Iterable[Path]) -> None:
        for path in {definition.path for definition in definitions}:
            _import_file(path)
        self.functions: dict[tuple[Path, str, int], list[types.FunctionType]] = {}
        self.caches = []
        ours, resolved = set(sources), functools.cache(lambda name: Path(name).resolve())
        for one in gc.get_objects():
            plain = inspect.unwrap(one) if isinstance(one, functools._lru_cache_wrapper) else one
            if isinstance(plain, types.FunctionType) and resolved(plain.__code__.co_filename) in ours:
                code = plain.__code__
                key = resolved(code.co_filename), code.co_qualname, code.co_firstlineno
                self.functions.setdefault(key, []).append(plain)
                if plain is not one:
                    self.caches.append(one)
        gc.freeze()

    def exchange(self, definition: Definition, code: types.CodeType) -> None:
        """Let the function run other code, and forget what was cached with its own."""
        for function in self.functions[definition.path, definition.name, definition.first_line]:
            function.__code__ = code
        for cache in self.caches:
            cache.cache_clear()


def _import_file(path: Path) -> None:
    """Import a module by the name under which it ships."""
    parts = path.relative_to(Path.cwd()).with_suffix("").parts
    for name in (".".join(("kernelwright", *parts)), ".".join(parts)):
        with contextlib.suppress(ModuleNotFoundError):
            if (spec := importlib.util.find_spec(name)) and Path(spec.origin or "").resolve() == path:
                importlib.import_module(name)
                return
    raise RuntimeError(f"{path} cannot be imported")


def digest(*paths: Path) -> str:
    """Hash the contents of files, whatever their names."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def forked(work: Callable[[], int], log: Path, cpu_s: int | None = None) -> int:
    """Return the exit code of `work` in a process of its own, negative for a signal; all of its group ends with it.

    With `cpu_s`, it may use so much processor time and six times as much time by the clock.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            if cpu_s is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
                resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    ended = os.pidfd_open(child)
    try:
        select.select([ended], [], [], None if cpu_s is None else 6 * cpu_s)
    finally:
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
