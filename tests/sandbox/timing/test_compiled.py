"""torch.compile as a baseline: compiled once for a problem, device and versions, and then found by every judging."""

import json
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
import torch

from kernelwright.sandbox.backends import CpuBackend, backend_of
from kernelwright.sandbox.calls.reference import CompiledGraphs, Form
from kernelwright.sandbox.jail.zygote import ZYGOTES
from kernelwright.sandbox.judge.judging import judge
from kernelwright.sandbox.storage import VARIABLE
from kernelwright.sandbox.timing.baseline_facts import BaselineTimes
from kernelwright.sandbox.timing.baselines import CompiledStore, CompilerFolder
from kernelwright.sandbox.verdict.errors import BrokenProblem
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Passed
from kernelwright_child import driver
from kernelwright_child.reference import note_no_launches
from tests.support.problems import stateless, tiny_problem

SETTINGS = JudgeSettings(threads=1, warm_up=1, worker_pairs=1, min_pairs=4, max_pairs=4, compiled=("default",))
SCALED = tiny_problem(stateless("x * 2 + 1", "torch.randn(64, 64)"), name="scaled", size="file")
HONEST = Candidate(source=f"{SCALED.source}\nModelNew = Model\n")


def facts_of(folder):
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def cache():
    """A cache for this module, in a place that every user may reach."""
    folder = Path(tempfile.mkdtemp(prefix="kernelwright-test-"))
    folder.chmod(0o777)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder))
        yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def compiled(cache):
    """What a first process compiled, and what the store holds since."""
    session = backend_of(SETTINGS).reference(SCALED, Form("default"))
    child = session._session._child
    assert child.way == "forked" and child._zygote.form.imports == CompilerFolder.imports  # the compiler was there
    session.close()
    return session.compilation, facts_of(cache / "compiled")


@pytest.mark.slow
def test_the_first_process_compiles_and_what_it_made_is_kept(compiled):
    compilation, kept = compiled
    assert compilation == CompiledGraphs(made=1, found=0)
    assert any(name.endswith(".so") for name in kept)


@pytest.mark.slow
@pytest.mark.parametrize("without", [(), pytest.param(("namespaces",), marks=pytest.mark.long)])
def test_a_second_process_compiles_nothing_and_computes_the_same(cache, compiled, without):
    settings = SETTINGS.model_copy(update={"jail_without": without})
    with closing(backend_of(settings).reference(SCALED, Form("default"))) as session:
        values = session.draw()
        (output,) = session.call(values).output.tensors
        expected = 2 * values.tensors[0].tensor() + 1
    assert session.compilation == CompiledGraphs(made=0, found=1)
    assert facts_of(cache / "compiled") == compiled[1]
    torch.testing.assert_close(output.tensor(), expected)


@pytest.mark.long
@pytest.mark.slow
def test_a_damaged_product_is_thrown_away_compiled_anew_and_both_are_logged(compiled, cache, logged):
    library = next((cache / "compiled").rglob("*.main.so"), None) or next((cache / "compiled").rglob("*.so"))
    library.write_bytes(b"no machine code")
    session = backend_of(SETTINGS).reference(SCALED, Form("default"))
    session.close()
    assert session.compilation == CompiledGraphs(made=1, found=0)
    assert "thrown away" in logged.text
    assert "torch.compile (default)" in logged.text and "compiled 1 graphs" in logged.text


