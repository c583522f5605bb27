"""The mode in which a reference is called, and the layers that depend on it. Read from the source, which is not run.

The judge calls a module as its constructor leaves it: in training mode unless the constructor says `eval()`.
"""

import ast
from collections.abc import Mapping
from typing import NamedTuple

from kernelwright.problems.source import parse_module, top_level

NORMALISATIONS = {
    f"{prefix}{kind}Norm{dimensions}": (3 if prefix else 4, kind == "Batch")
    for prefix in ("", "Lazy")
    for kind in ("Batch", "Instance")
    for dimensions in ("1d", "2d", "3d")
} | {"SyncBatchNorm": (4, True)}
"""By layer, the place and the default of `track_running_stats`; without tracking it does the same in both modes."""
DROPOUTS = dict.fromkeys(
    ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"), (0, "p", 0.5)
) | {
    "RReLU": (9, "p", 1.0),
    "MultiheadAttention": (2, "dropout", 0.0),
    "LSTM": (5, "dropout", 0.0),
    "GRU": (5, "dropout", 0.0),
    "RNN": (6, "dropout", 0.0),
    "TransformerEncoderLayer": (3, "dropout", 0.1),
    "TransformerDecoderLayer": (3, "dropout", 0.1),
    "Transformer": (5, "dropout", 0.1),
}
"""By layer that draws, the place, the name and the default of its probability; RReLU has none and always draws."""
FUNCTIONS = {
    "batch_norm": (5, "training", False),
    "dropout": (2, "training", True),
    "dropout1d": (2, "training", True),
    "dropout2d": (2, "training", True),
    "dropout3d": (2, "training", True),
    "alpha_dropout": (2, "training", False),
    "feature_alpha_dropout": (2, "training", False),
    "rrelu": (3, "training", False),
}
"""By function, the place, the name and the default of the argument that sets its mode."""
UNKNOWN = object()
"""A value that the source alone does not show."""
Values = Mapping[str, object]


class Mode(NamedTuple):
    """How the layers of a reference that depend on it are called; names as the source writes them, each once."""

    is_training: bool = True
    """The mode of the module itself."""
    batch: tuple[str, ...] = ()
    """Normalisations that take their statistics from the batch and keep running ones too."""
    running: tuple[str, ...] = ()
    """Those that take their running statistics."""
    drawing: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    """Those that would draw in training mode and pass their input on."""
    asks: bool = False
    """Whether the source reads `self.training` for anything else."""

    @property
    def matters(self) -> bool:
        return bool(self.batch or self.running or self.drawing or self.silent or self.asks)


