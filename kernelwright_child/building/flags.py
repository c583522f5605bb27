"""What of a compiler's command line forbids the light header. Standard library only, imports next to nothing.

It is text, so it is compiled with the flags of the candidate whatever they are. What it is linked with was compiled
with others, so nothing may change how things lie in memory or what names mean.
"""

from __future__ import annotations

import os
import re

FORBIDDEN = re.compile(
    r"@.*|-(?:include|imacros|x|ansi|nostdinc.*|m(?:32|x32|abi=.*|long-double.*)|f(?:abi|pack|short|no-gnu|plugin).*)"
    r"|-[DU] *(?!TORCH_EXTENSION_NAME=|TORCH_API_INCLUDE_EXTENSION_H$|PYBIND11_(?:COMPILER_TYPE|STDLIB|BUILD_ABI)=)"
    r"(?:_GLIBCXX|AT_|TORCH|C10|CAFFE2|PYBIND11|KERNELWRIGHT|Py|_?STD).*"
)
"""Files with more text or flags, other layouts, and macros that torch's or the standard library's headers look at."""
FOLDER_FLAGS = ("-I", "-isystem", "-iquote", "-idirafter")
SHADOWING = ("torch", "ATen", "c10", "caffe2", "pybind11", "torch_stable", "kernelwright", "Python.h")
OPTIMISED = re.compile(r"-O(?!0$)")


def allow_light(words: list[str], known_folders: tuple[str, ...] = ()) -> bool:
    """Whether the light header means the same as the stock one with these flags.

    `known_folders` are torch's and Python's own include folders; any other must not hold headers of their names.
    """
    todo = iter(words)
    for word in todo:
        if FORBIDDEN.fullmatch(word + next(todo, "") if word in ("-D", "-U") else word):
            return False
        flag = next((flag for flag in FOLDER_FLAGS if word.startswith(flag)), None)
        if flag is not None:
            folder = word[len(flag) :] or next(todo, "")
            if not _is_harmless_folder(folder, known_folders):
                return False
    return True


def are_optimised(words: list[str]) -> bool:
    """Whether the host's code is: the last word on it decides, as in the compiler."""
    levels = [word for word in words if word.startswith("-O")]
    return bool(levels) and OPTIMISED.match(levels[-1]) is not None


def _is_harmless_folder(path: str, known: tuple[str, ...]) -> bool:
    real = os.path.realpath(path)
    return real in known or not any(os.path.exists(os.path.join(real, name)) for name in SHADOWING)  # noqa: PTH110, PTH118
