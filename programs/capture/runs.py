"""Runs of operators inside one `forward` that a kernel could take the place of.

Two sorts: a product with the module's weights and all that follows it until the next product; and everything between
two such products, an attention's core for instance.
"""

from collections.abc import Callable, Iterator, Sequence

from torch import fx

from kernelwright.programs.capture.graphs import CallGraph, child_call, computes, is_plain, op_name, value_of, words

PRODUCTS = words(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d mm matmul bmm addmm "
    "baddbmm scaled_dot_product_attention embedding einsum"
)
MOST_OUTPUTS = 4


def runs(graph: CallGraph, most_operators: int) -> list[list[fx.Node]]:
    """The runs of a graph, each with two to `most_operators` operators that compute.

    What lies within one child is found where that one is looked at by itself.
    """
    found: dict[tuple[str, ...], list[fx.Node]] = {}
    everything = sum(computes(node) for node in graph.nodes)
    for run in map(_trimmed, _sequences(graph)):
        count = sum(computes(node) for node in run)
        fits = 2 <= count <= most_operators and count < everything
        if fits and _keeps_children_whole(graph, run) and _has_ends(graph, run):
            found.setdefault(tuple(node.name for node in run), run)
    return list(found.values())


def _sequences(graph: CallGraph) -> Iterator[list[fx.Node]]:
    for stretch in _split(graph.nodes, lambda node: not is_plain(node), keep=False):
        yield from _split(stretch, lambda node: op_name(node) in PRODUCTS, keep=True)
        yield from _split(stretch, lambda node: _has_weights(graph, node), keep=False)


def _split(nodes: Sequence[fx.Node], is_border: Callable[[fx.Node], bool], keep: bool) -> Iterator[list[fx.Node]]:
    """The nodes between borders; each border with what follows it where it is to be kept."""
    current: list[fx.Node] = []
    for node in nodes:
        if is_border(node):
            yield current
            current = [node] if keep else []
        else:
            current.append(node)
    yield current


def _has_weights(graph: CallGraph, node: fx.Node) -> bool:
    return op_name(node) in PRODUCTS and any(one.name in graph.parameters for one in node.all_input_nodes)


def _trimmed(run: list[fx.Node]) -> list[fx.Node]:
    """Without views at its ends."""
    places = [index for index, node in enumerate(run) if computes(node)]
    return run[places[0] : places[-1] + 1] if places else []


def _keeps_children_whole(graph: CallGraph, run: Sequence[fx.Node]) -> bool:
    """Whether it is made of the module's own operators and whole calls of its children, more than one in all."""
    inside, calls = set(run), {child_call(node) for node in run}
    cut = any(child_call(node) in calls - {""} for node in graph.nodes if node not in inside and computes(node))
    return not cut and (len(calls) > 1 or "" in calls)


def _has_ends(graph: CallGraph, run: Sequence[fx.Node]) -> bool:
    """Whether what goes in and comes out are tensors, and not too many."""
    given, made = inputs_of(graph, run), outputs_of(graph, run)
    return (
        1 <= len(made) <= MOST_OUTPUTS and bool(given) and all(value_of(node) is not None for node in (*given, *made))
    )


def inputs_of(graph: CallGraph, run: Sequence[fx.Node]) -> list[fx.Node]:
    """Values from outside of the run, weights and their views left out, in the order of their first use."""
    inside, own = {*run, *of_weights(graph, run)}, set(graph.state) | set(graph.constants)
    found = [one for node in run for one in node.all_input_nodes if one not in inside and one.name not in own]
    return list(dict.fromkeys(found))


def of_weights(graph: CallGraph, run: Sequence[fx.Node]) -> list[fx.Node]:
    """Views of weights alone that the run uses and that stand before it: its problem makes them anew."""
    own, views = set(graph.state) | set(graph.constants), set()
    for node in graph.nodes:
        given = node.all_input_nodes
        if given and not computes(node) and all(one.name in own or one in views for one in given):
            views.add(node)
    wanted, found = {one for node in run for one in node.all_input_nodes}, []
    for node in reversed(graph.nodes):
        if node in views and node in wanted and node not in run:
            wanted |= set(node.all_input_nodes)
            found.append(node)
    return found[::-1]


def outputs_of(graph: CallGraph, run: Sequence[fx.Node]) -> list[fx.Node]:
    """Values that are used outside of the run."""
    inside = set(run)
    return [node for node in run if any(user not in inside for user in node.users)]
