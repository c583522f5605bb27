"""Warnings that the text of a reference alone can give. What needs a run (constant outputs, say) is not seen here."""

import ast
import re
from collections.abc import Iterator

from kernelwright.problems.record.syntax import parse_module

CUDA = re.compile(r"cuda(:\d+)?")
DEVICE = "names a CUDA device; leave the device to the judge"
SEED = "sets the seed, so all inputs would be the same values; leave seeding to the judge"
FILES = "reads a file, which the sandbox does not show; write the values into the source"
NETWORK = "uses the network, which the sandbox cuts off; write the values into the source"
CLOCK = "reads the clock, so two runs would differ; leave it out"
DROPOUT = "drops values at random, so no candidate can agree; call eval() in the constructor, or leave it out"
DRAW = "draws random values in forward, so no candidate can agree; draw them in get_inputs"

GENERATOR = "draws with a generator that the judge does not seed, so a run can not be repeated; draw with torch"
GENERATORS = ("np.random.", "numpy.random.", "random.", "os.urandom", "secrets.")

MODULES = {"socket": NETWORK, "urllib": NETWORK, "http": NETWORK, "requests": NETWORK, "time": CLOCK, "datetime": CLOCK}
CALLS = {
    "cuda": DEVICE,
    "manual_seed": SEED,
    "open": FILES,
    "fromfile": FILES,
    "read_text": FILES,
    "read_bytes": FILES,
    "torch.load": FILES,
    "np.load": FILES,
    "numpy.load": FILES,
    "torch.hub.load": NETWORK,
    "load_state_dict_from_url": NETWORK,
    "from_pretrained": NETWORK,
}
"""By full dotted name, or by the last name of whatever is called."""
DRAWS = {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli", "multinomial"}


def lint_source(source: str) -> list[str]:
    """One warning a line of trouble, `line N: what; remedy`, in order of lines; empty where the text looks sound.

    Unseeded random inputs are right and give no warning: the judge seeds. Not seen: a call through an alias (the import
    of a module in `MODULES` is), and a dropout inside a library module such as `nn.TransformerEncoderLayer`.
    """
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError) as error:
        return [f"line {getattr(error, 'lineno', None) or 1}: does not parse as Python; correct it"]
    return [f"line {line}: {remark}" for line, remark in sorted({*_imports(tree), *_calls(tree), *_draws(tree)})]


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str() as module):
                modules = [module]
            case _:
                continue
        roots = {module.split(".")[0] for module in modules}
        yield from ((node.lineno, MODULES[root]) for root in roots & MODULES.keys())


def _calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    evaluates = any(_dotted(call.func).endswith(".eval") for call in calls)
    for call in calls:
        name = _dotted(call.func)
        remark = CALLS.get(name) or CALLS.get(_last(name))
        if remark:
            yield call.lineno, remark
        if name.startswith(GENERATORS):
            yield call.lineno, GENERATOR
        if "dropout" in _last(name).lower() and not evaluates and not _says_not_training(call):
            yield call.lineno, DROPOUT
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        yield from ((argument.lineno, DEVICE) for argument in arguments if _is_cuda(argument))


def _draws(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "forward":
            calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
            yield from ((call.lineno, DRAW) for call in calls if _last(_dotted(call.func)) in DRAWS)


def _is_cuda(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and bool(CUDA.fullmatch(value.value))


def _says_not_training(call: ast.Call) -> bool:
    return any(
        keyword.arg == "training" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in call.keywords
    )


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _dotted(node: ast.expr) -> str:
    """`torch.hub.load` as it is written; what is no name (a call's result, say) is written as `?`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{_dotted(value)}.{attribute}"
    return "?"
