import subprocess
import sys
from pathlib import Path

NOWHERE_TO_WRITE = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.workfolder import WorkFolder
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
    assert done.stdout.count("\n") == 1 and "TMPDIR" in done.stdout and "2 GiB" in done.stdout, done.stderr
