import sys
from importlib import import_module

import pytest

from kernelwright.problems.problem import LibraryMissing


@pytest.mark.parametrize(
    "name, missing, said",
    [
        ("openenv_environment", ("fastapi",), r"fastapi.*'kernelwright\[openenv\]'"),
        ("verifiers_taskset", ("verifiers", "verifiers.v1"), r"verifiers.*'verifiers>=0\.4'"),
    ],
)
def test_a_hook_without_its_library_names_what_to_install(monkeypatch, name, missing, said):
    module = f"kernelwright.integrations.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for one in missing:
        monkeypatch.setitem(sys.modules, one, None)  # as if it were not installed, also where it is
    with pytest.raises(LibraryMissing, match=said):
        import_module(module)
