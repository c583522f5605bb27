"""Does a candidate compute with code of its own? Evidence apart from correctness, from its text and from a run. Pure.

Neither source of evidence is proof: text can hide what it does, and a candidate can lie in the process that observes
it. So each statement says where it comes from, and a refusal under a problem's policy names what it rests on.
"""

import ast
import re
from typing import Any, Literal

from pydantic import Field, ValidationError

from problems import Problem
from sandbox.reachable import Reach, reach
from sandbox.scan import refuse
from sandbox.verdict import Authenticity, Record

Label = Literal["custom", "mixed", "library_only", "unknown"]
CAVEAT = "from the text alone; not observed at run time"
OBSERVED_CAVEAT = "observed in the candidate's own process, which could lie"
SMALL_SHARE = 0.05
"""Operators that take less of a call than this are not counted as its work."""
LIBRARY_IN_CPP = re.compile(
    r"\bat::(?!Tensor\b|ScalarType|cuda|kFloat|empty|zeros|TensorOptions|parallel_for|Half|BFloat16)\w+(?=\()"
    r"|torch::(?:matmul|conv\w*|nn::functional)\b"
)
OPERATORS = {
    *("matmul", "mm", "bmm", "addmm", "linear", "einsum", "conv1d", "conv2d", "conv3d", "tensordot", "dot", "mv"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "softmax", "log_softmax", "layer_norm"),
    *("group_norm", "batch_norm", "rms_norm", "scaled_dot_product_attention", "cross_entropy", "max_pool2d"),
    *("avg_pool2d", "cumsum", "argmax", "gelu", "relu", "sigmoid", "tanh", "silu", "logsumexp", "compile"),
}
LAYERS = {
    *("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "LayerNorm"),
    *("GroupNorm", "RMSNorm", "BatchNorm2d", "Softmax", "MaxPool2d", "AvgPool2d", "CrossEntropyLoss", "GELU", "ReLU"),
}
PLUMBING = re.compile(
    r"aten::(_?(un)?safe_)?(empty|zeros|ones|full|fill|zero|view|reshape|as_strided|transpose|t$|permute|expand|slice|select|"
    r"narrow|squeeze|unsqueeze|contiguous|clone|copy|to$|_to_copy|detach|alias|resize|set_|resolve|lift|flatten|chunk|"
    r"split|unbind|is_|item|_local_scalar|result_type|stride|size|numel|record_stream|pin_memory|new_|arange|scalar_tensor)"
)
"""Operators that make, shape or move tensors without computing."""
VENDOR = re.compile(
    r"aten::(matmul|mm|addmm|bmm|baddbmm|linear|addmv|mv|dot|einsum|_?convolution\w*|conv(_transpose)?[123]d|mkldnn\w*|"
    r"cudnn\w*|miopen\w*|slow_conv\w*|_slow_conv\w*|thnn_conv\w*|\w*attention\w*|lstm\w*|gru\w*|rnn\w*|_fft\w*|linalg\w*)$"
)
"""Operators behind which a vendor's library stands."""
COMPILED = re.compile(r"Torch-Compiled|CompiledFxGraph|CompiledFunction|TorchDynamo")
INFRASTRUCTURE = ("aten", "prim", "profiler", "c10", "c10d", "torch", "cuda", "autograd", "prims", "inductor")
HOST = ("builtins", "torch", "numpy", "_ctypes", "ctypes", "time", "math", "posix", "gc", "_io", "_thread", "threading")


class Observed(Record):
    """What `sandbox.child.observe` saw of one call. Claims of a process that may lie; bounded here once more."""

    operators: tuple[tuple[str, int, float], ...] = Field(default=(), max_length=64)
    """Name, calls, and microseconds of its own, of each operator."""
    kernels: tuple[tuple[str, int, float], ...] = Field(default=(), max_length=64)
    wall_us: float = 0.0
    lines: tuple[int, ...] = Field(default=(), max_length=4000)
    """Of the candidate's source, those that were executed."""
    natives: tuple[str, ...] = Field(default=(), max_length=64)
    dynamic: bool = False
    error: str = Field(default="", max_length=200)

    @classmethod
    def read(cls, answer: dict[str, Any]) -> "Observed":
        """What an answer claims; nothing but an error where it has another form."""
        try:
            return cls.model_validate(answer)
        except ValidationError:
            return cls(error="the candidate's process gave no account that can be read")

    def share(self, pattern: re.Pattern[str] | None = None) -> tuple[float, list[str]]:
        """The part of the call that computing operators took, and their names; those of `pattern` only, if given."""
        chosen = [
            (name, us)
            for name, _, us in self.operators
            if name.startswith("aten::") and (pattern.match(name) if pattern else not PLUMBING.match(name))
        ]
        return sum(us for _, us in chosen) / self.wall_us if self.wall_us > 0 else 0.0, [name for name, _ in chosen]


def read_authenticity(source: str) -> Authenticity:
    """A label from the text alone: own kernels, library calls, both or neither, as far as `forward` leads to them."""
    if refuse(source):
        return Authenticity(label="unknown", evidence=("the source can not be read",))
    found = reach(source)
    library = _library(found, source)
    custom = bool(found.own_calls)
    evidence = ["forward leads to a kernel of its own"] if custom else []
    if found.builds and not custom:
        evidence.append("the source builds a kernel, but forward does not lead to a call of it")
    if library:
        evidence.append(f"the source calls library operators: {', '.join(sorted(library)[:8])}")
    return Authenticity(label=_label(custom, bool(library)), evidence=(*evidence, CAVEAT))


def judge_authenticity(source: str, observed: Observed) -> Authenticity:
    """The label from text and run together; where the run could not be observed, from the text."""
    read = read_authenticity(source)
    if observed.error or refuse(source):
        return read.model_copy(update={"evidence": (*read.evidence, *filter(None, [observed.error]))})
    found = reach(source)
    own = _own_reached(found, observed)
    share, names = observed.share()
    compiled = any(COMPILED.search(name) for name, _, _ in observed.operators)
    library = compiled or share >= SMALL_SHARE or (not own and (bool(names) or bool(_library(found, source))))
    evidence = list(_observations(found, observed, own))
    if compiled:
        evidence.append("torch.compile computed")
    return Authenticity(label=_label(own, library), evidence=(*evidence, *read.evidence[:-1], OBSERVED_CAVEAT))


def refusal(problem: Problem, source: str, observed: Observed) -> str:
    """Why the problem's operator policy refuses a candidate that computes rightly, or an empty string."""
    if problem.operators == "any":
        return ""
    if observed.error:
        fault = f"the call could not be observed: {observed.error}"
    elif any(COMPILED.search(name) for name, _, _ in observed.operators):
        fault = "only own kernels count, and torch.compile computed the result"
    elif problem.operators == "no-library":
        fault = _library_fault(source, observed)
    else:
        fault = _custom_fault(source, observed)
    return f"the problem's policy is {problem.operators}: {fault}" if fault else ""


def _library_fault(source: str, observed: Observed) -> str:
    names = observed.share(VENDOR)[1] or sorted(_numpy(reach(source)))
    return f"library operators do not count, and these ran: {', '.join(names[:4])}" if names else ""


def _custom_fault(source: str, observed: Observed) -> str:
    share, names = observed.share()
    vendor, ran = observed.share(VENDOR)[1], ", ".join(names[:4])
    if not _own_reached(reach(source), observed):
        return f"only own kernels count, and none was reached{f'; what ran: {ran}' if ran else ''}"
    if vendor:  # however small its share: the rest of a call may be nothing but waiting
        return f"only own kernels count, and these ran too: {', '.join(vendor[:4])}"
    return f"only own kernels count, and {100 * share:.0f} % of the call went to {ran}" if share >= SMALL_SHARE else ""


def _label(own: bool, library: bool) -> Label:
    if own:
        return "mixed" if library else "custom"
    return "library_only" if library else "unknown"


def _own_reached(found: Reach, observed: Observed) -> bool:
    """Whether native code of the candidate's was called: by line, as an extension's function, or as an operator."""
    if found.own_calls & set(observed.lines):
        return True
    if found.builds and any(name.partition(".")[0] not in HOST for name in observed.natives):
        return True
    namespaces = {name.partition("::")[0] for name, _, _ in observed.operators if "::" in name}
    return bool(namespaces - set(INFRASTRUCTURE))


def _observations(found: Reach, observed: Observed, own: bool) -> list[str]:
    lines = ["a kernel of its own was reached"] if own else ["no kernel of its own was reached"]
    share, names = observed.share()
    if names:
        lines.append(f"operators took {100 * share:.0f} % of the call: {', '.join(names[:6])}")
    if observed.kernels:
        lines.append(f"device kernels: {', '.join(name for name, _, _ in observed.kernels[:6])}")
    ran = [line for line, body in found.handlers if body & set(observed.lines)]
    if ran:
        lines.append(f"an exception led to another way: the except clause in line {', '.join(map(str, sorted(ran)))}")
    if observed.dynamic:
        lines.append("code that stands in no file was executed")
    return lines


def _library(found: Reach, source: str) -> set[str]:
    layers = {name for node in ast.walk(ast.parse(source)) for name in _layer_names(node)}
    calls = [node.func for node in found.nodes if isinstance(node, ast.Call)]
    library = {call.attr for call in calls if isinstance(call, ast.Attribute) and _is_library(call, found.own, layers)}
    library |= {"@" for node in found.nodes if isinstance(node, ast.MatMult)}
    return library | set(LIBRARY_IN_CPP.findall(source))


def _numpy(found: Reach) -> set[str]:
    names = {node.id for node in found.nodes if isinstance(node, ast.Name)}
    return {"numpy"} & names | ({"np"} & names)


def _is_library(function: ast.Attribute, own: frozenset[str], layers: set[str]) -> bool:
    """An operator of torch as a function or method, or a layer that is called; a layer that holds weights is none."""
    holder = function.value.id if isinstance(function.value, ast.Name) else getattr(function.value, "attr", "")
    return (function.attr in OPERATORS and holder not in own) or (holder == "self" and function.attr in layers)


def _layer_names(node: ast.AST) -> set[str]:
    """Attributes that are assigned one of torch's layers."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return set()
    made = getattr(node.value.func, "attr", getattr(node.value.func, "id", ""))
    return {getattr(target, "attr", getattr(target, "id", "")) for target in node.targets} if made in LAYERS else set()
