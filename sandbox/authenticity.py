"""Does a candidate compute with code of its own? What the source alone tells, apart from correctness. Pure."""

import ast
import re
from typing import Literal

from sandbox.scan import refuse
from sandbox.verdict import Authenticity

Label = Literal["custom", "mixed", "library_only", "unknown"]
CAVEAT = "from the text alone; not observed at run time"
BUILDERS = {"load_inline", "load", "CDLL"}
LIBRARY_IN_CPP = re.compile(
    r"\bat::(?!Tensor\b|ScalarType|cuda|kFloat|empty|zeros|TensorOptions|parallel_for|Half|BFloat16)\w+(?=\()"
    r"|torch::(?:matmul|conv\w*|nn::functional)\b"
)
OPERATORS = {
    *("matmul", "mm", "bmm", "addmm", "linear", "einsum", "conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "softmax", "log_softmax", "layer_norm"),
    *("group_norm", "batch_norm", "rms_norm", "scaled_dot_product_attention", "cross_entropy", "max_pool2d"),
    *("avg_pool2d", "cumsum", "argmax", "gelu", "relu", "sigmoid", "tanh", "silu"),
}
LAYERS = {
    *("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "LayerNorm"),
    *("GroupNorm", "RMSNorm", "BatchNorm2d", "Softmax", "MaxPool2d", "AvgPool2d", "CrossEntropyLoss", "GELU", "ReLU"),
}


def read_authenticity(source: str) -> Authenticity:
    """A label from the text alone: own kernels, library calls, both or neither."""
    if refuse(source):
        return Authenticity(label="unknown", evidence=("the source can not be read",))
    nodes = list(ast.walk(ast.parse(source)))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    own, layers = _targets(nodes, BUILDERS), _targets(nodes, LAYERS)
    custom = any(_last_name(call) in BUILDERS for call in calls) or "@triton.jit" in source
    library = {_last_name(call) for call in calls if _is_library(call, own, layers)}
    library |= {"@" for node in nodes if isinstance(node, ast.MatMult)} | set(LIBRARY_IN_CPP.findall(source))
    evidence = ["the source builds a kernel of its own"] if custom else []
    if library:
        evidence.append(f"the source calls library operators: {', '.join(sorted(library)[:8])}")
    label: Label = ("mixed" if library else "custom") if custom else ("library_only" if library else "unknown")
    return Authenticity(label=label, evidence=(*evidence, CAVEAT))


def _is_library(function: ast.expr, own: set[str], layers: set[str]) -> bool:
    """An operator of torch as a function or method, or a layer that is called; a layer that holds weights is none."""
    if not isinstance(function, ast.Attribute):
        return False
    holder = function.value.id if isinstance(function.value, ast.Name) else ""
    return (function.attr in OPERATORS and holder not in own) or (holder == "self" and function.attr in layers)


def _targets(nodes: list[ast.AST], makers: set[str]) -> set[str]:
    """Names and attributes that are assigned what one of `makers` returns."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _last_name(node.value.func) in makers:
            found |= {_last_name(target) for target in node.targets}
    return found


def _last_name(expression: ast.expr) -> str:
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
