"""Mutants that the tests kill: small faults in functions that decide numbers, kept as data and drawn once.

`python -m bench mutants` applies each kept mutant and runs the quick tests that call the mutated function. It prints
killed, survived and lost of each subject, and fails where a mutant of the baseline is no longer killed. Options:

- `--subject NAME` runs one subject;
- `--trace` records afresh which test files call which functions, otherwise kept in `build/mutants`;
- `--draw` draws all mutants again, with a fixed seed, and forgets the baseline.

A mutant names its function and its expression, not its file, so it survives a move of the function. After a rename,
set `"alias"` of the record to the new qualified name, such as `Judge.judge`. After an expression was rewritten, edit
`original` and `replacement` of the record; `id` and the fault stay the same.

Sources are never changed. A process that has imported all tests forks once a mutant and exchanges the function's code
object there. So tests do not count that start a Python process of their own, nor does what runs during an import.
A stopped run goes on where it was. Never draw again to get rid of a survivor.
"""

import argparse
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from bench.mutation import Code, Mutant, Place, Tree, draw, first_line, mutated

QUICK = "not slow and not long and not gpu and not corpus"
MOST_FILES, FILES_S, TEST_S = 8, 30.0, 3.0
"""Test files that a mutant is tried on, the most specific first; how long they may take together, and one test."""
TEST_CPU_S, CPU_S = 9, 120
"""Processor time of one test, after which its mutant counts as killed; and of a file of tests, or all of a mutant."""
MOST_BYTES = 12 << 30
BROKEN, PR_SET_PDEATHSIG = 70, 1
"""Exit code of a fork that failed by an error of this bench; and the call that ends a fork with its parent."""


class Outcome(NamedTuple):
    """Results by mutant, beside those of the baseline."""

    mutants: Sequence[Mutant]
    found: dict[str, str]
    before: dict[str, str]
    note: str

    @property
    def regressions(self) -> list[str]:
        """Those that were killed and now are not."""
        return [name for name, found in self.found.items() if self.before.get(name) == "killed" != found]

    @property
    def holds(self) -> bool:
        """Whether every mutant that was killed still is."""
        return not self.regressions

    def __str__(self) -> str:
        lines = [f"  {'subject':<12} killed survived lost"]
        for subject in dict.fromkeys(one.subject for one in self.mutants):
            count = Counter(self.found[one.id] for one in self.mutants if one.subject == subject)
            lines.append(f"  {subject:<12} {count['killed']:6} {count['survived']:8} {count['lost']:4}")
        for one in self.mutants:
            if self.found[one.id] != "killed":
                was = "; WAS KILLED" if one.id in self.regressions else ""
                edit = f"{one.original!r} -> {one.replacement!r}"
                lines.append(f"  {self.found[one.id]}: {one.id} {one.function}: {edit}{was}")
        return "\n".join([*lines, self.note])


def run(*words: str, tree: Tree | None = None) -> Outcome:
    """Draw or read the mutants, try those that are not done yet, and compare with the baseline."""
    tree = tree or Tree()
    options = _options(words, tree)
    if options.draw:
        write_records(tree, draw(tree))
        tree.baseline.unlink(missing_ok=True)
    if options.trace:
        shutil.rmtree(tree.build, ignore_errors=True)
    kept = [one for one in read_records(tree) if options.subject in {None, one.subject}]
    before = json.loads(tree.baseline.read_text()) if tree.baseline.is_file() else {}
    code = Code(tree)
    places = {one.id: code.locate(one) for one in kept}
    tree.build.mkdir(parents=True, exist_ok=True)
    nursery = Nursery(tree, before, os.fdopen(os.dup(2), "w", buffering=1))
    todo = [(one, place) for one in kept if isinstance(place := places[one.id], Place) and one.id not in nursery.done]
    log = tree.build / "nursery.log"
    if todo and forked(lambda: nursery.try_all(todo), log):
        raise RuntimeError(f"the bench itself failed: {log.read_text()[-2000:]}")
    done = nursery.done | {name: "lost" for name, place in places.items() if isinstance(place, str)}
    found = {one.id: done[one.id] for one in kept}
    write_baseline(tree, before, found)
    nursery.forget(found)
    lost = [f"  {name}: {place}" for name, place in places.items() if isinstance(place, str)]
    return Outcome(kept, found, before, "\n".join([*lost, nursery.note()]))


