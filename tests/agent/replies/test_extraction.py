"""Shapes of replies, each with the source that it offers or the reason why it offers none."""

import ast
import os
import warnings
from pathlib import Path

import pytest

from kernelwright.agent.replies import Extraction, NotExtracted, extract

PROGRAM = (Path(__file__).parent / "texts" / "relu.txt").read_text(encoding="utf-8")
REFERENCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(8)]
"""


def program(mark: str = "final") -> str:
    return PROGRAM.replace("MARK", mark)


def head(mark: str = "final") -> str:
    return program(mark).partition("class ModelNew")[0]


def module_class(mark: str = "final") -> str:
    return "class ModelNew" + program(mark).partition("class ModelNew")[2]


def fenced(code: str, info: str = "python", fence: str = "```") -> str:
    return f"{fence}{info}\n{code.rstrip()}\n{fence}\n"


def indented(text: str, by: str) -> str:
    return "".join(by + line if line.strip() else line for line in text.splitlines(keepends=True))


def with_docstring(docstring: str, mark: str = "final") -> str:
    return f'"""{docstring}"""\n{program(mark)}'


FINAL, DRAFT = program("final"), program("draft")
BROKEN = program("broken").replace("def forward(self, x):", "def forward(self, x:")
THOUGHT = "First I weigh the options, don't I?\n\n"
USAGE = "model = ModelNew()\nprint(model(torch.rand(3)))\n"
UNQUOTED_DRAFT = DRAFT.replace('"', "")
TRAILING = "\nThis reads each value once. It's as fast as memory allows.\n\n- no allocation besides the output\n"

ACCEPTED: dict[str, str] = {
    "one block": f"Here is the kernel:\n\n{fenced(FINAL)}",
    "one block and prose behind it": fenced(FINAL) + TRAILING,
    "blanks behind the fences": f"```python   \n{FINAL}```   \n",
    "four backticks around three": fenced(with_docstring("\n```\nuse it\n```\n"), fence="````"),
    "tildes around backticks": fenced(with_docstring("\n```\nuse it\n```\n"), fence="~~~"),
    "an opening fence of four and a closing one of three": f"````python\n{FINAL}```\n{TRAILING}",
    "a block in a list item": f"1. The kernel:\n\n{indented(fenced(FINAL), '   ')}\n2. The end.\n",
    "a block indented by four": f"- The kernel:\n\n{indented(fenced(FINAL), '    ')}",
    "a block indented by a tab": f"- The kernel:\n\n{indented(fenced(FINAL), chr(9))}",
    "a fence behind a list marker": f"- {indented(fenced(FINAL), '  ').lstrip()}",
    "code indented inside a flush fence": fenced(indented(FINAL, "    ")),
    "no closing fence": f"Here:\n\n```python\n{FINAL}",
    "no closing fence and prose behind": f"Here:\n\n```python\n{FINAL}{TRAILING}",
    "no closing fence and a heading behind": f"```python\n{FINAL}\nKey points:\n\n1. It's one pass.\n",
    "no closing fence before a later block": f"```python\n{DRAFT}\nNow better:\n\n```python\n{FINAL}```\n",
    "no opening fence": f"{FINAL}```\n{TRAILING}",
    "an opening fence behind prose": f"Here is the code: ```python\n{FINAL}```\n",
    "Windows newlines": fenced(FINAL).replace("\n", "\r\n"),
    "old Macintosh newlines": fenced(FINAL).replace("\n", "\r"),
    "a byte order mark": "\ufeff" + fenced(FINAL),
    "a byte order mark inside the block": fenced("\ufeff" + FINAL),
    "draft, then final": f"{fenced(DRAFT)}\nBut better:\n\n{fenced(FINAL)}",
    "draft and final in one zone after the thought": f"{THOUGHT}</think>{fenced(DRAFT)}\nBetter:\n{fenced(FINAL)}",
    "thought closed, answer behind": f"<think>\n{THOUGHT}{fenced(DRAFT)}</think>\n\n{fenced(FINAL)}",
    "only the closing tag": f"{THOUGHT}{fenced(DRAFT)}\n</think>\n\n{fenced(FINAL)}",
    "code only before the closing tag": f"{THOUGHT}{fenced(FINAL)}\nSo be it.\n</think>\n",
    "code before the closing tag and prose behind": f"{THOUGHT}{fenced(FINAL)}</think>\nThe code is above.\n",
    "draft and final before the closing tag": f"{fenced(DRAFT)}\nor\n\n{fenced(FINAL)}\n</think>",
    "thought that never closes": f"<think>\n{THOUGHT}{fenced(FINAL)}\nThat's it.",
    "two closing tags": f"{fenced(DRAFT)}</think>\n{fenced(program('middle'))}</think>\n{fenced(FINAL)}",
    "a closing tag quoted in the answer's prose": f"{DRAFT}</think>\n{fenced(FINAL)}\nMind the `</think>` above.\n",
    "a closing tag in a string of the answer": fenced(FINAL + '\nTAG = "</think>"\n') + f"\n{TRAILING}",
    "a closing tag in a docstring of the answer": fenced(with_docstring("\nends\n</think>\nhere\n")) + TRAILING,
    "a format quoted in the thought": f"{THOUGHT}```\n<think>\n...\n</think>\n```\n</think>\n{fenced(FINAL)}",
    "a fence left open in the thought": f"{THOUGHT}```python\n{DRAFT}</think>\n\n{fenced(FINAL)}",
    "a bare fence left open in the thought": f"{THOUGHT}```\n{DRAFT}\n</think>\n\n{fenced(FINAL, '')}",
    "a closing tag behind the closing fence": f"{fenced(DRAFT).rstrip()}</think>\n{fenced(FINAL)}",
    "a fence right behind the closing tag": f"{THOUGHT}</think>{fenced(FINAL)}",
    "thinking tags": f"<thinking>\n{fenced(DRAFT)}</thinking>\n{fenced(FINAL)}",
    "bracketed tags": f"[THINK]{fenced(DRAFT)}[/THINK]\n{fenced(FINAL)}",
    "raw drafts in the thought": f"{THOUGHT}{DRAFT}\nHmm, no.\n\n{fenced(FINAL)}</think>",
    "harmony channels": "<|channel|>analysis<|message|>"
    f"{fenced(DRAFT)}<|end|><|start|>assistant<|channel|>final<|message|>{fenced(FINAL)}<|return|>",
    "an end token behind the fence": f"{fenced(FINAL).rstrip()}<|im_end|>",
    "an end of sequence tag": f"{fenced(FINAL).rstrip()}</s>",
    "a code tag": f"Here:\n<code>\n{FINAL}</code>\nDone.\n",
    "an answer tag around a block": f"<answer>\nThis is it:\n{fenced(FINAL)}</answer>\n",
    "raw code": FINAL,
    "raw code behind prose": f"Sure, here's the kernel.\n\n{FINAL}",
    "raw code between prose": f"Sure, here's the kernel.\n\n{FINAL}{TRAILING}",
    "raw code with a decorated class": FINAL.replace("class ModelNew", "@torch.no_grad\nclass ModelNew"),
    "raw code after the thought": f"{fenced(DRAFT)}</think>\n{FINAL}",
    "a docstring with a fenced example": fenced(with_docstring("Use:\n```python\nModelNew()\n```\n")) + TRAILING,
    "a docstring with a bare fenced example": fenced(with_docstring("Use:\n```\nModelNew()\n```\n")) + TRAILING,
    "a docstring with one fence": fenced(with_docstring("Use:\n```\nModelNew()\n")) + TRAILING,
    "a docstring with a whole draft": fenced(with_docstring(f"Not:\n```python\n{UNQUOTED_DRAFT}```\n")),
    "a draft with a fence in its docstring, then the final": fenced(with_docstring("```\nuse\n", "draft"))
    + f"\nBetter:\n\n{fenced(FINAL)}",
    "fences in the kernel's text": fenced(
        FINAL.replace("    return y;", "/*\n```\nrow | column\n```\n*/\n    return y;")
    ),
    "the reference first": f"The original:\n{fenced(REFERENCE)}\nMine:\n{fenced(FINAL)}",
    "the reference last": f"{fenced(FINAL)}\nIt stands for:\n{fenced(REFERENCE)}",
    "the reference in the same block": fenced(f"{REFERENCE}\n\n{FINAL}"),
    "a usage example last": f"{fenced(FINAL)}\nUse it:\n{fenced(USAGE)}",
    "an import of the class last": fenced(FINAL) + fenced("from model import ModelNew\nModelNew()"),
    "shell commands last": f"{fenced(FINAL)}Run:\n{fenced('python model_new.py', 'bash')}",
    "a kernel file first": f"{fenced('__global__ void relu(float* x) {}', 'cuda')}{fenced(FINAL)}",
    "a broken draft, then the final": f"{fenced(BROKEN)}\nA typo. Once more:\n{fenced(FINAL)}",
    "a final, then a broken extra": f"{fenced(FINAL)}\nOr:\n{fenced(BROKEN)}",
    "a broken answer behind a whole thought": f"{fenced(FINAL)}</think>\n{fenced(BROKEN)}",
    "a spare closing fence": f"{fenced(FINAL)}```\n",
    "an empty block first": f"```python\n```\n{fenced(FINAL)}",
    "a class under if": fenced(FINAL.replace("class ModelNew", "if True:\n  class ModelNew")),
    "a class under try": fenced(f"{head()}\ntry:\n{indented(module_class(), '    ')}\nexcept ImportError:\n    pass\n"),
    "an assigned class": fenced(FINAL.replace("class ModelNew", "class Relu") + "\n\nModelNew = Relu\n"),
    "an assigned class with a type": fenced(
        FINAL.replace("class ModelNew", "class Relu") + "\nModelNew: type = Relu\n"
    ),
    "tabs and trailing blanks": fenced("".join(f"{line}  \n" for line in FINAL.replace("    ", "\t").splitlines())),
    "an invalid escape in a string": fenced(FINAL + '\nPATTERN = "\\d"\n'),
    "letters of other scripts": f"Voilà, 核心代码如下:\n\n{fenced(FINAL + '# größer, 快')}",
}


UNCHANGED = [
    "one block",
    "a block in a list item",
    "code indented inside a flush fence",
    "Windows newlines",
    "no closing fence and prose behind",
    "raw code between prose",
    "harmony channels",
]


def extracted(reply: str, **how: str | bool) -> Extraction:
    found = extract(reply, **how)
    assert isinstance(found, Extraction), found
    return found


def refused(reply: str, **how: str | bool) -> NotExtracted:
    found = extract(reply, **how)
    assert isinstance(found, NotExtracted), found
    return found


def kernel_called(source: str) -> str:
    """The name of the compiled function that the last top-level `ModelNew` calls, or what it stands for."""
    with warnings.catch_warnings(action="ignore"):
        tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name != "Model"]
    calls = [node for node in ast.walk(classes[-1]) if isinstance(node, ast.Attribute) and node.attr.startswith("relu")]
    return calls[-1].attr


@pytest.mark.parametrize("shape", ACCEPTED)
def test_a_reply_of_this_shape_gives_its_final_program(shape: str) -> None:
    assert kernel_called(extracted(ACCEPTED[shape]).source) == "relu_final"


INFO = [
    "",
    "py",
    "python3",
    "Python",
    " python",
    "python title=model_new.py",
    "{.python .numberLines}",
    "python:model_new.py",
]


@pytest.mark.parametrize("fence", ["```", "````", "~~~", "~~~~~~"])
@pytest.mark.parametrize("info", [*INFO, "cuda", "cpp", "text"])
def test_any_fence_and_information_will_do(info: str, fence: str) -> None:
    assert extracted(fenced(FINAL, info, fence)).source == FINAL


@pytest.mark.parametrize("shape", UNCHANGED)
def test_a_program_comes_out_of_this_shape_character_by_character(shape: str) -> None:
    source = extracted(ACCEPTED[shape]).source
    assert source.replace("\n\n    def", "\n    def") == FINAL.replace("\n\n    def", "\n    def")


def test_an_odd_escape_in_a_source_warns_nobody() -> None:
    with warnings.catch_warnings(action="error"):
        extracted(ACCEPTED["an invalid escape in a string"])


NO_FORWARD = FINAL.replace("class ModelNew", "class Relu")
KERNEL = "#include <torch/extension.h>\n__global__ void relu(float* x) {\n}\n"
CUT = FINAL.partition(".contiguous()")[0]

REJECTED: dict[str, tuple[str, str, str]] = {
    # Kind of the failure, words of its detail, reply.
    "nothing": ("no_code", "0 characters", ""),
    "prose": ("no_code", "'The ReLU is bound by memory.'", "The ReLU is bound by memory."),
    "prose that names the class": ("no_code", "no code", "You should write a class ModelNew for that."),
    "prose in the thought only": ("no_code", "ends with its reasoning", "<think>\nHm, hard.\n</think>\n"),
    "shell commands": ("no_code", "no code", fenced("pip install torch\nls", "bash")),
    "a table in a block": ("no_code", "no code", fenced("size | time\n3 | 4 ms", "text")),
    "an empty block": ("no_code", "no code", "```python\n```\n"),
    "a refusal": ("refusal", "I'm sorry", "I'm sorry, but I can't help with that."),
    "a refusal as an AI": ("refusal", "as an AI", "Sadly, as an AI I have no GPU to compile this."),
    "a refusal after the thought": ("refusal", "I am unable", "Hmm.\n</think>\nI am unable to write this."),
    "a syntax error": ("syntax_error", "'def forward(self, x:'", fenced(BROKEN)),
    "a syntax error in raw code": ("syntax_error", "def forward", f"Here:\n{BROKEN}\n\nx = 1\n"),
    "a syntax error before the fence is left open": ("syntax_error", "def forward", f"```python\n{BROKEN}{TRAILING}"),
    "two syntax errors": (
        "syntax_error",
        "line 1, 'import torch as'",
        fenced(BROKEN) + fenced("import torch as\nclass ModelNew: pass"),
    ),
    "a syntax error beside the reference": ("syntax_error", "def forward", fenced(REFERENCE) + fenced(BROKEN)),
    "a misspelt keyword": ("syntax_error", "clas ModelNew", fenced("import torch\nclas ModelNew:\n    pass")),
    "a NUL character": ("syntax_error", "null bytes", fenced(FINAL + "x = '\0'")),
    "a lone surrogate": ("syntax_error", "surrogates", fenced(FINAL + "x = '\ud800'")),
    "nesting beyond the parser": ("syntax_error", "nested", fenced(FINAL + "x = " + "-" * 100_000 + "1")),
    "a source that is too long": ("syntax_error", "too long", fenced(FINAL + "x = 1\n" * 60_000)),
    "the reference only": ("no_entry_point", "Found Model, get_inputs; need class ModelNew", fenced(REFERENCE)),
    "the reference as raw code": ("no_entry_point", "Found Model, get_inputs", f"Here:\n{REFERENCE}\nBye then.\n"),
    "a class of another name": ("no_entry_point", "Found Relu", fenced(NO_FORWARD)),
    "a function of that name": ("no_entry_point", "Found ModelNew", fenced("def ModelNew(x):\n    return x")),
    "a class inside a function": (
        "no_entry_point",
        "Found make",
        fenced(f"import torch\ndef make():\n{indented(module_class(), '    ')}"),
    ),
    "a usage example only": ("no_entry_point", "no class", fenced(f"import torch\n{USAGE}")),
    "an import of the class only": ("no_entry_point", "no class", fenced("from model import ModelNew")),
    "the class in a comment": ("no_entry_point", "no class", fenced("import torch\n# class ModelNew: later")),
    "a CUDA file only": ("no_entry_point", "no Python", fenced(KERNEL, "cuda")),
    "a C++ file that names the class": ("no_entry_point", "no Python", fenced(f"// for ModelNew\n{KERNEL}", "cpp")),
    "an unlabelled CUDA file": ("no_entry_point", "no Python", fenced(KERNEL, "")),
    "broken Python without the class": ("no_entry_point", "no Python", fenced("import torch as\n")),
    "an open block cut in a call": ("truncated", "breaks off", f"```python\n{CUT}"),
    "an open block cut in the kernel's text": ("truncated", "breaks off", f"```python\n{FINAL.partition('auto y')[0]}"),
    "an open block cut behind a colon": (
        "truncated",
        "breaks off",
        f"```python\n{FINAL.partition('  return self')[0]}",
    ),
    "a whole draft, then an open block": ("truncated", "breaks off", f"{fenced(DRAFT)}Better:\n```python\n{CUT}"),
    "a whole draft in the thought, then an open block": (
        "truncated",
        "breaks off",
        f"{fenced(DRAFT)}</think>\n```python\n{CUT}",
    ),
    "raw code cut in a call": ("truncated", "breaks off", f"Sure, here it is.\n\n{CUT}"),
}


@pytest.mark.parametrize("shape", REJECTED)
def test_a_reply_of_this_shape_is_told_for_what_it_is_and_what_is_at_fault_is_named(shape: str) -> None:
    kind, says, reply = REJECTED[shape]
    found = refused(reply)
    assert found.kind == kind and says in found.detail, found
    found.detail.encode()


def test_code_in_the_separate_reasoning_counts_where_the_reply_is_empty() -> None:
    assert "separate reasoning" in extracted("", reasoning=f"Maybe\n{fenced(FINAL)}").how
    both = extracted(fenced(FINAL), reasoning=fenced(DRAFT))
    assert kernel_called(both.source) == "relu_final"


def test_another_entry_point_can_be_asked_for() -> None:
    assert extracted(fenced(REFERENCE), entry="Model").source == REFERENCE


def test_an_ordinary_reply_gives_no_warning() -> None:
    assert extracted(ACCEPTED["thought closed, answer behind"]).warnings == ()


WARNINGS = {
    "code only before the closing tag": "no usable code follows",
    "thought that never closes": "no usable code follows",
    "no closing fence": "Nothing closes",
    "a final, then a broken extra": "syntax error on its line 24",
    "a broken answer behind a whole thought": "syntax error on its line 24",
}


@pytest.mark.parametrize("shape", WARNINGS)
def test_a_doubtful_choice_comes_with_a_warning(shape: str) -> None:
    assert WARNINGS[shape] in " ".join(extracted(ACCEPTED[shape]).warnings)


def test_a_source_without_torch_comes_with_a_warning() -> None:
    (warning,) = extracted(fenced("class ModelNew:\n    pass")).warnings
    assert "torch" in warning


def test_how_tells_which_block_of_how_many_it_was() -> None:
    how = extracted(ACCEPTED["draft and final in one zone after the thought"]).how
    assert "2 of 2" in how and "after the reasoning" in how


SHAPES: dict[str, str] = {
    "a block in a nested list item": f"1. First\n   - The kernel:\n\n{indented(fenced(FINAL), '     ')}\n2. The end.\n",
    "a fence behind two list markers": f"1. - {indented(fenced(FINAL), '     ').lstrip()}",
    "a list item right above the fence": f"1. The kernel:\n{indented(fenced(FINAL), '   ')}2. The end.\n",
    "a list item whose code is not indented": f"- ```python\n{FINAL}```\n",
    "an indented fence whose code is not": f"1. The kernel:\n\n   ```python\n{FINAL}   ```\n",
    "a fence far in under a line of prose": f"The kernel:\n{indented(fenced(FINAL), '      ')}",
    "a fence in a table's cell before the block": f"| a | b |\n|---|---|\n| ``` | x |\n\n{fenced(FINAL)}",
    "a thought that leaves a listed block open": f"- ```python\n  {DRAFT}\n</think>\n{fenced(FINAL)}",
}
IN_DOCSTRINGS = {
    "two examples": "A:\n```python\nfirst()\n```\nB:\n```python\nsecond()\n```\n",
    "a bare example": "Use:\n```\nfirst()\n```\n",
    "one bare fence": "Use:\n```\nfirst()\n",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_program_comes_out_of_these_marks_as_it_was_written(shape: str) -> None:
    assert extracted(SHAPES[shape]).source == FINAL


@pytest.mark.parametrize("case", IN_DOCSTRINGS)
def test_fences_in_a_docstring_stay_in_it(case: str) -> None:
    program = with_docstring(IN_DOCSTRINGS[case])
    assert extracted(f"Here:\n\n{fenced(program)}\nDone.\n").source == program


def test_only_the_end_of_a_reply_beyond_all_measure_is_read() -> None:
    assert refused(fenced(FINAL) + "x" * 2_000_000).kind == "no_code"


LANGUAGES = {
    "C++ handed to load_inline": ("cpp", FINAL),
    "CUDA handed to load_inline": ("cuda", FINAL.replace("cpp_sources=SOURCE", "cpp_sources='', cuda_sources=SOURCE")),
    "CUDA as the third argument": (
        "cuda",
        FINAL.replace('load_inline(name="relu_final", cpp_sources=SOURCE', "load_inline('relu', '', SOURCE"),
    ),
    "CUDA handed over as C++": (
        "cuda",
        FINAL.replace("torch::Tensor relu", "__global__ void f() {}\ntorch::Tensor relu"),
    ),
    "no CUDA sources": ("cpp", FINAL.replace("functions=", "cuda_sources=[], functions=")),
    "a module name before the loader": (
        "cpp",
        FINAL.replace(
            "from torch.utils.cpp_extension import load_inline", "from torch.utils import cpp_extension"
        ).replace("load_inline(", "cpp_extension.load_inline("),
    ),
    "a C++ file": (
        "cpp",
        FINAL.replace("import load_inline", "import load").replace("load_inline(", 'load(sources=["a.cpp"], '),
    ),
    "a CUDA file": (
        "cuda",
        FINAL.replace("import load_inline", "import load").replace("load_inline(", 'load(sources=["a.cu"], '),
    ),
    "CUDA with headers of CuTe": (
        "cutlass",
        FINAL.replace("torch::Tensor relu", "#include <cute/tensor.hpp>\n__global__ void f() {}\ntorch::Tensor relu"),
    ),
    "CUDA that only speaks of CUTLASS": (
        "cuda",
        FINAL.replace("torch::Tensor relu", "// as cutlass/gemm\n__global__ void f() {}\ntorch::Tensor relu"),
    ),
    "Triton": ("triton", "import torch\nimport triton\n@triton.jit\ndef k(x):\n    pass\nclass ModelNew: pass"),
    "Triton, imported by name": (
        "triton",
        "import torch\nfrom triton import jit\n@jit\ndef k(x):\n    pass\nclass ModelNew: pass",
    ),
    "TileLang": (
        "tilelang",
        "import torch\nimport tilelang.language as T\n@T.prim_func\ndef k(x):\n    pass\nclass ModelNew: pass",
    ),
    "TileLang, compiled by a call": (
        "tilelang",
        "import torch\nfrom tilelang import compile\nk = compile(f)\nclass ModelNew: pass",
    ),
    "Helion": ("helion", "import torch\nimport helion\n@helion.kernel()\ndef k(x):\n    pass\nclass ModelNew: pass"),
    "CuTe's Python language": (
        "cute",
        "import torch\nimport cutlass.cute as cute\n@cute.kernel\ndef k(x):\n    pass\nclass ModelNew: pass",
    ),
    "plain PyTorch": ("python", REFERENCE.replace("Model", "ModelNew")),
    "a torch.load is no loader": (
        "python",
        REFERENCE.replace("Model", "ModelNew") + "\nweights = torch.load('w.pt')\n",
    ),
}


@pytest.mark.parametrize("case", LANGUAGES)
def test_the_language_is_told_from_the_source(case: str) -> None:
    language, source = LANGUAGES[case]
    assert extracted(fenced(source)).language == language


FOLDER = Path(os.environ.get("KERNELWRIGHT_SEEDS") or Path(__file__).parents[4] / "shared" / "seeds")
SEEDS = ["000", "001", "002", "003", "004"]
AFTER_THE_THOUGHT = ["000", "001", "003", "004"]
LINES = {"000": 193, "001": 169, "002": 164, "003": 188, "004": 201}


def transcript(seed: str) -> str:
    paths = sorted(FOLDER.glob(f"{seed}*.txt")) if FOLDER.is_dir() else []
    if not paths:
        pytest.skip(f"no transcript {seed} in {FOLDER}; set KERNELWRIGHT_SEEDS to the folder that holds it")
    return paths[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_final_block_is_taken_complete(seed: str) -> None:
    reply = transcript(seed)
    found = extracted(reply)
    tree = ast.parse(found.source)
    assert "ModelNew" in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assert found.source.startswith("import torch\n") and found.source.count("\n") == LINES[seed]
    assert found.language == "cuda"
    is_behind = reply.rindex(found.source) > reply.rindex("</think>")
    assert is_behind == (seed in AFTER_THE_THOUGHT)
    assert is_behind == (found.warnings == ())


def test_the_later_of_two_blocks_is_taken() -> None:
    reply = transcript("004")
    assert reply[: reply.rindex(extracted(reply).source)].count("```python\n") == 2
