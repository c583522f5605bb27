"""Where the package lies that runs inside the jail: all that a child is shown of ours."""

from pathlib import Path

import kernelwright_child

FOLDER = Path(kernelwright_child.__file__).parent
ROOT = FOLDER.parent
"""To be put on a child's `sys.path`."""
