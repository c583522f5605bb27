"""What a reference's process tells of the mode in which it is called."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright_child.reference import ModeWatcher

X, IMAGE, SEQUENCE = torch.ones(4, 8), torch.ones(2, 4, 3, 3), torch.ones(3, 2, 8)
PACKED = nn.utils.rnn.pack_padded_sequence(SEQUENCE, torch.tensor([3, 2]))


def found(module, *inputs):
    with ModeWatcher() as watcher, torch.no_grad():
        module(*inputs)
    return {kind: names for kind, names in watcher.found.items() if names}


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.Dropout(0.0), (X,)), (nn.BatchNorm1d(8, track_running_stats=False), (X,)), (nn.InstanceNorm2d(4), (IMAGE,)),
        (nn.LSTM(8, 8, 2), (SEQUENCE,)), (nn.MultiheadAttention(8, 2), (SEQUENCE,) * 3),
        (lambda x: F.normalize(x, p=2.0), (X,)), (lambda x: F.scaled_dot_product_attention(x, x, x), (SEQUENCE,)),
    ],
)  # fmt: skip
def test_what_is_the_same_in_both_modes_is_not_told(module, inputs):
    assert not found(module, *inputs)


def test_a_normalisation_takes_statistics_by_its_mode():
    tracked = nn.InstanceNorm2d(4, track_running_stats=True)
    for module, x, name in ((nn.BatchNorm1d(8), X, "batch_norm"), (tracked, IMAGE, "instance_norm")):
        assert found(module, x) == {"batch": {name}}
        assert found(module.eval(), x) == {"running": {name}}


@pytest.mark.parametrize(
    ("module", "inputs", "name"),
    [
        (nn.Dropout(), (X,), "dropout"),
        (nn.Dropout2d(inplace=True), (IMAGE.clone(),), "dropout2d"),
        (nn.AlphaDropout(), (X,), "alpha_dropout"),
        (nn.RReLU(), (X,), "rrelu"),
        (nn.LSTM(8, 8, 2, dropout=0.5), (SEQUENCE,), "lstm"),
        (nn.GRU(8, 8, 2, dropout=0.5), (SEQUENCE,), "gru"),
        (nn.LSTM(8, 8, 2, dropout=0.5), (PACKED,), "lstm"),
        (nn.MultiheadAttention(8, 2, dropout=0.5), (SEQUENCE,) * 3, "multi_head_attention_forward"),
        (nn.TransformerEncoderLayer(8, 2), (SEQUENCE,), "dropout"),
    ],
)
def test_what_draws_in_training_mode_is_silent_in_eval_mode(module, inputs, name):
    assert name in found(module, *inputs)["drawing"]
    in_eval = found(module.eval(), *inputs)
    assert "drawing" not in in_eval and name in in_eval["silent"]


@pytest.mark.parametrize(
    ("call", "kind", "name"),
    [
        (lambda x: torch.dropout(x, 0.2, True), "drawing", "dropout"),
        (lambda x: torch.dropout(x, p=0.2, train=False), "silent", "dropout"),
        (lambda x: F.batch_norm(x, x[0], x[0]), "running", "batch_norm"),
        (lambda x: torch.batch_norm(x, None, None, X[0].clone(), X[0].clone(), True, 0.1, 1e-5, False), "batch",
         "batch_norm"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), "drawing", "scaled_dot_product_attention"),
        (lambda x: x + torch.rand_like(x), "drawing", "rand_like"),
        (lambda x: x.clone().bernoulli_(), "drawing", "bernoulli"),
    ],
)  # fmt: skip
def test_functions_are_told_by_their_arguments(call, kind, name):
    assert found(call, X) == {kind: {name}}
