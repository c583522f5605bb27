"""What can not be judged, told from the source before anything is built. Pure.

The scan refuses only what can not be run at all. It is no defence: what text rules find, text can hide.
"""

import ast

from sandbox.clean import one_line

SOURCE_BYTES = 1_000_000


def refuse(source: str, entry: str = "ModelNew") -> str:
    """Why this source can not be judged, or an empty string."""
    if len(source.encode(errors="surrogatepass")) > SOURCE_BYTES:
        return f"the source is longer than {SOURCE_BYTES} bytes"
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return one_line(f"line {error.lineno}: {error.msg}: {error.text or ''}")
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the source can not be parsed: {error}"
    if entry in defined_names(tree):
        return ""
    return one_line(f"no class {entry} is defined; the file defines {', '.join(defined_names(tree)) or 'nothing'}")


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
