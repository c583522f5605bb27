"""Kernels in the place of modules: names, weights and gradients as before, and guards with a way out."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.programs.guarded import NoPlace, TiedKernel, flat
from kernelwright.programs.placing import applied, apply, put_all_back
from tests.support.programs import COLUMNS, KERNEL, ROWS, Network, kernels_folder


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Network().eval()


def put(model, tmp_path, kernel=KERNEL, **how):
    return apply(model, kernels_folder(tmp_path / "kernels", kernel, **how), tmp_path / "cache")


def rows(count=ROWS):
    return torch.randn(count, COLUMNS)


def reasons(model):
    return [dict(one.fallbacks) for one in applied(model).kernels]


def test_the_kernel_is_taken_and_gives_what_the_module_gives(model, tmp_path):
    x = rows()
    with torch.no_grad():
        want = model(x)
        put(model, tmp_path)
        torch.testing.assert_close(model(x), want)
    assert [one.taken for one in applied(model).kernels] == [1, 1]
    assert "gate was taken 1 times" in str(applied(model))


def test_names_parameters_and_state_stay_the_same_objects(model, tmp_path):
    names, own = list(model.state_dict()), dict(model.named_parameters())
    put(model, tmp_path)
    assert list(model.state_dict()) == names
    assert all(parameter is own[name] for name, parameter in model.named_parameters())
    other = Network()
    other.load_state_dict(model.state_dict())
    model.load_state_dict(other.state_dict())
    assert repr(model) == repr(other)


def test_weights_that_change_are_seen_by_a_kernel_that_keeps_its_own(model, tmp_path):
    keeping = KERNEL.replace(
        "return x / (1 + torch.exp(-self.gain))",
        'self.kept = getattr(self, "kept", None) if hasattr(self, "kept") else torch.sigmoid(self.gain)\n'
        "        return x * self.kept",
    )
    put(model, tmp_path, keeping)
    x = rows()
    with torch.no_grad():
        model(x)
        model.first.gain.mul_(-3)
        model.second.gain = nn.Parameter(torch.randn(COLUMNS))
        got = model(x)
        torch.testing.assert_close(got, put_all_back(model)(x))


def test_another_batch_size_takes_the_modules_own_code_and_is_counted(model, tmp_path):
    put(model, tmp_path)
    with torch.no_grad():
        x = rows(ROWS + 1)
        got = model(x)
    assert reasons(model) == [{"another shape": 1}] * 2
    with torch.no_grad():
        assert torch.equal(got, put_all_back(model)(x))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda model, x: (model.double(), x.double()), "another dtype"),
        (lambda model, x: (model, x.t().contiguous().t()), "another layout in memory"),
        (lambda model, x: (model, torch.randn(ROWS * COLUMNS + 1)[1:].view(ROWS, COLUMNS)), "not aligned"),
        (lambda model, x: (model.train(), x), "training mode"),
        (lambda model, x: (hooked(model), x), "hooks"),
    ],
)
def test_what_the_kernel_was_not_judged_for_takes_the_modules_own_code(model, tmp_path, change, why):
    put(model, tmp_path)
    changed, x = change(model, rows())
    with torch.no_grad():
        got = changed.first(x)
        ((reason, times),) = reasons(changed)[0].items()
        assert why in reason and times == 1
        assert torch.equal(got, put_all_back(changed).first(x))


def hooked(model):
    model.first.inner.register_forward_hook(lambda *_: None)
    return model


def test_autocast_and_vmap_take_the_modules_own_code(model, tmp_path):
    put(model, tmp_path)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model(rows())
    with torch.no_grad():
        torch.func.vmap(model)(torch.randn(3, ROWS, COLUMNS))
    autocast, traced = sorted(reasons(model)[0])
    assert autocast == "autocast" and "traces" in traced and set(reasons(model)[0].values()) == {1}


def test_a_kernel_judged_forward_only_leaves_gradients_to_the_module(model, tmp_path):
    x = rows()
    model(x).sum().backward()
    want = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    put(model, tmp_path)
    model(x).sum().backward()
    assert all(torch.equal(parameter.grad, want[name]) for name, parameter in model.named_parameters())
    assert "gradients are wanted" in str(applied(model))


def test_a_kernel_judged_for_gradients_is_taken_and_gives_them(model, tmp_path):
    x = rows()
    model(x).sum().backward()
    want = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    put(model, tmp_path, direction="both")
    model(x).sum().backward()
    assert [one.taken for one in applied(model).kernels] == [1, 1]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name])


def test_a_kernel_that_keeps_the_memory_of_its_results_is_copied(model, tmp_path):
    keeping = KERNEL.replace(
        "        return x / (1 + torch.exp(-self.gain))",
        '        self.out = getattr(self, "out", None) if hasattr(self, "out") else torch.empty_like(x)\n'
        "        torch.mul(x, torch.sigmoid(self.gain), out=self.out)\n"
        "        return self.out",
    )
    put(model, tmp_path, keeping)
    with torch.no_grad():
        one = model(rows())
        before = one.clone()
        model(rows())
    assert torch.equal(one, before)


def test_a_kernel_that_raises_is_switched_off(model, tmp_path):
    raising = KERNEL.replace(
        "        return x /", '        if x[0, 0] == 7:\n            raise OSError("no")\n        return x /'
    )
    put(model, tmp_path, raising)
    x = rows()
    x[0, 0] = 7
    with torch.no_grad():
        got = model(x)
        model(rows())
        assert reasons(model)[0] == {"it raised OSError: no": 1, "switched off": 1}
        torch.testing.assert_close(got, put_all_back(model)(x))


def test_copies_and_pickles_are_of_the_modules_own_class(model, tmp_path):
    put(model, tmp_path)
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    assert not applied(twin).kernels and not applied(read).kernels and applied(model).kernels
    x = rows()
    with torch.no_grad():
        torch.testing.assert_close(twin(x), model(x))
        torch.testing.assert_close(read(x), model(x))


def test_the_programs_draws_do_not_feel_that_kernels_are_made(model, tmp_path):
    torch.manual_seed(3)
    want = torch.rand(4)
    torch.manual_seed(3)
    put(model, tmp_path)
    assert torch.equal(torch.rand(4), want)


def test_another_model_is_refused_with_what_was_captured(tmp_path):
    with pytest.raises(NoPlace, match=r"Linear: .*no Network"):
        put(nn.Linear(2, 2), tmp_path)


def test_a_model_within_a_larger_one_is_found(model, tmp_path):
    put(nn.ModuleDict({"inside": model}), tmp_path)
    assert [one.name for one in applied(model).kernels] == ["inside.first", "inside.second"]


@pytest.mark.slow
def test_torch_compile_around_it_takes_the_kernels(model, tmp_path):
    x = rows()
    with torch.no_grad():
        want = model(x)
        put(model, tmp_path)
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(compiled(x), want)
        torch.testing.assert_close(compiled(x), want)
        assert [one.taken for one in applied(model).kernels] == [2, 2]
        compiled(rows(ROWS + 1))
    assert reasons(model) == [{"another shape": 1}] * 2


@pytest.mark.parametrize("args", [(), (torch.zeros(2),), (torch.zeros(2), torch.ones(3)), (torch.zeros(2), 1)])
@pytest.mark.parametrize("kwargs", [{}, {"x": torch.zeros(1)}])
def test_a_call_is_taken_apart_as_torch_does_it(args, kwargs):
    leaves, structure = flat(args, kwargs)
    theirs, their_structure = pytree.tree_flatten((args, kwargs))
    assert structure == their_structure
    assert all(one is other for one, other in zip(leaves, theirs, strict=True))


def test_guards_follow_a_submodule_that_is_exchanged():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    kernel = TiedKernel({"state": {"weight": "0.weight"}, "written": []}, nn.Identity, False)
    assert kernel._state(model)["weight"] is model[0].weight
    model[0] = nn.Linear(2, 2)
    assert kernel._state(model)["weight"] is model[0].weight
    nn.utils.parametrizations.weight_norm(model[0])
    assert torch.equal(kernel._state(model)["weight"], model[0].weight)
    del model[0]
    with pytest.raises(NoPlace, match=r"no 0\.weight"):
        kernel._state(model)
