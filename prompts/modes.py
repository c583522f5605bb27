"""The mode in which a reference is called, and the layers that depend on it. Read from the source, which is not run.

The judge calls a module as its constructor leaves it: in training mode unless the constructor says `eval()`.
"""

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kernelwright.problems.source import parse_module, top_level

LAYERS = tomllib.loads((Path(__file__).parent / "data" / "layers.toml").read_text(encoding="utf-8"))
NORMALISATIONS, DRAWS, FUNCTIONS = LAYERS["normalisations"], LAYERS["draws"], LAYERS["functions"]
UNKNOWN = object()  # a value that the source alone does not show
Values = Mapping[str, object]


class Mode(NamedTuple):
    """The mode of a reference and of the layers that depend on it; names as the source writes them, each once."""

    is_training: bool = True  # the mode of the module itself
    batch: tuple[str, ...] = ()  # normalisations that take their statistics from the batch and keep running ones too
    running: tuple[str, ...] = ()  # those that take their running statistics
    drawing: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()  # those that would draw in training mode and pass their input on
    asks: bool = False  # whether the source reads `self.training` for anything else

    @property
    def matters(self) -> bool:
        return bool(self.batch or self.running or self.drawing or self.silent or self.asks)


def mode_of(source: str) -> Mode:
    """Read the mode of `Model`; one that does not matter where the source has none or cannot be parsed."""
    try:
        reader = _Reader(parse_module(source))
    except SyntaxError:
        return Mode()
    if "Model" not in reader.classes:
        return Mode()
    maker = reader.functions.get("get_init_inputs")
    returned = [node.value for node in ast.walk(maker) if isinstance(node, ast.Return)] if maker else []
    given = returned[0].elts if returned and isinstance(returned[0], ast.List | ast.Tuple) else []
    is_training = reader.read_class("Model", ast.Call(func=ast.Name("Model"), args=given, keywords=[]), True, {})
    names = {kind: tuple(dict.fromkeys(name for of, name in reader.found if of == kind)) for kind, _ in reader.found}
    asks = bool(names.pop("asks", ()))
    return Mode(is_training=is_training, asks=asks, **names)


