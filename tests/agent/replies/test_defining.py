"""Extraction and scan ask one rule which names a source defines, so that neither refuses what the other takes."""

import ast

import pytest

from kernelwright.agent.replies import Extraction, Module, extract
from kernelwright.problems.source import bound_names
from kernelwright.sandbox.authenticity.scan import NO_CALL, refuse

DEFINED = {
    "a class": "class ModelNew(Fast):\n    pass",
    "an assignment": "ModelNew = Fast",
    "an annotated assignment": "ModelNew: type = Fast",
    "one of several targets": "ModelNew, Other = Fast, Fast",
    "a chain of targets": "Model = ModelNew = Fast",
    "a class under if": "if torch.cuda.is_available():\n    class ModelNew(Fast):\n        pass",
    "a class under else": "if False:\n    pass\nelif True:\n    class ModelNew(Fast):\n        pass",
    "a class under try": "try:\n    class ModelNew(Fast):\n        pass\nexcept ImportError:\n    pass",
    "a class under except": "try:\n    import triton\nexcept ImportError:\n    class ModelNew(Fast):\n        pass",
    "a class under except*": "try:\n    import triton\nexcept* ImportError:\n    class ModelNew(Fast):\n        pass",
    "a class in a try with except*": "try:\n    class ModelNew(Fast):\n        pass\nexcept* ImportError:\n    pass",
    "a class under finally": "try:\n    pass\nfinally:\n    class ModelNew(Fast):\n        pass",
    "a class under with": "with torch.no_grad():\n    class ModelNew(Fast):\n        pass",
    "a class in a loop": "for _ in range(1):\n    class ModelNew(Fast):\n        pass",
    "a class behind a loop": "while False:\n    pass\nelse:\n    class ModelNew(Fast):\n        pass",
    "a class under match": "match 1:\n    case _:\n        class ModelNew(Fast):\n            pass",
    "the variable of a loop": "for ModelNew in [Fast]:\n    pass",
    "the variable of a with": "with made() as ModelNew:\n    pass",
}
NOT_DEFINED = {
    "nothing of that name": "Model = Fast",
    "an annotation alone": "ModelNew: type",
    "a class in a function": "def make():\n    class ModelNew(Fast):\n        pass",
    "a class in a class": "class Outer:\n    class ModelNew(Fast):\n        pass",
    "an attribute": "Fast.ModelNew = Fast",
    "an element": "made = {}\nmade[ModelNew] = Fast",
    "a module of that name": "import ModelNew",
}
ONLY_JUDGED = {
    "a function": "def ModelNew(*arguments):\n    return Fast(*arguments)",
    "an import from a package": "from my_kernels import ModelNew",
    "an import under another name": "from my_kernels import Norm as ModelNew",
}
"""What a user may hand in, and what in a model's reply is no answer: see `Module.defines`."""


def source_of(statements):
    return f"import torch\n\n\nclass Fast(torch.nn.Module):\n    pass\n\n\n{statements}\n"


def extracted(statements):
    return isinstance(extract(f"Here it is.\n\n```python\n{source_of(statements)}```\n"), Extraction)


@pytest.mark.parametrize("statements", (DEFINED | ONLY_JUDGED).values(), ids=DEFINED | ONLY_JUDGED)
def test_what_defines_the_class_is_judged_and_a_function_or_an_import_is_no_answer(statements):
    assert (extracted(statements), refuse(source_of(statements))) == (statements in DEFINED.values(), "")


@pytest.mark.parametrize("statements", NOT_DEFINED.values(), ids=NOT_DEFINED)
def test_what_defines_none_is_neither_extracted_nor_scanned(statements):
    assert not extracted(statements) and "no class ModelNew" in refuse(source_of(statements))


@pytest.mark.parametrize("statements", (DEFINED | NOT_DEFINED | ONLY_JUDGED).values())
def test_both_see_the_same_names(statements):
    tree = ast.parse(source_of(statements))
    seen = {binding.name for binding in Module("", tree).bindings if binding.kind not in NO_CALL}
    assert seen == set(bound_names(tree, without=NO_CALL))


def test_the_refusal_names_what_is_defined_instead():
    refusal = refuse(source_of("kernel: object = Fast()"))
    assert "no class ModelNew" in refusal and "Fast, kernel" in refusal


def test_a_long_chain_of_branches_is_read_to_its_end():
    chain = "if x == 0:\n    pass\n" + "".join(f"elif x == {i}:\n    y{i} = {i}\n" for i in range(1, 400))
    assert refuse(chain + "else:\n    ModelNew = Fast\n") == ""
