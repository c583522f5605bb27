import json
import struct

import pytest
import torch
from torch import nn

from kernelwright import capture, capturing
from kernelwright.problems import ProblemError, load_problem
from kernelwright.programs import cutting
from kernelwright.programs.cutting import Tried
from kernelwright.programs.record import read_capture
from tests.support.programs import Attending, Block, ByValue, Custom, Table

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def whatever_the_machine(monkeypatch):
    """One thread, and no part too small or too short for it."""
    monkeypatch.setattr(cutting, "LEAST_SHARE", 0.0)
    monkeypatch.setattr(cutting, "SHORT_MS", {"cpu": 0.0})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def captured(tmp_path, model, *inputs, **options):
    folder = capture(model, *inputs, out=tmp_path / "capture", steps=1, **options)
    return folder, read_capture(folder)


def parts(record, kind, class_name):
    return [part for part in record.parts if part.kind == kind and part.class_name.endswith(class_name)]


BIG = (8, 8, 48, 48)


def test_a_module_becomes_a_problem_that_stands_alone_and_computes_what_it_does_on_the_users_weights(tmp_path):
    model = nn.Sequential(Block(), Block()).eval()
    folder, record = captured(tmp_path, model, torch.randn(BIG))
    (part,) = parts(record, "module", "Block")
    source = load_problem(str(folder / part.problem)).source
    assert "programs_of_ours" not in source and "import" in source
    assert [site.module for site in part.sizes[0].sites] == ["0", "1"]
    assert part.state["norm_running_var"] == "norm.running_var"
    assert (part.direction, part.training, part.written) == ("forward", False, ())
    state = {own: model[0].state_dict()[name] for own, name in part.state.items()}
    inputs = torch.randn(2, *BIG[1:])
    with torch.no_grad():
        assert Tried(source, state, torch.device("cpu")).agrees([inputs], [model[0](inputs)])


def test_parts_are_numbered_as_the_program_comes_to_them_and_not_by_their_times(tmp_path):
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 2048), nn.Linear(2048, 256)).eval()
    _, record = captured(tmp_path, model, torch.randn(128, 64))
    found = {part.id: part.sizes[0].sites[0].module for part in parts(record, "module", "Linear")}
    assert found == {"linear_1": "0", "linear_2": "1", "linear_3": "2"}


def test_training_asks_for_gradients_and_for_the_buffers(tmp_path):
    model = Block().train()
    folder, record = captured(tmp_path, model, torch.randn(BIG))
    (part,) = parts(record, "module", "Block")
    problem = load_problem(str(folder / part.problem))
    assert (problem.direction, problem.state) == ("both", "followed")
    assert "norm_running_mean" in part.written
    assert all(parameter.grad is None for parameter in model.parameters())
    assert sum(module.backward_ms for module in record.modules) > 0


def test_several_shapes_of_one_part_become_sizes_of_one_problem(tmp_path):
    model = Attending(64).eval()
    with capturing(tmp_path / "capture", steps=3), torch.no_grad():
        for batch in (8, 8, 16):
            model(torch.randn(batch, 64, 64))
    record = read_capture(tmp_path / "capture")
    (part,) = parts(record, "module", "Attending")
    assert sorted(size.inputs[0].tensor.shape[0] for size in part.sizes) == [8, 16]
    for size in part.sizes:
        source = load_problem(str(tmp_path / "capture" / part.problem), size.name).source
        space = {}
        exec(source, space)
        assert space["get_inputs"]()[0].shape == size.inputs[0].tensor.shape
        space["Model"]()(*space["get_inputs"]())


def test_a_mask_given_by_keyword_is_an_input_of_the_problem_and_a_run_inside_the_forward_names_its_nodes(tmp_path):
    mask = torch.full((64, 64), float("-inf")).triu(1)
    folder, record = captured(tmp_path, Attending(64).eval(), torch.randn(16, 64, 64), mask=mask)
    (part,) = parts(record, "module", "Attending")
    assert [given.name for given in part.sizes[0].inputs] == ["x", "mask"]
    assert "triu" in load_problem(str(folder / part.problem)).source
    core = next(part for part in parts(record, "run", "Attending") if "softmax" in part.title)
    assert core.run.owners == ("",) and len(core.run.outputs) == 1
    assert [given.node for given in core.sizes[0].inputs] and not core.state