def _options(words: Sequence[str], tree: Tree) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench mutants", allow_abbrev=False)
    parser.add_argument("--subject", choices=list(tree.subjects))
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--draw", action="store_true")
    return parser.parse_args(words)


def read_records(tree: Tree) -> list[Mutant]:
    """The kept mutants."""
    return [Mutant(**one) for one in json.loads(tree.records.read_text(encoding="utf-8"))]


def write_records(tree: Tree, drawn: Sequence[Mutant]) -> None:
    """Keep these in place of all others."""
    records = [{key: value for key, value in one._asdict().items() if value is not None} for one in drawn]
    lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    tree.records.parent.mkdir(parents=True, exist_ok=True)
    tree.records.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def write_baseline(tree: Tree, before: dict[str, str], found: dict[str, str]) -> None:
    """Note new mutants and those that are killed now; what was killed stays noted as that."""
    noted = before | {name: one for name, one in found.items() if name not in before or one == "killed"}
    tree.baseline.write_text(json.dumps(dict(sorted(noted.items())), indent=0) + "\n", encoding="utf-8")


class Nursery:
    """Runs tests with a mutant each in forks of a process that has imported them all."""

    def __init__(self, tree: Tree, before: dict[str, str], progress: TextIO) -> None:
        self.tree, self.before, self.progress = tree, before, progress
        self.files = {digest(path): path for path in tree.tests()}
        self.state = digest(tree.records, *tree.sources(), *tree.tests())
        self.imported: set[Path] = set()

    @property
    def done(self) -> dict[str, str]:
        """Results of a run over the same sources that was stopped."""
        return {one["id"]: one["found"] for one in self._noted() if one["state"] == self.state}

    @property
    def _results(self) -> Path:
        return self.tree.build / "progress.jsonl"

    def _noted(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self._results.read_text().splitlines()] if self._results.is_file() else []

    def forget(self, names: Iterable[str]) -> None:
        """Let the next run try these again."""
        left = [one for one in self._noted() if one["id"] not in set(names)]
        self._results.write_text("".join(json.dumps(one) + "\n" for one in left))

    def note(self) -> str:
        """How the tests were chosen."""
        traces = [one for one in self._traces().values() if one["state"] == self.state]
        left_out = [name for one in traces for name in one["left_out"]]
        named = f", such as {left_out[0]}" if left_out else ""
        return f"  {len(left_out)} tests that fail without a mutant or take too long do not count{named}"

    @property
    def _kept_traces(self) -> Path:
        return self.tree.build / "traces.json"

    def _traces(self) -> dict[str, dict[str, Any]]:
        """By digest of a test file, so that it is found again after a move."""
        return json.loads(self._kept_traces.read_text()) if self._kept_traces.is_file() else {}

    def try_all(self, todo: Sequence[tuple[Mutant, Place]]) -> int:
        """Try each mutant and note its result."""
        os.chdir(self.tree.root)
        sys.path.insert(0, str(self.tree.root))
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            os.environ |= {"TMPDIR": folder, "XDG_CACHE_HOME": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
            os.environ.pop("KERNELWRIGHT_CACHE", None)
            tempfile.tempdir = folder
            _settle_hypothesis()
            self._trace([name for name in self.files if name not in self._traces()])
            chosen = {one.id: self._chosen(one, place) for one, place in todo}
            wanted = dict.fromkeys(name for names in chosen.values() for name in names)
            self._trace([name for name in wanted if self._traces()[name]["state"] != self.state])
            self._import(wanted)
            live = Live([place for _, place in todo], self.tree.sources())
            for number, (mutant, place) in enumerate(todo, 1):
                start = time.monotonic()
                found = self._tried(mutant, place, chosen[mutant.id], live)
                if found != "killed" == self.before.get(mutant.id):
                    others = [name for name in self._callers(mutant, place) if name not in chosen[mutant.id]]
                    self._trace([name for name in others if self._traces()[name]["state"] != self.state])
                    found = self._tried(mutant, place, others, live)
                with self._results.open("a") as results:
                    results.write(json.dumps({"state": self.state, "id": mutant.id, "found": found}) + "\n")
                taken = time.monotonic() - start
                self.progress.write(f"  {number} of {len(todo)}: {mutant.id} {found} ({taken:.1f} s)\n")
        return 0

    def _callers(self, mutant: Mutant, place: Place) -> list[str]:
        """Test files that call a function, also under its name before a rename; those first that call few others."""
        traces = self._traces()
        calling = [name for name in self.files if {place.name, mutant.function} & set(traces[name]["functions"])]
        return sorted(calling, key=lambda name: (len(traces[name]["functions"]), name))

    def _chosen(self, mutant: Mutant, place: Place) -> list[str]:
        """The first of them, as far as there is time; at least one."""
        traces, chosen, taken = self._traces(), [], 0.0
        for name in self._callers(mutant, place)[:MOST_FILES]:
            if taken + traces[name]["seconds"] <= FILES_S or not chosen:
                chosen.append(name)
                taken += traces[name]["seconds"]
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
        traces, found = self._traces(), self.tree.build / "trace.json"
        for number, name in enumerate(names, 1):
            found.unlink(missing_ok=True)
            path = self.files[name]
            forked(lambda path=path: self._traced(path, found), self.tree.build / "trace.log", CPU_S)
            nothing = {"functions": [], "seconds": 0.0, "left_out": [path.name]}
            traces[name] = (json.loads(found.read_text()) if found.is_file() else nothing) | {"state": self.state}
            if number % 20 == 0 or number == len(names):
                self.progress.write(f"  traced {number} of {len(names)} test files\n")
                self._kept_traces.write_text(json.dumps(traces))

    def _traced(self, path: Path, found: Path) -> int:
        import pytest

        called: set[types.CodeType] = set()
        watch = Watch()
        sys.settrace(lambda frame, _event, _value: called.add(frame.f_code))
        code = pytest.main([str(path), *self._flags()], plugins=[watch])
        sys.settrace(None)
        ours = set(self.tree.sources())
        names = sorted({one.co_qualname for one in called if Path(one.co_filename).resolve() in ours})
        seconds = sum(one for name, one in watch.seconds.items() if name not in watch.left_out)
        record = {"functions": names, "seconds": seconds, "left_out": sorted(watch.left_out)}
        found.write_text(json.dumps(record))
        return int(code)

    def _tried(self, mutant: Mutant, place: Place, names: Sequence[str], live: "Live") -> str:
        if not names:
            return "survived"
        traces = self._traces()
        left_out = {test for name in names for test in traces[name]["left_out"]}
        log = self.tree.build / "mutant.log"
        code = forked(lambda: self._tests(live, mutant, place, names, left_out), log, CPU_S)
        if code in {4, BROKEN}:
            raise RuntimeError(f"{mutant} could not be tried: {log.read_text()[-2000:]}")
        return "survived" if code in {0, 5} else "killed"

    def _tests(self, live: "Live", mutant: Mutant, place: Place, names: Sequence[str], left_out: set[str]) -> int:
        import pytest

        live.exchange(place, mutated(place, mutant))
        return int(pytest.main([*(str(self.files[name]) for name in names), "-x", *self._flags()], [Strict(left_out)]))


def _settle_hypothesis() -> None:
    """Let property tests draw the same examples each time, and end at the first failure."""
    with contextlib.suppress(ModuleNotFoundError):
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
        settings.load_profile("mutants")


class Watch:
    """A plugin that notes how long tests take and which did not pass."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest for setup, call and teardown."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    @property
    def left_out(self) -> set[str]:
        """Names of tests that can not tell a mutant."""
        return self.failed | {name for name, seconds in self.seconds.items() if seconds > TEST_S}


class Strict:
    """A plugin that leaves tests out, and ends the process where another takes too long."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Called by pytest with all that it found."""
        items[:] = [item for item in items if item.nodeid not in self.names]

    def pytest_runtest_setup(self) -> None:
        """Called by pytest before each test; without a handler the timer's signal kills."""
        signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)


class Live:
    """Function objects of this process."""

    def __init__(self, places: Sequence[Place], sources: Iterable[Path]) -> None:
        for path in {place.path for place in places}:
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

    def exchange(self, place: Place, code: types.CodeType) -> None:
        """Let the function run other code, and forget what was cached with its own."""
        for function in self.functions[place.path, place.name, first_line(place.node)]:
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
    raise RuntimeError(f"{path} can not be imported")


def digest(*paths: Path) -> str:
    """Of what stands in these files, whatever their names."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def forked(work: Callable[[], int], log: Path, cpu_s: int | None = None) -> int:
    """Exit code of `work` in a process of its own, negative for a signal; all of its group ends with it.

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
