"""Names of `import kernelwright`, also next to folders that are named like its packages."""

import subprocess
import sys
from pathlib import Path

import kernelwright

ROOT = Path(__file__).parents[2]
ASK_FOR_ALL = """
import sys
sys.path.append({root!r})
import kernelwright
for name in kernelwright.__all__:
    getattr(kernelwright, name)
"""


def test_every_public_name_has_a_home():
    assert sorted(name for names in kernelwright._HOMES.values() for name in names) == sorted(kernelwright.__all__)


def test_public_names_come_from_our_own_packages_beside_a_users_folders_of_the_same_names(tmp_path):
    for name in ("agent", "evals", "problems", "prompts", "sandbox"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the user\\'s own')\n")
    program = ASK_FOR_ALL.format(root=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_prompt_of_python_completes_every_public_name():
    command = [sys.executable, "-c", "import kernelwright; print(*dir(kernelwright))"]
    assert set(kernelwright.__all__) < set(subprocess.check_output(command, text=True).split())
