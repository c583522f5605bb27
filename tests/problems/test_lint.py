import pytest

from kernelwright.problems import lint_source

SOUND = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(4, 4)]
"""


def forward(expression: str) -> str:
    return SOUND.replace("torch.relu(x)", expression)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("F.dropout(x, 0.5)", "drops values at random"),
        ("nn.Dropout(0.5)(x)", "drops values at random"),
        ("x + torch.randn_like(x)", "draws random values"),
        ("x.cuda()", "names a CUDA device"),
        ("x.to('cuda:1')", "names a CUDA device"),
        ("torch.ones(3, device='cuda')", "names a CUDA device"),
        ("torch.tensor(np.random.normal(4))", "draws with a generator"),
        ("x * random.random()", "draws with a generator"),
        ("torch.load('weights.pt')", "reads a file"),
        ("open('table.txt').read()", "reads a file"),
        ("torch.hub.load('a', 'b')(x)", "uses the network"),
        ("AutoModel.from_pretrained('a')(x)", "uses the network"),
        ("import time", "reads the clock"),
        ("from datetime import datetime", "reads the clock"),
        ("import urllib.request", "uses the network"),
        ("torch.manual_seed(0)", "sets the seed"),
    ],
)
def test_a_trouble_in_forward_or_at_module_level_is_reported_with_its_line(text: str, what: str) -> None:
    at_top = text.startswith(("import ", "from ", "torch.manual_seed"))
    (warning,) = lint_source(f"{text}\n{SOUND}" if at_top else forward(text))
    assert warning.startswith(f"line {1 if at_top else 7}: {what}")


@pytest.mark.parametrize(
    "expression", ["torch.relu(x)", "'cuda' in str(x.device)", "self.timeline(x)", "torch.cuda.is_available()"]
)
def test_a_sound_reference_or_a_mere_likeness_gives_no_warning(expression: str) -> None:
    assert lint_source(forward(expression)) == []


@pytest.mark.parametrize("expression", ["F.dropout(x, 0.5, training=self.training)", "nn.Dropout(0.5)(x)"])
def test_a_dropout_gives_no_warning_where_the_process_finds_that_nothing_is_drawn(expression: str) -> None:
    assert lint_source(forward(expression), draws=False) == []
    assert lint_source(forward(expression + ".cuda()"), draws=False) == [
        "line 7: names a CUDA device; leave the device to the judge"
    ]


def test_warnings_come_in_order_of_lines() -> None:
    lines = [warning.split(":")[0] for warning in lint_source("import time\n" + forward("x.cuda()") + "open('a')\n")]
    assert lines == ["line 1", "line 8", "line 13"]


def test_text_that_does_not_parse_is_one_warning() -> None:
    (finding,) = lint_source("x = 1\ndef f(:\n")
    assert finding.startswith("line 2: ") and "parse" in finding
