"""Finding a problem: by its catalog name, or by the path of a file or folder from anywhere."""

import difflib
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, StrictInt, StringConstraints, ValidationError, model_validator

from kernelwright.problems.formats import SEPARATOR, format_of, load_address, load_only
from kernelwright.problems.formats.kernelbench import origin_of
from kernelwright.problems.formats.reading import Unsupported, into_convention
from kernelwright.problems.problem import Dtype, ExcludedValues, Origin, Policies, Problem, ProblemError, Tolerance
from kernelwright.problems.source import check_reference, read_text, title_of
from kernelwright.problems.source_rewriting import put_sizes

DTYPES: dict[str, Dtype] = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}
"""PyTorch's names, and the words of KernelBench's `precision`."""


def dtype_named(word: str) -> Dtype:
    """Return the dtype of that name. Raises `ProblemError` for an unknown one."""
    if word not in DTYPES:
        raise ProblemError(f"no dtype {word!r}; there are: {', '.join(DTYPES)}")
    return DTYPES[word]


def cast(problem: Problem, dtype: str | None) -> Problem:
    """Set the dtype of weights and floating inputs; None keeps what the source makes."""
    return problem if dtype is None else problem.model_copy(update={"dtype": dtype_named(dtype)})


DEFAULT_SIZE = "cpu"
"""The size that is loaded where none is asked for; so every manifest has it."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Manifest(Policies):
    """The content of one `problem.toml`."""

    family: Text
    """The group that the problem is listed in, such as `norm`."""
    title: Text
    """One line that says what is computed."""
    sizes: dict[str, dict[str, StrictInt]]
    """By name of the size: the values of the reference's module-level constants."""

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if DEFAULT_SIZE not in self.sizes:
            raise ValueError(f"there is no table [sizes.{DEFAULT_SIZE}]; add it")
        expected = self.sizes[DEFAULT_SIZE].keys()
        for size, values in self.sizes.items():
            for constant in sorted(expected ^ values.keys()):
                raise ValueError(
                    f"{constant} is set in only one of [sizes.{DEFAULT_SIZE}] and [sizes.{size}]; set both"
                )
        return self

    @model_validator(mode="after")
    def _departure_has_a_reason(self) -> Self:
        departs = self.tolerance.model_copy(update={"reason": ""}) != Tolerance()
        if departs and not self.tolerance.reason.strip():
            raise ValueError("[tolerance] departs from the defaults; add its reason")
        return self


def parse_manifest(text: str, where: str) -> Manifest:
    """Return the manifest in `text`; `where` names the file in the one sentence of a `ProblemError`."""
    try:
        return Manifest.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(f"{where} is not valid TOML: {error}; correct it") from error
    except ValidationError as error:
        raise ProblemError(f"{where}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    """Describe the first of pydantic's faults: its key, the value, and what is expected."""
    fault = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in fault["loc"])
    match fault["type"]:
        case "missing":
            return f"the key {key!r} is missing; add it"
        case "extra_forbidden":
            tables: dict[str, type[BaseModel]] = {"tolerance": Tolerance, "values": ExcludedValues}
            known = tables.get(key.partition(".")[0], Manifest).model_fields
            return f"unknown key {key!r}; there are: {', '.join(known)}"
        case "value_error":
            return str(fault["ctx"]["error"])
    asked = fault["msg"].removeprefix("Input should be ")
    return f"{key!r} is {fault['input']!r}; it should be {asked}"


CATALOG = Path(__file__).parent / "catalog"
MANIFEST = "problem.toml"
FILE_SIZE = "file"
"""The size of a problem whose file itself fixes the shapes."""
LONGEST_NAME = 200


def catalog_names() -> tuple[str, ...]:
    return tuple(sorted(manifest.parent.name for manifest in CATALOG.glob(f"*/{MANIFEST}")))


