"""A machine without Python.h, as Debian's python3 leaves it: the machine is named, not the candidate."""

import pytest

from kernelwright.sandbox.toolchain import require_headers
from kernelwright.sandbox.verdict.errors import MachineError

PLAIN = "load_inline(name='a', cpp_sources=[S], no_implicit_headers=True, is_python_module=False)"
WANTING = {
    "load_inline by itself": "ext = load_inline(name='a', cpp_sources=[S], functions=['f'])",
    "torch's header": f'S = "#include <torch/extension.h>"\n{PLAIN}',
    "pybind's header": f'S = "# include <pybind11/pybind11.h>"\n{PLAIN}',
    "Triton's launcher": "import triton\nimport triton.language as tl",
    "Triton's launcher under Helion": "import helion\nimport helion.language as hl",
}
CONTENT = {"a plain library": PLAIN, "no extension": "import torch\nclass ModelNew: pass"}


@pytest.mark.parametrize("source", WANTING.values(), ids=WANTING)
def test_a_candidate_that_needs_the_missing_header_is_told_what_to_install(tmp_path, source):
    with pytest.raises(MachineError, match=r"Python\.h; .*apt-get install"):
        require_headers(source, tmp_path / "Python.h")


@pytest.mark.parametrize("source", CONTENT.values(), ids=CONTENT)
def test_a_candidate_that_needs_no_header_is_judged_without_it(tmp_path, source):
    require_headers(source, tmp_path / "Python.h")


def test_where_the_header_is_nothing_is_refused(tmp_path):
    (tmp_path / "Python.h").touch()
    for source in WANTING.values():
        require_headers(source, tmp_path / "Python.h")
