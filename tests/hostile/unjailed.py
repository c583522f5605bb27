"""The snooping candidate without a jail: prints as JSON what worked. Proof that the attempts are real ones.

`python -m tests.hostile.unjailed`, as an ordinary user who sees a read-only machine: see `test_unprivileged.py`.
"""

import json
import tempfile
from pathlib import Path

from kernelwright.sandbox.judge.judging import Judge
from tests.hostile.attacks import ATTACKS, PROBLEM
from tests.hostile.conftest import TIGHT, reference_process
from tests.hostile.snooping import told
from tests.hostile.surroundings import Surroundings


def main() -> None:
    """Judge it with `jail="off"`. It is not asked to trace the judge, which would stop and never answer."""
    surroundings = Surroundings(Path(tempfile.mkdtemp()))
    tempfile.tempdir = str(surroundings.work)
    with Judge(PROBLEM, TIGHT.model_copy(update={"jail": "off"})) as judge:
        around = surroundings.around(True, reference_process(judge), spared=("ptrace",))
        candidate = ATTACKS["snooping"].candidate(around)
        verdict = judge.judge(candidate)
    surroundings.close()
    print(json.dumps(json.loads(told(verdict.log))["worked"]))


if __name__ == "__main__":
    main()