SPY = """
import os
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        found = [f"told of {os.environ['TORCHINDUCTOR_CACHE_DIR']}"] if "TORCHINDUCTOR_CACHE_DIR" in os.environ else []
        for path in (ROOT, os.path.join(ROOT, "compiled")):
            try:
                found += [f"saw {name} in {path}" for name in os.listdir(path) if name != "toolchains"]
            except OSError:
                pass
            try:
                open(os.path.join(path, "left"), "w").close()
                found.append(f"wrote to {path}")
            except OSError:
                pass
        raise RuntimeError(f"found: {found}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("without", [(), ("namespaces",)])
def test_a_candidate_neither_sees_nor_writes_what_was_compiled(cache, compiled, without):
    (cache / "compiled").chmod(0o777)
    settings = SETTINGS.model_copy(update={"jail_without": without})
    verdict = judge(SCALED, Candidate(source=SPY.replace("ROOT", repr(str(cache)))), settings)
    assert isinstance(verdict, Failed), verdict
    assert "found: []" in verdict.reason
    assert not list(cache.rglob("left"))


@pytest.mark.long
@pytest.mark.slow
def test_a_verdict_names_the_better_baseline_and_leaves_the_times_of_both(cache, compiled):
    verdict = judge(SCALED, HONEST, SETTINGS)
    assert isinstance(verdict, Passed), verdict
    found, closest = report(verdict), verdict.measurement.closest
    assert found["against"] == closest.baseline
    assert found["speedup"] == min(pairing.speedup for pairing in verdict.measurement.pairings)
    if verdict.measurement.is_steady:
        assert {time.baseline for time in BaselineTimes(SCALED).known()} == {"eager", "torch.compile default"}


LINEAR = SCALED.model_copy(
    update={
        "name": "linear",
        "source": SCALED.source.replace("return x * 2 + 1", "return torch.relu(x @ x.T)").replace("64, 64", "256, 256"),
    }
)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device")
@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_on_a_device_too_a_second_process_compiles_nothing(cache, mode):
    settings = SETTINGS.model_copy(update={"device": "cuda"})
    found = []
    for _ in range(2):
        session = backend_of(settings).reference(LINEAR, Form(mode))
        assert session._session._child.way == "forked", ZYGOTES.obstacle
        session.close()
        found.append(session.compilation)
    first, second = found
    assert first.made >= 1
    assert second.made == 0 < second.found


LONG = SCALED.model_copy(update={"name": "long", "source": SCALED.source.replace("64, 64", "4096, 4096")})
"""Of a kernel for so many elements there are several launches to choose from."""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(driver.device_count() == 0, reason="the driver sees no CUDA device")
def test_on_a_device_a_later_process_writes_nothing_to_where_an_earlier_one_was(cache, monkeypatch):
    """In a folder for temporary files that is the judge's own, as in the one that all share."""
    with tempfile.TemporaryDirectory() as own:
        Path(own).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", own)
        for _ in range(2):
            session = backend_of(SETTINGS.model_copy(update={"device": "cuda"})).reference(LONG, Form("default"))
            session.close()
        assert session.compilation == CompiledGraphs(made=0, found=1)
        assert not list(Path(own).glob("*/compiler"))


def test_no_choice_of_a_launch_is_noted_where_another_child_would_look_for_it(tmp_path, monkeypatch):
    """In the compiler's own words: it offers a place for each kernel with several launches, until told not to."""
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    monkeypatch.setattr(AutotuneCache, "_setup_local_cache", AutotuneCache._setup_local_cache)
    switches = {"autotune_local_cache": True, "autotune_remote_cache": False, "is_fbcode": False}
    asked = switches, str(tmp_path / "k.py"), ""
    assert AutotuneCache.create(*asked) is not None
    note_no_launches()
    assert AutotuneCache.create(*asked) is None


@pytest.mark.slow
def test_what_torch_compile_refuses_is_told_with_the_mode(cache):
    with pytest.raises(BrokenProblem, match=r"torch.compile swift: .*without torch"):
        backend_of(SETTINGS).reference(SCALED, Form("swift"))


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return CompiledStore()


@pytest.fixture
def products(tmp_path):
    folder = tmp_path / "compiler"
    (folder / "fxgraph" / "ab").mkdir(parents=True)
    (folder / "fxgraph" / "ab" / "graph").write_bytes(b"a graph")
    return folder


def test_each_problem_mode_and_number_of_threads_has_products_of_its_own():
    other = SCALED.model_copy(update={"direction": "both"})
    backend, threads = CpuBackend(SETTINGS), CpuBackend(SETTINGS.model_copy(update={"threads": 2}))
    keys = {
        CompiledStore.key(SCALED, backend, "default"),
        CompiledStore.key(other, backend, "default"),
        CompiledStore.key(SCALED, backend, "max-autotune-no-cudagraphs"),
        CompiledStore.key(SCALED, threads, "default"),
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    "harm",
    [
        lambda entry: (entry / "build/more").touch(),
        lambda entry: (entry / "build/fxgraph/ab/graph").write_bytes(b"x"),
        lambda entry: (entry / "entry.json").write_text(json.dumps(["nothing"])),
    ],
    ids=["a file added", "a file changed", "a list that is none of ours"],
)
def test_a_harmed_entry_is_unseen(store, products, tmp_path, harm):
    (tmp_path / "empty").mkdir()
    assert store.keep("a", products)
    harm(store.root / "a")
    assert not store.restore("a", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == [] and len(store) == 0


def test_a_link_is_never_kept(store, products):
    (products / "link").symlink_to("/etc/passwd")
    assert not store.keep("a", products)
    assert len(store) == 0


def test_the_longest_unused_goes_where_there_is_no_room(products, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    (products / "large").write_bytes(b"x" * 2**16)
    store = CompiledStore(limit_bytes=2**17)
    for key in ("a", "b", "c"):
        store.keep(key, products)
    store.trim()
    assert len(store) == 1
