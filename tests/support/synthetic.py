"""A tree of 300 problems in KernelBench's layout: everything that foreign references do, sound and not."""

from pathlib import Path
from typing import NamedTuple

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\nROWS, COLUMNS = {rows}, 24\n\n"
NO_INIT = "\n\ndef get_init_inputs():\n    return []\n"
ONE_INPUT = "\n\ndef get_inputs():\n    return [torch.randn(ROWS, COLUMNS)]\n"
LINEAR = """class Model(nn.Module):
    def __init__(self, features, out, bias=True, scale=1.0):
        super().__init__()
        self.layer, self.scale = nn.Linear(features, out, bias=bias), scale

    def forward(self, x):
        return self.layer(x) * self.scale
"""


class Kind(NamedTuple):
    body: str
    read: str = "read"
    """The status that reading the text gives: read, unsupported, broken."""
    judged: tuple[str, ...] = ("ok", "weak")
    """The statuses of which `problems check` gives one."""


def forward(body: str, signature: str = "x") -> str:
    return f"class Model(nn.Module):\n    def forward(self, {signature}):\n        {body}\n"


BUFFER = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.randn(COLUMNS))

    def forward(self, x):
        return x + self.shift
"""
MODULE = "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {make}\n\n    def forward(self, x):\n        return self.layer(x)\n"  # noqa: E501
KINDS: dict[str, Kind] = {
    "plain": Kind(forward("return torch.cumsum(x, dim=1)") + ONE_INPUT + NO_INIT),
    "init_as_dict": Kind(
        LINEAR + ONE_INPUT + "\ndef get_init_inputs():\n    return {'out': 8, 'features': COLUMNS}\n"
    ),
    "init_as_positions_and_dict": Kind(
        LINEAR + ONE_INPUT + "\ndef get_init_inputs():\n    return [[COLUMNS], {'out': 8, 'scale': 2.0}]\n"
    ),
    "init_from_a_call": Kind(
        LINEAR + ONE_INPUT + "\ndef get_init_inputs():\n    return list(dict(features=COLUMNS, out=8).values())\n"
    ),
    "keyword_only_constructor": Kind(
        LINEAR.replace("self, features", "self, *, features") + ONE_INPUT
        + "\ndef get_init_inputs():\n    return {'features': COLUMNS, 'out': 8}\n"
    ),
    "keyword_only_after_positions": Kind(
        LINEAR.replace("self, features, out", "self, features, *, out") + ONE_INPUT
        + "\ndef get_init_inputs():\n    return [[COLUMNS], {'out': 8}]\n",
        "unsupported", ("unsupported",),
    ),
    "drawn_and_not_handed_over": Kind(
        LINEAR.replace(", scale\n", ", torch.rand(out)\n") + ONE_INPUT
        + "\ndef get_init_inputs():\n    return [COLUMNS, 8]\n", judged=("unsupported",),
    ),
    "number_and_none_as_inputs": Kind(
        forward("return x * factor if mask is None else x", "x, factor, mask")
        + "\n\ndef get_inputs():\n    return [torch.randn(ROWS, COLUMNS), 3, None]\n" + NO_INIT
    ),
    "nested_inputs": Kind(
        forward("return given['a'] * scale[0] + given['b'][1]", "given, scale")
        + "\n\ndef get_inputs():\n    a = torch.randn(ROWS, COLUMNS)\n"
        + "    return [{'a': a, 'b': (a, a + 1)}, (2.0, 3)]\n" + NO_INIT
    ),
    "integer_inputs": Kind(
        forward("return F.embedding(ids, table)", "ids, table")
        + "\n\ndef get_inputs():\n    return [torch.randint(0, 10, (ROWS,)), torch.randn(10, COLUMNS)]\n" + NO_INIT
    ),
    "integers_only": Kind(
        forward("return torch.bincount(x, minlength=64)")
        + "\n\ndef get_inputs():\n    return [torch.randint(0, 64, (ROWS * 50,))]\n" + NO_INIT
    ),
    "buffers": Kind(BUFFER + ONE_INPUT + NO_INIT),
    "batch_norm": Kind(MODULE.format(make="self.layer = nn.BatchNorm1d(COLUMNS)") + ONE_INPUT + NO_INIT),
    "dropout": Kind(
        MODULE.format(make="self.layer = nn.Dropout(0.5)") + ONE_INPUT + NO_INIT, "read", ("unsupported", "weak")
    ),
    "dropout_of_nothing": Kind(
        MODULE.format(make="self.layer = nn.Sequential(nn.Linear(COLUMNS, 8), nn.Dropout(0.0))") + ONE_INPUT + NO_INIT
    ),
    "dropout_in_eval_mode": Kind(
        MODULE.format(make="self.layer = nn.Sequential(nn.Linear(COLUMNS, 8), nn.Dropout(0.5)).eval()")
        + ONE_INPUT + NO_INIT
    ),
    "draws_in_forward": Kind(
        forward("return x + torch.randn_like(x)") + ONE_INPUT + NO_INIT, "read", ("unsupported", "weak")
    ),
    "several_outputs": Kind(forward("return x.sum(1), {'max': x.max(1)[0]}, [x * 2]") + ONE_INPUT + NO_INIT),
    "view_of_an_input": Kind(forward("return x.t()") + ONE_INPUT + NO_INIT),
    "slice_of_an_input": Kind(forward("return x[1:, ::2]") + ONE_INPUT + NO_INIT),
    "changes_its_input": Kind(forward("return x.mul_(2)") + ONE_INPUT + NO_INIT),
    "inputs_on_cuda": Kind(
        forward("return x * y", "x, y")
        + "\n\nDEVICE = 'cuda'\n\ndef get_inputs():\n    x = torch.randn(ROWS, COLUMNS, device='cuda:0')\n"
        + "    return [x, torch.rand(ROWS, COLUMNS).to(DEVICE).cuda()]\n" + NO_INIT
    ),
    "much_memory": Kind(
        forward("return x * 2").replace("ROWS", "") + "\n\ndef get_inputs():\n"
        + "    return [torch.rand(ROWS * 1024, 1024 * COLUMNS, 4)]\n" + NO_INIT,
        "read", ("unsupported here",),
    ),
    "half_precision": Kind(
        forward("return F.silu(x)") + ONE_INPUT.replace("COLUMNS)", "COLUMNS).half()") + NO_INIT
    ),
    "numpy_input": Kind(
        forward("return torch.from_numpy(x)") + "\n\ndef get_inputs():\n    return [torch.randn(ROWS).numpy()]\n"
        + NO_INIT, "read", ("unsupported",),
    ),
    "sparse_output": Kind(
        forward("return x.to_sparse()") + ONE_INPUT + NO_INIT, "read", ("unsupported", "broken")
    ),
    "raises": Kind(forward("raise ValueError('no')") + ONE_INPUT + NO_INIT, "read", ("broken",)),
    "exits": Kind("raise SystemExit(3)\n" + forward("return x") + ONE_INPUT + NO_INIT, "read", ("broken",)),
    "needs_a_missing_module": Kind(
        "import not_there\n" + forward("return x") + ONE_INPUT + NO_INIT, "read", ("broken",)
    ),
    "no_get_inputs": Kind(forward("return x") + NO_INIT, "broken", ("broken",)),
    "syntax_error": Kind("def (:\n", "broken", ("broken",)),
    "a_candidate": Kind(
        forward("return x").replace("Model", "ModelNew") + ONE_INPUT + NO_INIT, "broken", ("broken",)
    ),
    "nested_too_deeply": Kind("x = " + "(" * 3000 + ")" * 3000 + "\n", "broken", ("broken",)),
}  # fmt: skip
SPECIAL = {"not_utf8": b"\xff\xfe\x00model", "a_zero_byte": b"x = 1\x00\n", "empty": b""}
"""Files that are no text of Python at all: broken."""
COUNT = 300


def write_synthetic(root: Path, count: int = COUNT) -> dict[str, str]:
    """Write the tree; by id such as `level1/7`, the kind of each problem."""
    names = [*KINDS, *SPECIAL]
    kinds: dict[str, str] = {}
    for index in range(count):
        name = names[index % len(names)]
        level, number = index // 100 + 1, index % 100 + 1
        path = root / f"level{level}" / f"{number}_{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in SPECIAL:
            path.write_bytes(SPECIAL[name])
        else:
            path.write_text(HEAD.format(rows=16 + index % 7) + KINDS[name].body)
        kinds[f"level{level}/{number}"] = name
    return kinds
