"""The languages that candidates are written in, one file each. A new file is found by itself."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal

from kernelwright.problems.languages.language import Language

_names = [module.name for module in iter_modules(__path__) if module.name not in ("language", "detect")]
_found: list[Language] = [import_module(f"{__name__}.{name}").LANGUAGE for name in _names]
LANGUAGES = {one.name: one for one in sorted(_found, key=lambda one: (one.order, one.name))}
"""By name, in their order."""
TARGETS = {name: one for name, one in LANGUAGES.items() if one.examples}
"""Those that prompts can ask for."""
ON_DEVICE = tuple(name for name, one in LANGUAGES.items() if one.device == "cuda")
"""Those whose candidates run only on a GPU."""

if TYPE_CHECKING:
    LanguageName = str
    Target = str
else:
    LanguageName = Literal[tuple(LANGUAGES)]
    Target = Literal[tuple(TARGETS)]


def listed_targets() -> str:
    """Return the targets in a sentence: `cpp, cuda or triton`."""
    *others, last = TARGETS
    return f"{', '.join(others)} or {last}"