class _Reader:
    """Reader of constructors from `Model` on, with the values of their arguments where the source shows them."""

    def __init__(self, tree: ast.Module) -> None:
        statements = list(top_level(tree))
        self.classes = {one.name: one for one in statements if isinstance(one, ast.ClassDef)}
        self.functions = {one.name: one for one in statements if isinstance(one, ast.FunctionDef)}
        self.constants: dict[str, object] = {}
        for one in statements:
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                self.constants[one.targets[0].id] = self._value(one.value, {})
        self.found: list[tuple[str, str]] = []
        self._seen: set[tuple[str, str, bool]] = set()
        self._called: set[int] = set()

    def read_class(self, name: str, call: ast.Call, training: bool, outer: Values) -> bool:
        """Read what one construction of a class makes; return whether it is in training mode afterwards."""
        body = self.classes[name]
        constructor = next((one for one in body.body if getattr(one, "name", "") == "__init__"), None)
        silent: set[str | None] = set()
        values: dict[str, object] = {}
        if isinstance(constructor, ast.FunctionDef):
            silent, values = _silenced(constructor), self._bound(constructor, call, outer)
        training = training and None not in silent
        key = (name, repr(sorted((name, repr(value)) for name, value in values.items())), training)
        if key not in self._seen:
            self._seen.add(key)
            calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
            # The names in `super(Model, self)` hand nothing on.
            self._called |= {id(given) for one in calls if _name(one.func) == "super" for given in one.args}
            # A question for the mode that is asked on behalf of a function is none of the class's own.
            asked = {id(given) for one in calls if _name(one.func) in FUNCTIONS for given in _given(one)}
            owners = _owners(body)
            for node in ast.walk(body):
                if not (isinstance(node, ast.Attribute) and id(node) in asked):
                    owner = owners.get(id(node))
                    self._read(node, values, training and (owner is None or owner not in silent))
        return training

    def _read(self, node: ast.AST, values: Values, training: bool) -> None:
        """Read one expression of a class, or of a function that it calls."""
        if isinstance(node, ast.Call):
            self._called.add(id(node.func))  # comes before its function
            self._read_call(node, values, training)
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in self._called:
            name = _name(node)
            if isinstance(node, ast.Name) and name in self.classes:  # handed on: a base, or made elsewhere
                self.read_class(name, ast.Call(node, [ast.Starred(ast.Name("arguments"))], []), training, {})
            elif name in NORMALISATIONS and NORMALISATIONS[name][1]:
                self._note("normalisation", name, training)
            elif isinstance(node, ast.Attribute) and name == "training" and isinstance(node.ctx, ast.Load):
                self.found.append(("asks", "self.training"))

    def _note(self, kind: str, name: str, training: bool) -> None:
        kinds = {"normalisation": ("running", "batch"), "draw": ("silent", "drawing")}
        self.found.append((kinds[kind][training], name))

    def _read_call(self, call: ast.Call, values: Values, training: bool) -> None:
        name, is_plain = _name(call.func), isinstance(call.func, ast.Name)
        if name in self.classes and is_plain:
            self.read_class(name, call, training, values)
        elif name in self.functions and is_plain:
            if (name, "", training) not in self._seen:
                self._seen.add((name, "", training))
                for node in ast.walk(self.functions[name]):
                    self._read(node, {}, training)
        elif name in NORMALISATIONS:
            place, tracks = NORMALISATIONS[name]
            if self._argument(call, (place, "track_running_stats", tracks), values) is not False:
                self._note("normalisation", name, training)
        elif name in DRAWS:
            if self._argument(call, DRAWS[name], values) != 0:
                self._note("draw", name, training)
        elif name in FUNCTIONS and _is_torch(call.func):
            given = self._argument(call, FUNCTIONS[name], values)
            training = given if isinstance(given, bool) else training  # else it is the module's own mode
            if name == "batch_norm":
                self._note("normalisation", name, training)
            elif self._argument(call, (1, "p", 0.5), values) != 0 or name == "rrelu":
                self._note("draw", name, training)

    def _argument(self, call: ast.Call, what: tuple[int, str, object], values: Values) -> object:
        place, name, default = what
        if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
            return UNKNOWN
        named = next((one.value for one in call.keywords if one.arg == name), None)
        node = named or (call.args[place] if len(call.args) > place else None)
        return default if node is None else self._value(node, values)

    def _bound(self, function: ast.FunctionDef, call: ast.Call, outer: Values) -> dict[str, object]:
        """Give the values of a constructor's arguments, `self` left out."""
        names = [one.arg for one in function.args.args][1:]
        defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
        found: dict[str, object] = dict.fromkeys((one.arg for one in function.args.kwonlyargs), UNKNOWN)
        for place, name in enumerate(names):
            default = self._value(defaults[name], {}) if name in defaults else UNKNOWN
            found[name] = self._argument(call, (place, name, default), outer)
        return found

    def _value(self, node: ast.expr, values: Values) -> object:
        if isinstance(node, ast.Name):
            return values[node.id] if node.id in values else self.constants.get(node.id, UNKNOWN)
        return node.value if isinstance(node, ast.Constant) else UNKNOWN


def _name(node: ast.expr) -> str:
    """Give the last name of `nn.Dropout` or `Dropout`; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def _is_torch(function: ast.expr) -> bool:
    """Tell whether it is torch's function and no layer or method of the same name."""
    return not isinstance(function, ast.Attribute) or _name(function.value) in ("F", "functional", "torch")


def _owners(body: ast.AST) -> dict[int, str]:
    """Give by node the attribute that the statement around it assigns."""
    assigns = (node for node in ast.walk(body) if isinstance(node, ast.Assign))
    pairs = ((node, target) for node in assigns for target in node.targets if isinstance(target, ast.Attribute))
    return {id(inner): target.attr for node, target in pairs for inner in ast.walk(node.value)}


def _silenced(constructor: ast.FunctionDef) -> set[str | None]:
    """Find the attributes that a constructor puts into eval mode; None is the module itself."""
    found: set[str | None] = set()
    owners = _owners(constructor)
    for node in ast.walk(constructor):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given, module = _given(node), node.func.value
            turned_off = len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is False
            if (node.func.attr == "eval" and not given) or (node.func.attr == "train" and turned_off):
                own = owners.get(id(node), "") if isinstance(module, ast.Call) else None
                found.add(module.attr if isinstance(module, ast.Attribute) else own)
    return found