def mode_of(source: str) -> Mode:
    """The mode of a reference's `Model`; one that does not matter where the source has none or cannot be parsed."""
    try:
        tree = parse_module(source)
    except SyntaxError:
        return Mode()
    reader = _Reader(tree)
    if "Model" not in reader.classes:
        return Mode()
    is_training = reader.read_class("Model", reader.arguments(), training=True)
    found = reader.found
    names = {kind: tuple(dict.fromkeys(name for of, name in found if of == kind)) for kind, _ in found}
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

    def arguments(self) -> ast.Call:
        """The call that makes `Model`, with what `get_init_inputs` returns."""
        maker = self.functions.get("get_init_inputs")
        returned = [node.value for node in ast.walk(maker) if isinstance(node, ast.Return)] if maker else []
        listed = returned[0].elts if returned and isinstance(returned[0], ast.List | ast.Tuple) else []
        return ast.Call(func=ast.Name("Model"), args=listed, keywords=[])

    def read_class(self, name: str, call: ast.Call, training: bool, outer: Values | None = None) -> bool:
        """Read what one construction of a class makes; return whether it is in training mode afterwards."""
        body = self.classes[name]
        constructors = [one for one in body.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        silent: set[str | None] = _silenced(constructors[0]) if constructors else set()
        training = training and None not in silent
        values = self._bound(constructors[0], call, outer or {}) if constructors else {}
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
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in self._called and self._makes(node):
            self._read_handed_on(_name(node), training)
        elif isinstance(node, ast.Attribute) and node.attr == "training" and isinstance(node.ctx, ast.Load):
            self.found.append(("asks", "self.training"))

    def _read_call(self, call: ast.Call, values: Values, training: bool) -> None:
        name = _name(call.func)
        if name in self.classes and isinstance(call.func, ast.Name):
            self.read_class(name, call, training, values)
        elif name in self.functions and isinstance(call.func, ast.Name):
            if (name, "", training) not in self._seen:
                self._seen.add((name, "", training))
                for node in ast.walk(self.functions[name]):
                    self._read(node, {}, training)
        elif name in NORMALISATIONS:
            place, tracks = NORMALISATIONS[name]
            if self._argument(call, place, "track_running_stats", tracks, values) is not False:
                self.found.append(("batch" if training else "running", name))
        elif name in DROPOUTS:
            if self._argument(call, *DROPOUTS[name], values) != 0:
                self.found.append(("drawing" if training else "silent", name))
        elif name in FUNCTIONS and _is_torch(call.func):
            given = self._argument(call, *FUNCTIONS[name], values)
            training = given if isinstance(given, bool) else training  # else it is the module's own mode
            if name == "batch_norm":
                self.found.append(("batch" if training else "running", name))
            elif self._argument(call, 1, "p", 0.5, values) != 0 or name == "rrelu":
                self.found.append(("drawing" if training else "silent", name))

    def _makes(self, node: ast.Name | ast.Attribute) -> bool:
        tracking = _name(node) in NORMALISATIONS and NORMALISATIONS[_name(node)][1]
        return tracking or (isinstance(node, ast.Name) and node.id in self.classes)

    def _read_handed_on(self, name: str, training: bool) -> None:
        """Read a class that is named and not called here: a base, or one that is made elsewhere."""
        if name in self.classes:
            self.read_class(name, ast.Call(ast.Name(name), [ast.Starred(ast.Name("arguments"))], []), training)
        else:
            self.found.append(("batch" if training else "running", name))

    def _argument(self, call: ast.Call, place: int, name: str | object, default: object, values: Values) -> object:
        if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
            return UNKNOWN
        named = next((one.value for one in call.keywords if one.arg == name), None)
        node = named or (call.args[place] if len(call.args) > place else None)
        return default if node is None else self._value(node, values)

    def _bound(self, function: ast.FunctionDef, call: ast.Call, outer: Values) -> dict[str, object]:
        """The values of a constructor's arguments, `self` left out."""
        names = [one.arg for one in function.args.args][1:]
        defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
        found: dict[str, object] = {}
        for place, name in enumerate(names):
            default = self._value(defaults[name], {}) if name in defaults else UNKNOWN
            found[name] = self._argument(call, place, name, default, outer)
        return found | dict.fromkeys((one.arg for one in function.args.kwonlyargs), UNKNOWN)

    def _value(self, node: ast.expr, values: Values) -> object:
        if isinstance(node, ast.Name):
            return values[node.id] if node.id in values else self.constants.get(node.id, UNKNOWN)
        return node.value if isinstance(node, ast.Constant) else UNKNOWN


def _name(node: ast.expr) -> str:
    """The last name of `nn.Dropout` or `Dropout`; empty for any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def _is_torch(function: ast.expr) -> bool:
    """Whether it is torch's function and no layer or method of the same name."""
    return isinstance(function, ast.Name) or (
        isinstance(function, ast.Attribute) and _name(function.value) in ("F", "functional", "torch")
    )


def _owners(body: ast.AST) -> dict[int, str]:
    """By node, the attribute that the statement around it assigns."""
    return {
        id(inner): target.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        for inner in ast.walk(node.value)
    }


def _silenced(constructor: ast.FunctionDef) -> set[str | None]:
    """The attributes that a constructor puts into eval mode; None is the module itself."""
    found: set[str | None] = set()
    owners = _owners(constructor)
    for node in ast.walk(constructor):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given, module = _given(node), node.func.value
        turned_off = len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is False
        if (node.func.attr == "eval" and not given) or (node.func.attr == "train" and turned_off):
            is_made_here = isinstance(module, ast.Call)
            found.add(
                module.attr if isinstance(module, ast.Attribute) else owners.get(id(node), "") if is_made_here else None
            )
    return found
