import pytest

from kernelwright.prompts import render
from kernelwright.prompts.modes import mode_of
from tests.support.briefs import BATCH_NORM, NORMALISED, PROBLEM, brief

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

rate = 0.25


class Model(nn.Module):
    def __init__(self, p=0.5):
        super(Model, self).__init__()
"""
TAIL = """
    def forward(self, x):
        return FORWARD


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return GIVEN
"""


def source(*constructor, forward="x", given="[]", before=""):
    lines = "".join(f"        {line}\n" for line in constructor)
    body = HEAD.replace("class Model", f"{before}\n\nclass Model") + lines
    return body + TAIL.replace("FORWARD", forward).replace("GIVEN", given)


def contract(problem):
    return next(one.text for one in render(brief(problem=problem)).sections if one.name == "contract")


def told(text, **changes):
    lines = contract(PROBLEM.model_copy(update={"source": text} | changes)).splitlines()
    return "".join(line for line in lines if line.startswith("- Mode:"))


def test_a_problem_without_such_layers_is_told_nothing_of_modes():
    assert "- Mode:" not in contract(PROBLEM)


@pytest.mark.parametrize(
    "layer",
    ["nn.LayerNorm(8)", "nn.Dropout(0.0)", "nn.Dropout(p=0)", "nn.BatchNorm1d(8, track_running_stats=False)",
     "nn.InstanceNorm2d(8)", "nn.LSTM(8, 8)", "nn.MultiheadAttention(8, 2)"],
)  # fmt: skip
def test_layers_that_do_the_same_in_both_modes_are_not_told(layer):
    assert not mode_of(source(f"self.layer = {layer}")).matters


def test_batch_norm_takes_batch_statistics_as_constructed():
    assert mode_of(NORMALISED).batch == ("BatchNorm2d",)
    assert "call's own input" in contract(BATCH_NORM)


def test_running_statistics_are_free_unless_the_problem_follows_them():
    followed = BATCH_NORM.model_copy(update={"state": "followed"})
    assert "need not be updated" in contract(BATCH_NORM)
    assert "need not be updated" not in contract(followed)
    assert "statistics and their counters" in contract(followed) and "must hold" in contract(followed)


def test_buffers_that_are_followed_are_told_without_any_such_layer():
    assert "must hold what `Model`'s" in contract(PROBLEM.model_copy(update={"state": "followed"}))


def test_a_constructor_that_calls_eval_puts_the_module_into_eval_mode():
    for call in ("self.eval()", "self.train(False)"):
        text = told(source("self.norm = nn.BatchNorm1d(8)", "self.drop = nn.Dropout()", call))
        assert "eval mode" in text and "the constructor" in text
        assert "running statistics" in text and "nothing is drawn" in text


def test_eval_of_one_layer_leaves_the_others_in_training_mode():
    layers = ("self.one = nn.BatchNorm1d(8)", "self.two = nn.SyncBatchNorm(8).eval()", "self.drop = nn.Dropout()")
    found = mode_of(source(*layers, "self.drop.eval()"))
    assert (found.is_training, found.batch, found.running) == (True, ("BatchNorm1d",), ("SyncBatchNorm",))
    assert (found.drawing, found.silent) == ((), ("Dropout",))


def test_dropout_has_to_draw_by_the_same_calls():
    assert "same torch calls" in told(source("self.drop = nn.Dropout(rate)"))


@pytest.mark.parametrize(("given", "draws"), [("[0.0]", False), ("[0.1]", True), ("[rate]", True), ("[]", True)])
def test_the_probability_is_that_of_the_constructor_s_argument(given, draws):
    assert bool(mode_of(source("self.drop = nn.Dropout(p)", given=given)).drawing) == draws


def test_arguments_are_followed_into_modules_within():
    inner = "class Inner(nn.Module):\n    def __init__(self, width, p):\n        self.drop = nn.Dropout(p)\n"
    for given, draws in (("[0.0]", False), ("[0.2]", True)):
        text = source("self.inner = nn.Sequential(Inner(8, p=p))", given=given, before=inner)
        assert bool(mode_of(text).drawing) == draws


def test_a_class_that_is_handed_on_is_read_too():
    block = "class Block(nn.Module):\n    def __init__(self, p):\n        self.norm = nn.BatchNorm1d(8)\n"
    assert mode_of(source("self.layer = self.made_of(Block, 3)", before=block)).batch == ("BatchNorm1d",)


@pytest.mark.parametrize(
    ("forward", "kind"),
    [
        ("F.dropout(x)", "drawing"),
        ("F.dropout(x, 0.2, self.training)", "drawing"),
        ("torch.dropout(x, p=0.2, training=False)", "silent"),
        ("F.batch_norm(x, None, None, training=True)", "batch"),
        ("F.batch_norm(x, x, x)", "running"),
    ],
)
def test_functions_are_told_the_mode_by_an_argument(forward, kind):
    found = mode_of(source(forward=forward))
    assert getattr(found, kind) == (forward.partition("(")[0].partition(".")[2],) and not found.asks


def test_a_layer_that_is_named_like_a_function_is_none():
    assert not mode_of(source("self.dropout = nn.Identity()", forward="self.dropout(x)")).matters


def test_a_source_that_reads_its_mode_is_told_it():
    assert "`self.training` is True" in told(source(forward="x if self.training else -x"))


def test_classes_that_the_model_does_not_use_do_not_count():
    unused = "class Unused(nn.Module):\n    def __init__(self):\n        self.norm = nn.BatchNorm1d(8)\n"
    assert not mode_of(source(before=unused)).matters


def test_what_is_no_module_has_no_mode():
    assert not mode_of("def forward(").matters and not mode_of("x = 1").matters
