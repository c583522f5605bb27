"""The packages of further languages are read by the candidates to come: no candidate can change one."""

import importlib.util
from pathlib import Path

import pytest

from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.jail import layers as jail
from kernelwright.sandbox.machine import PACKAGES, package_version
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder

pytestmark = pytest.mark.slow
CHANGES = """
import os
for path in {paths}:
    for change in (lambda: open(path, "a"), lambda: os.unlink(path), lambda: os.rename(path, path + "-old"),
                   lambda: open(os.path.dirname(path) + "/new.py", "w")):
        try:
            change()
        except OSError:
            continue
        raise SystemExit(f"{{path}} could be changed")
class ModelNew: pass
"""


@pytest.mark.parametrize("language", PACKAGES)
@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["namespaces", "alone"])
def test_a_builder_can_not_change_the_package_that_others_read(language, without):
    if package_version(language) is None:
        pytest.skip(f"needs the package {PACKAGES[language].distribution}")
    if bubblewrap.obstacle() if not without else not jail.landlock_abi():
        pytest.skip("this layer is not to be had here")
    spec = importlib.util.find_spec(PACKAGES[language].module)
    assert spec is not None and spec.origin is not None
    paths = [spec.origin, *map(str, sorted(Path(spec.origin).parent.rglob("*.h*"))[:2])]
    folder = WorkFolder()
    try:
        with Session("builder", folder, JudgeSettings(jail_without=without)) as session:
            session.greet()
            text = folder.write("candidate.py", CHANGES.format(paths=paths))
            message = {"op": "build", "entry": "ModelNew", "built": str(folder.path / "build"), "arguments": {"l": []}}
            assert "error" not in session.ask(message | {"source": str(text), "threads": 1, "cores": [0]}, 120)
    finally:
        folder.close()
