"""The best kernel of each problem, each in a folder that can be used and checked without the run."""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from kernelwright.agent.log.best import JUDGE_AGAIN, PROBLEM, device_option
from kernelwright.evals.formats.samples import Outcome, best_of
from kernelwright.problems.formats.reading import safe_name, write_problem
from kernelwright.sandbox.machine.atomic import write_atomically
from kernelwright.sandbox.verdict.in_words import DOUBTS, LAUNCH_BOUND, others_of, speedup_words
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Passed

USE = '''"""Use the kernel in a model: put it in the place of the module that it replaces.

    from use import replace, load

    layer = load()                          # a new one, with the reference's constructor arguments
    replace(my_model, "block.norm", layer)  # in place of the submodule of that name, with its weights
"""

from pathlib import Path
from types import ModuleType

import torch

HERE = Path(__file__).parent


def _module(name: str) -> ModuleType:
    path = HERE / name
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def load(*arguments: object) -> torch.nn.Module:
    """The kernel as a module; without arguments it is made for the sizes that it was judged on."""
    make = _module("candidate.py").ModelNew
    given = arguments or _module("problem/reference.py").get_init_inputs()
    return make(**given) if isinstance(given, dict) else make(*given)


def replace(model: torch.nn.Module, name: str, layer: torch.nn.Module) -> None:
    """Put `layer` in the place of the submodule `name`, and its weights into it where the names agree."""
    parent, _, last = name.rpartition(".")
    owner = model.get_submodule(parent)
    layer.load_state_dict(getattr(owner, last).state_dict(), strict=False)
    setattr(owner, last, layer)


if __name__ == "__main__":
    reference = _module("problem/reference.py")
    torch.manual_seed(0)
    given = reference.get_init_inputs()
    theirs = reference.Model(**given) if isinstance(given, dict) else reference.Model(*given)
    mine = load()
    mine.load_state_dict(theirs.state_dict(), strict=False)
    inputs = reference.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(mine(*inputs), theirs(*inputs), rtol=1e-2, atol=1e-2)
    print("the kernel and the reference agree on one draw of inputs; `kernelwright judge` says it exactly")
'''
README = """# {title}

The best kernel of run `{run}` for `{name}`: attempt {attempt}, by `{model}`.

- {speedup} against the fastest baseline at equal accuracy, {against}{others} ({baselines})
- candidate {candidate_ms:.4g} ms on {device}{how}, by the clock `{clock}`{doubts}
- judged with: {versions}

| file | is |
|---|---|
| `candidate.py` | the kernel, as class `ModelNew`; needs nothing else from here |
| `problem/` | what it replaces and the rules that it was judged by |
| `verdict.json` | the judge's report, with every raw sample |
| `use.py` | puts the kernel into a model; run by itself it tries the kernel once |

Use it in a model:

```
from use import load, replace
replace(my_model, "name.of.the.submodule", load())
```

Verify it, here or on another machine:

```
{judge_again}
```
"""


def write_best(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """A folder for the best kernel of each problem that has one; the folders.

    Where a problem has none and an earlier export left a kernel that is refused now, that one goes away.
    """
    best = best_of(outcomes)
    for outcome in outcomes:
        if outcome.problem.name not in best:
            _remove_stale(folder / safe_name(outcome.problem.name), outcome)
    return [write_kept(folder / safe_name(name), outcome) for name, outcome in best.items()]


def _remove_stale(folder: Path, refused: Outcome) -> None:
    """Remove what `write_kept` wrote where it is of this candidate; what others put beside it stays."""
    kernel = folder / "candidate.py"
    if not kernel.is_file() or sha256(kernel.read_bytes()).hexdigest() != refused.sample.candidate.digest:
        return
    for name in ("candidate.py", "verdict.json", "use.py", "README.md"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PROBLEM, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def write_kept(folder: Path, outcome: Outcome) -> Path:
    assert isinstance(outcome.verdict, Passed), "only what passed is kept"
    folder.mkdir(parents=True, exist_ok=True)
    write_problem(folder / PROBLEM, outcome.problem)
    facts = outcome.facts or {}
    about = {"problem": outcome.problem.name, "problem_digest": outcome.problem.digest}
    about |= {"candidate_digest": outcome.sample.candidate.digest, "device": outcome.device}
    texts = {
        "candidate.py": outcome.sample.candidate.source,
        "verdict.json": json.dumps(report(outcome.verdict) | about | facts, indent=2) + "\n",
        "use.py": USE,
        "README.md": _readme(outcome, outcome.verdict, facts),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return folder


def _readme(outcome: Outcome, verdict: Passed, facts: dict[str, object]) -> str:
    measurement = verdict.measurement
    doubts = DOUBTS.get(measurement.comparison, ""), LAUNCH_BOUND if measurement.is_launch_bound else ""
    return README.format(
        title=outcome.problem.title,
        name=outcome.problem.name,
        run=facts.get("run", "?"),
        attempt=facts.get("attempt", "?"),
        model=facts.get("model", "?"),
        speedup=speedup_words(verdict),
        against=measurement.closest.baseline,
        others=others_of(measurement),
        clock=measurement.timing_clock,
        doubts="".join(f"\n- {line}" for line in doubts if line),
        baselines=", ".join(f"{name} {ms:.4g} ms" for name, ms in measurement.baselines_ms.items()),
        candidate_ms=measurement.candidate_ms,
        device=outcome.device,
        how=", measured by a second judge, in new processes and with new seeds" if facts.get("confirmed") else "",
        judge_again=JUDGE_AGAIN + device_option(verdict),
        versions=", ".join(f"{name} {version}" for name, version in verdict.evidence.versions.items()),
    )
