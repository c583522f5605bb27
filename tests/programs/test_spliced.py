"""Graphs of calls and the runs of operators in them, and kernels for runs inside a forward."""

import json

import pytest
import torch
from torch import nn

from kernelwright.programs.graphs import CannotCut, computes, export_call, inputs_of, op_name, outputs_of, runs
from kernelwright.programs.placing import applied, apply, put_all_back
from kernelwright.programs.record import PartInput, Run
from tests.support.programs import (
    COLUMNS,
    ROWS,
    Attending,
    Block,
    ByValue,
    Network,
    kernels_folder,
    part_of_gates,
    seen,
)

REFERENCE = f"""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix_weight = nn.Parameter(torch.randn({COLUMNS}, {COLUMNS}))
        self.mix_bias = nn.Parameter(torch.randn({COLUMNS}))

    def forward(self, x):
        return torch.tanh(nn.functional.linear(x, self.mix_weight, self.mix_bias))


def get_inputs():
    return [torch.randn({ROWS}, {COLUMNS})]


def get_init_inputs():
    return []
"""
KERNEL = REFERENCE.replace("class Model(", "class ModelNew(").replace(
    "torch.tanh(nn.functional.linear(x, self.mix_weight, self.mix_bias))",
    "torch.tanh(x @ self.mix_weight.t() + self.mix_bias)",
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Network().eval()


def folder_with_a_run(folder, model, gates=True, **changes):
    """The kernels of the gates, and one for linear and tanh, which lie between them in the network's own forward."""
    kernels_folder(folder)
    with torch.no_grad():
        graph = export_call(model, (torch.randn(ROWS, COLUMNS),), {})
    names = [node.name for node in graph.nodes]
    before = names[names.index("linear") - 1]
    run = Run(nodes=("linear", "tanh"), outputs=("tanh",), graph=graph.digest, owners=("", "mix"))
    part = part_of_gates()
    size = part.sizes[0].model_copy(
        update={"inputs": (PartInput(name="x", node=before, tensor=seen(ROWS, COLUMNS)),), "call": "", "result": ""}
    )
    state = {"mix_weight": "mix.weight", "mix_bias": "mix.bias"}
    changes = {
        "id": "run",
        "kind": "run",
        "class_name": "here.Network",
        "state": state,
        "sizes": (size,),
        "run": run,
    } | changes
    record = part.model_copy(update=changes).model_dump(mode="json")
    manifest = json.loads((folder / "kernels.json").read_text())
    record |= {"places": [["Network", ""]], "dtype": None}
    manifest["parts"] = [record, *(manifest["parts"] if gates else [])]
    (folder / "kernels.json").write_text(json.dumps(manifest))
    (folder / "run").mkdir()
    (folder / "run" / "candidate.py").write_text(KERNEL)
    (folder / "run" / "reference.py").write_text(REFERENCE)
    return folder


def put(model, tmp_path, **changes):
    return apply(model, folder_with_a_run(tmp_path / "kernels", model, **changes), tmp_path / "cache")


def test_a_run_is_replaced_and_modules_beside_it_keep_their_kernels(model, tmp_path):
    x = torch.randn(ROWS, COLUMNS)
    with torch.no_grad():
        want = model(x)
        put(model, tmp_path)
        torch.testing.assert_close(model(x), want)
        model.mix.weight.mul_(2)
        got = model(x)
        assert {one.part: one.taken for one in applied(model).kernels} == {"run": 2, "gate": 2}
        torch.testing.assert_close(got, put_all_back(model)(x))


def test_other_calls_take_the_modules_own_code(model, tmp_path):
    put(model, tmp_path, gates=False)
    with torch.no_grad():
        x = torch.randn(ROWS + 1, COLUMNS)
        got = model(x)
        ((why, times),) = applied(model).kernels[0].fallbacks.items()
        assert "graph or a shape" in why and times == 1
        assert torch.equal(got, put_all_back(model)(x))


def test_a_forward_that_goes_another_way_is_not_taken_for_the_captured_one(model, tmp_path):
    put(model, tmp_path, gates=False)
    model.second = nn.ReLU()
    x = torch.randn(ROWS, COLUMNS)
    with torch.no_grad():
        got = model(x)
        (why,) = applied(model).kernels[0].fallbacks
        assert "graph or a shape" in why
        assert torch.equal(got, put_all_back(model)(x))


def test_gradients_flow_through_the_rest_of_the_graph(model, tmp_path):
    x = torch.randn(ROWS, COLUMNS)
    model(x).sum().backward()
    want = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    put(model, tmp_path, gates=False, direction="both")
    model(x).sum().backward()
    assert applied(model).kernels[0].taken == 1
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name])


def names(nodes):
    return [op_name(node) for node in nodes if computes(node)]


def test_no_operator_of_a_graph_writes_in_place():
    graph = export_call(Block().eval(), [torch.randn(2, 8, 6, 6)], {})
    assert names(graph.nodes) == ["conv2d", "batch_norm", "relu", "conv2d", "add", "relu"]
    assert not graph.written


def test_running_statistics_count_as_written_in_training():
    graph = export_call(Block().train(), [torch.randn(2, 8, 6, 6)], {})
    assert {graph.state[name] for name in graph.written} == {
        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"
    }  # fmt: skip


def test_a_module_that_changes_its_input_is_told():
    assert export_call(nn.ReLU(inplace=True), [torch.randn(4)], {}).changes_input


def test_writing_into_a_part_of_a_tensor_is_refused_in_words():
    class Writes(nn.Module):
        def forward(self, x):
            y = x * 2
            y[:, 0].add_(1)
            return y

    with pytest.raises(CannotCut, match="part of a tensor in place"):
        export_call(Writes(), [torch.randn(3, 3)], {})


def test_control_flow_by_value_and_what_no_problem_can_be_given_are_refused_in_words():
    with pytest.raises(CannotCut, match="values of a tensor"):
        export_call(ByValue(), [torch.randn(2, 64)], {})
    with pytest.raises(CannotCut, match="takes a object"):
        export_call(nn.Identity(), [object()], {})


def test_a_run_keeps_the_calls_of_children_whole():
    graph = export_call(Block().eval(), [torch.randn(2, 8, 6, 6)], {})
    found = [names(run) for run in runs(graph, 12)]
    assert ["conv2d", "batch_norm", "relu"] in found and ["conv2d", "add", "relu"] in found
    assert ["add", "relu"] in [names(run) for run in runs(graph, 2)], "longer ones are divided"


def test_the_core_of_an_attention_is_a_run():
    graph = export_call(Attending().eval(), [torch.randn(2, 4, 32)], {})
    (core,) = [run for run in runs(graph, 12) if names(run).count("matmul") == 2]
    assert len(inputs_of(graph, core)) == 3 and len(outputs_of(graph, core)) == 1


def test_the_digest_is_of_the_operators_and_not_of_the_weights():
    x = torch.randn(2, 8, 6, 6)
    assert export_call(Block().eval(), [x], {}).digest == export_call(Block().eval(), [x], {}).digest
    assert export_call(Block().eval(), [x], {}).digest != export_call(Block().eval(), [x[:1]], {}).digest
