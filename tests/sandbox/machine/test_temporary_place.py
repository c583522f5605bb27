"""Where the work folders of children go."""

import subprocess
import sys
from pathlib import Path

NOWHERE_TO_WRITE = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.machine.workfolder import WorkFolder
try:
    WorkFolder()
except MachineError as error:
    print(error)
"""


def test_a_machine_without_a_folder_for_temporary_files_is_told_in_one_sentence():
    done = subprocess.run(
        [sys.executable, "-B", "-c", NOWHERE_TO_WRITE],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.stdout == (
        "no folder for temporary files can be written to; set TMPDIR to one on a disk with at least 2 GiB free\n"
    ), done.stderr
