import pytest
import torch
from torch import nn

from kernelwright.programs.graphs import CannotCut, computes, export_call, inputs_of, op_name, outputs_of, runs
from tests.support.programs import Attending, Block, ByValue


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
    assert ["conv2d", "batch_norm", "relu"] in found
    assert ["conv2d", "add", "relu"] in found


def test_the_core_of_an_attention_is_a_run():
    graph = export_call(Attending().eval(), [torch.randn(2, 4, 32)], {})
    (core,) = [run for run in runs(graph, 12) if names(run).count("matmul") == 2]
    assert len(inputs_of(graph, core)) == 3 and len(outputs_of(graph, core)) == 1


def test_the_digest_is_of_the_operators_and_not_of_the_weights():
    x = torch.randn(2, 8, 6, 6)
    assert export_call(Block().eval(), [x], {}).digest == export_call(Block().eval(), [x], {}).digest
    assert export_call(Block().eval(), [x], {}).digest != export_call(Block().eval(), [x[:1]], {}).digest