def load_problem(name_or_path: str | os.PathLike[str], size: str | None = None, dtype: str | None = None) -> Problem:
    """Load the problem of that name or path, at that size, with weights and floating inputs in that dtype.

    A catalog name wins over a file or folder of the same name. A path is one of

    - a `.py` file in the KernelBench convention, whose only size is `file`,
    - a folder as in the catalog (`problem.toml` and `reference.py`),
    - a problem of another benchmark's collection, `PATH::ID`.

    The default size of a folder is `cpu`; the default dtype is the source's own. Raises `ProblemError`; runs nothing.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise ProblemError(f"{name_or_path!r:.80} is not a name of a problem; give a catalog name or a path")
    return cast(_loaded(os.fspath(name_or_path), size), dtype)


def _loaded(name_or_path: str, size: str | None) -> Problem:
    if name_or_path in catalog_names():
        return _from_folder(CATALOG / name_or_path, name_or_path, size)
    is_path = name_or_path.endswith(".py") or any(one in name_or_path for one in (os.sep, os.altsep, SEPARATOR) if one)
    if not is_path and not os.path.exists(name_or_path):  # noqa: PTH110 - as below
        raise ProblemError(_unknown(name_or_path, catalog_names()))
    if SEPARATOR in name_or_path:
        return load_address(name_or_path)
    path = Path(name_or_path)
    if os.path.isfile(path / MANIFEST):  # noqa: PTH113 - False for a path that is too long, where Path.is_file raises
        return _from_folder(path, path.resolve().name, size)
    if format_of(path) is not None:
        return load_only(path)
    return _from_file(path, size)


def _from_folder(folder: Path, name: str, size: str | None) -> Problem:
    manifest = parse_manifest(read_text(folder / MANIFEST), str(folder / MANIFEST))
    size = DEFAULT_SIZE if size is None else size
    if size not in manifest.sizes:
        raise ProblemError(f"problem {name!r} has no size {size!r}; there are: {', '.join(manifest.sizes)}")
    source = read_text(folder / "reference.py")
    check_reference(source, str(folder / "reference.py"))
    try:
        sized = put_sizes(source, manifest.sizes[size])
    except ProblemError as error:
        raise ProblemError(f"{folder / MANIFEST}, [sizes.{size}]: {error}") from error
    return Problem(name=name, size=size, source=sized, **manifest.model_dump(exclude={"sizes"}))


def _from_file(path: Path, size: str | None) -> Problem:
    if size not in (None, FILE_SIZE):
        raise ProblemError(f"{path} fixes its own shapes, so it has no size {size!r}; leave the size out")
    text = read_text(path)  # reports a missing file first
    if not path.stem.strip(".") or not path.stem.isprintable():
        raise ProblemError(f"{str(path)!r} names no problem, and results are kept under its name; rename the file")
    return _from_text(text, path.stem, str(path), origin_of(path))


def problem_of_text(text: str, name: str, dtype: str | None = None) -> Problem:
    """Make a problem of the text of a `.py` file in the KernelBench convention. Raises `ProblemError`."""
    check_name(name)
    return cast(_from_text(text, name, name, None), dtype)


def check_name(name: str) -> None:
    """Raise `ProblemError` for a name that cannot appear in sentences and logs."""
    if not (name.isprintable() and 0 < len(name) <= LONGEST_NAME):
        raise ProblemError(f"{name[:LONGEST_NAME]!r} names no problem; give 1 to {LONGEST_NAME} printable letters")


def _from_text(source: str, name: str, where: str, origin: Origin | None) -> Problem:
    tree = check_reference(source, where)
    try:
        source = into_convention(source, tree)
    except Unsupported as error:
        raise ProblemError(f"{where} cannot be judged: {error}") from None
    title = title_of(tree) or name
    return Problem(name=name, title=title, family=FILE_SIZE, size=FILE_SIZE, source=source, origin=origin)


def _unknown(name: str, names: Iterable[str]) -> str:
    known = list(names)
    nearest = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
    return f"no problem {name!r}, and no file or folder of that name; {hint}there are: {', '.join(known)}"