def test_control_flow_by_value_is_told_and_its_child_is_cut(tmp_path):
    _, record = captured(tmp_path, ByValue().eval(), torch.randn(4096, 64))
    assert any("decides by the values" in one.why for one in record.uncut if one.module == "")
    assert parts(record, "module", "Linear")


def test_gradients_of_a_function_of_its_own_are_left_alone(tmp_path):
    _, record = captured(tmp_path, Custom().train(), torch.randn(4096, 64))
    assert any("_Twice" in one.why and "autograd.Function" in one.why for one in record.uncut)
    assert not parts(record, "module", "Custom") and parts(record, "module", "Linear")


def test_a_dropout_in_training_is_told(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).train()
    _, record = captured(tmp_path, model, torch.randn(4096, 64))
    assert any("random" in one.why and "(dropout)" in one.why for one in record.uncut)


def test_whole_numbers_are_drawn_in_their_range_and_tables_written_out(tmp_path):
    folder, record = captured(tmp_path, Table().eval(), torch.randint(0, 50, (4096, 4)))
    (part,) = parts(record, "module", "Table")
    source = load_problem(str(folder / part.problem)).source
    assert "torch.randint(0, 50, (4096, 4,), dtype=torch.int64)" in source
    assert "torch.tensor([3, 1, 2, 0], dtype=torch.int64)" in source


def test_a_function_is_captured_like_a_module(tmp_path):
    def step(x):
        return torch.softmax(x * 2, -1).cumsum(-1)

    with torch.no_grad():
        _, record = captured(tmp_path, step, torch.randn(512, 512))
    assert record.program == "step"
    assert [part.title for part in record.parts if part.kind == "module"] == ["step in evaluation mode"]


def test_calls_and_names_are_those_of_the_program(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.ReLU())).eval()
    _, record = captured(tmp_path, model, torch.randn(256, 64))
    seen = {module.name: module.calls for module in record.modules}
    assert seen == {"": 1, "0": 1, "1": 1, "1.0": 1, "1.1": 1}
    assert {module.root for module in record.modules} == {"Sequential"}


def test_the_module_class_is_as_before_even_where_the_program_fails(tmp_path):
    before = nn.Module.__call__
    with pytest.raises(RuntimeError), capturing(tmp_path / "capture"):
        nn.Linear(2, 2)(torch.randn(3, 3))
    assert nn.Module.__call__ is before


def test_no_value_of_a_weight_or_an_input_is_in_the_folder(tmp_path):
    model = nn.Linear(64, 64).eval()
    folder, _ = captured(tmp_path, model, torch.full((4096, 64), 0.7512345))
    text = "".join(path.read_text() for path in folder.rglob("*.*") if path.is_file())
    assert not [path for path in folder.rglob("*") if path.suffix == ".safetensors"]
    assert str(model.weight[0, 0].item())[:8] not in text


def test_values_are_kept_where_they_are_asked_for_and_a_folder_is_not_written_over(tmp_path):
    model = nn.Linear(8, 8).eval()
    x = torch.randn(2, 8)
    folder, record = captured(tmp_path, model, x, with_values=True)
    data = (folder / record.values).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    begin, end = header["weights/Linear/weight"]["data_offsets"]
    kept = torch.frombuffer(bytearray(data[8 + length + begin : 8 + length + end]), dtype=torch.float32)
    assert torch.equal(kept.view(8, 8), model.weight)
    assert any(name.startswith("inputs/Linear/") for name in header)
    with pytest.raises(ProblemError, match="holds a capture already"):
        capture(model, x, out=folder)


def test_a_program_without_a_module_is_a_mistake_in_words(tmp_path):
    with pytest.raises(ProblemError, match="nothing to capture"), capturing(tmp_path / "capture"):
        torch.ones(3)
