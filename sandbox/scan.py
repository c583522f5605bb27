"""What the source alone tells, before anything is built: can it be judged, and does it look like its own kernel? Pure.

The scan refuses only what can not be run at all. It is no defence: what text rules find, text can hide.
"""

import ast
import re

from sandbox.verdict import Authenticity

SOURCE_BYTES = 1_000_000
_CUSTOM = {"load_inline", "load", "CDLL"}
_LIBRARY_CALL = re.compile(
    r"\bat::(?!Tensor\b|ScalarType|cuda|kFloat|empty|zeros|TensorOptions|parallel_for|Half|BFloat16)\w+\(|torch::(?:matmul|conv\w*|nn::functional)\b"
)


def refuse(source: str, entry: str = "ModelNew") -> str:
    """Why this source can not be judged, or an empty string."""
    if len(source.encode(errors="surrogatepass")) > SOURCE_BYTES:
        return f"the source is longer than {SOURCE_BYTES} bytes"
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        return f"line {error.lineno}: {error.msg}: {line}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the source can not be parsed: {error}"
    if entry in defined_names(tree):
        return ""
    return f"no class {entry} is defined; the file defines {', '.join(defined_names(tree)) or 'nothing'}"


def defined_names(tree: ast.Module) -> list[str]:
    """Names that module-level statements bind, also inside `if`, `try` and `with`."""
    names: list[str] = []
    blocks = list(tree.body)
    while blocks:
        node = blocks.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.If | ast.Try | ast.With):
            blocks += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            blocks += [stmt for handler in getattr(node, "handlers", []) for stmt in handler.body]
    return names


def read_authenticity(source: str) -> Authenticity:
    """A label from the text alone: own kernels, library calls, both or neither."""
    if refuse(source):
        return Authenticity(label="unknown", evidence=("the source can not be read",))
    tree = ast.parse(source)
    names = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    custom = bool(names & _CUSTOM) or "@triton.jit" in source
    library = sorted(names & _TORCH_OPERATORS) + sorted(set(_LIBRARY_CALL.findall(source)))
    evidence = []
    if custom:
        evidence.append("the source builds a kernel of its own")
    if library:
        evidence.append(f"the source calls library operators: {', '.join(library[:8])}")
    label = ("mixed" if library else "custom") if custom else ("library_only" if library else "unknown")
    return Authenticity(label=label, evidence=(*evidence, "from the text alone; not observed at run time"))


_TORCH_OPERATORS = {
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "linear",
    "einsum",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "softmax",
    "log_softmax",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "rms_norm",
    "scaled_dot_product_attention",
    "cross_entropy",
    "max_pool2d",
    "avg_pool2d",
    "cumsum",
    "argmax",
    "gelu",
    "relu",
    "sigmoid",
    "tanh",
    "silu",
    "Linear",
    "Conv2d",
    "ConvTranspose2d",
    "LayerNorm",
    "GroupNorm",
}
