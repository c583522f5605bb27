"""Tags of a kept kernel, read from its source by rules: properties that its user should know of.

A rule reads text, so it can miss what is written in an unusual way; it never changes a verdict.
"""

import ast
import re

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
TENSOR_CORES = re.compile(r"k(?:16|8)(?:\.row\.col)?\.f32\.(f16|bf16|tf32)\.")
"""The end of an instruction's shape and its types: the beginning may be put together from pieces."""
PRODUCTS = {"f16": "fp16x3", "tf32": "tf32x3", "bf16": "bf16x6"}
"""The fewest products of pieces that keep the bound of `ieee`: two pieces an operand, for bf16 three."""
INTEGERS = re.compile(r"k32(?:\.row\.col)?\.s32\.s8\.")
"""Of products that correct those of fp16 pieces in place of further ones."""
SHARED_LOAD = re.compile(
    r"ld\.(?:acquire|volatile)|ld\.relaxed\.(?:gpu|sys)|load_acquire|nanosleep|atomicCAS|atomicExch"
)
"""A load that sees another block's store, or a pause between two of them."""
GRID_SYNC = re.compile(r"this_grid\(\)|grid_group|grid\.sync\(")
LOOP = re.compile(r"\bdo\s*\{|\bwhile\s*\(")
FUNCTION = re.compile(r"\b(\w+)\s*\([^;{}]*\)\s*\{")
GLOBALS = re.compile(
    r"^\s*(?:static\s+)?__device__\s+(?!const\b|constexpr\b)[\w:<>\s*]+?\w+\s*(?:\[[^;={]*)?(?:=[^;]*)?;", re.M
)
MULTIPROCESSORS = re.compile(r"\b(?:132|114|108|142|148)\b")
PERSISTENT = re.compile(r"blocks?\b|multiproc|\bsms?\b|grid", re.IGNORECASE)
QUERIED = re.compile(r"multi_?processor_?count", re.IGNORECASE)
SHAPE = re.compile(r"\.shape|\.size\(|\.sizes\(|\.numel\(|\.dim\(|\.ndim\b")
GUARD = re.compile(r"(?:CUDA|Device)Guard|torch\.cuda\.device\(|cuda\.device_of|cudaSetDevice")


def tags(source: str, dtype: str, is_below_roofline: bool = False) -> tuple[str, ...]:
    """Return the tags of a kernel for a problem in `dtype`; `is_below_roofline`: with fewer operations than counted."""
    code = COMMENT.sub("", source)
    found = []
    cores = TENSOR_CORES.search(code)
    if dtype == "float32" and cores:
        pieces = "fp16 and int8" if INTEGERS.search(code) else PRODUCTS[cores[1]]
        found.append(f"emulated fp32 ({pieces})")
    if is_below_roofline:
        found.append("other algorithm")
    if _waits_for_blocks(code):
        found.append("spin barrier")
    if GLOBALS.search(code):
        found.append("device globals")
    if not QUERIED.search(code) and any(
        MULTIPROCESSORS.search(line) and PERSISTENT.search(line) for line in code.splitlines()
    ):
        found.append("fixed multiprocessors")
    if not _checks_shapes(source):
        found.append("no shape check")
    if not GUARD.search(code):
        found.append("no device guard")
    return tuple(found)


def _waits_for_blocks(code: str) -> bool:
    """Return whether a loop waits until another block has stored something, or the grid is synchronised."""
    loads = {found[1] for found in FUNCTION.finditer(code) if SHARED_LOAD.search(_block(code, found.end() - 1))}
    called = re.compile("|".join([SHARED_LOAD.pattern, *(rf"\b{name}\(" for name in loads - {"while", "for", "if"})]))
    loops = (code[found.start() : found.end()] + _rest(code, found.end() - 1) for found in LOOP.finditer(code))
    return bool(GRID_SYNC.search(code)) or any(called.search(loop) for loop in loops)


def _rest(code: str, at: int) -> str:
    """Return a loop from its opening bracket: `do` with block and condition, `while` with condition and statement."""
    first = _block(code, at)
    after = code[at + len(first) :]
    if code[at] == "{":
        return first + after.partition(";")[0]
    body = after.lstrip()
    return first + (_block(body, 0) if body.startswith("{") else body.partition(";")[0])


def _block(code: str, at: int) -> str:
    """Return the text from the bracket at this place to the one that closes it."""
    opening, closing = ("{", "}") if code[at] == "{" else ("(", ")")
    depth = 0
    for end in range(at, len(code)):
        depth += (code[end] == opening) - (code[end] == closing)
        if depth == 0:
            return code[at : end + 1]
    return code[at:]


def _checks_shapes(source: str) -> bool:
    """Return whether a condition or an assertion reads a tensor's shape, or any number of elements is taken."""
    if re.search(rf"TORCH_CHECK\([^;]*(?:{SHAPE.pattern})|\bnumel\(\)", source):
        return True
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    nodes = list(ast.walk(tree))
    sizes = {
        name.id
        for node in nodes
        if isinstance(node, ast.Assign) and SHAPE.search(ast.unparse(node.value))
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    tests = [node.test for node in nodes if isinstance(node, (ast.If, ast.IfExp, ast.Assert))]
    named = (name.id for test in tests for name in ast.walk(test) if isinstance(name, ast.Name))
    return any(SHAPE.search(ast.unparse(test)) for test in tests) or not sizes.isdisjoint(named)
