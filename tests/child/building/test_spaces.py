"""torch installed below a folder with spaces, as in a checkout in "my projects"."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BUILD = """
import sys
from torch.utils import cpp_extension
cpp_extension.TORCH_LIB_PATH = sys.argv[1]
from kernelwright_child import builder
builder.record(sys.argv[2])
source = 'extern "C" int one() { return 1; }'
print(cpp_extension.load_inline("one", [source], no_implicit_headers=True, is_python_module=False))
"""


@pytest.mark.slow
def test_an_extension_is_linked_where_the_path_of_torchs_libraries_has_spaces(tmp_path):
    spaced = tmp_path / "my projects" / "lib"
    spaced.parent.mkdir()
    spaced.symlink_to(Path(torch.__file__).parent / "lib")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(spaced), str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3], env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path(done.stdout.strip()).is_file()
