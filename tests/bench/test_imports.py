import importlib
from pathlib import Path

import bench


def test_every_module_of_the_benches_can_be_imported():
    root = Path(bench.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.name != "__main__.py":
            importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))
