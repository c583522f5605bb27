"""The parts of the programs that a prompt shows, and the size of all of it."""

import re
import tomllib
from pathlib import Path

import pytest

from kernelwright.problems import catalog_names, load_problem
from kernelwright.problems.languages import TARGETS
from kernelwright.prompts import Prompt, device_sheet, render
from kernelwright.prompts.ideas import snippet_texts
from tests.support.briefs import BASELINES, CPU, GPU, OLD_VERSIONS, PROBLEM, PRODUCT, brief


def instructions(prompt: Prompt) -> str:
    return next((section.text for section in prompt.sections if section.name == "instructions"), "")


def shown(problem=PROBLEM, role="propose", **changes):
    """The names of the parts in the prompt for CUDA."""
    text = instructions(render(brief(role, "cuda", problem=problem, **changes)))
    return {name for name, part in snippet_texts().items() if part in text}


def narrow(problem, dtype="bfloat16"):
    return problem.model_copy(update={"dtype": dtype})


COPIES = {"shared_address", "mbarrier", "bulk_load", "bulk_store"}
PRODUCTS = {"shared_address", "wgmma_layouts", "wgmma", "wgmma_order"}


@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        (PROBLEM, COPIES),
        (narrow(PROBLEM), COPIES),
        (PRODUCT, PRODUCTS | {"split", "cp_async", "wgmma_registers"}),
        (narrow(PRODUCT), PRODUCTS | COPIES),
        (narrow(PRODUCT, "float16"), PRODUCTS | COPIES),
        (PRODUCT.model_copy(update={"precision": "tf32"}), PRODUCTS | {"mbarrier", "bulk_load", "multicast"}),
    ],
    ids=["memory", "memory, bf16", "arithmetic", "arithmetic, bf16", "arithmetic, fp16", "arithmetic, tf32"],
)
def test_parts_are_those_that_bound_dtype_and_precision_call_for(problem, parts):
    assert shown(problem) == parts


@pytest.mark.parametrize("problem", [PRODUCT, narrow(PRODUCT)])
def test_large_products_have_clusters(problem):
    text = render(brief(target="cuda", problem=problem)).text
    assert "__cluster_dims__" in text and "multicast" in text
    assert "__cluster_dims__" not in render(brief(target="cuda", problem=problem, device=device_sheet("A100"))).text


def test_rows_that_are_reduced_are_told_of_clusters():
    assert shown(load_problem("layer_norm", "gpu")) == COPIES | {"cluster"}


@pytest.mark.parametrize(
    ("device", "parts"),
    [
        ("A100", {"shared_address", "split", "cp_async", "named_barriers", "mma", "ldmatrix"}),
        ("B200", COPIES | {"split", "cp_async", "named_barriers", "mma"}),
        ("V100", set()),
    ],
)
def test_a_device_is_told_of_what_it_has(device, parts):
    assert shown(PRODUCT, device=device_sheet(device)) == parts


def test_a_compiler_before_cuda_12_is_told_of_nothing_that_it_lacks():
    assert shown(PRODUCT, versions=OLD_VERSIONS) == shown(PRODUCT, device=device_sheet("A100"))


@pytest.mark.parametrize(("target", "device"), [("cpp", CPU), ("triton", GPU)])
def test_other_languages_are_told_of_no_instruction(target, device):
    assert instructions(render(brief(target=target, device=device, problem=PRODUCT))) == ""


def test_a_repair_is_told_of_the_instructions_that_its_source_has():
    failed = brief("repair").parent
    plain = failed.model_copy(update={"source": "SOURCE = '__global__ void f() {}'"})
    ringed = failed.model_copy(update={"source": "mbarrier.init cp.async.bulk.shared __cvta_generic_to_shared"})
    assert shown(PROBLEM, "repair", parent=plain) == set()
    assert shown(PROBLEM, "repair", parent=ringed) == {"shared_address", "mbarrier", "bulk_load"}


def test_a_plan_is_told_of_no_instruction():
    assert instructions(render(brief(target="cuda", problem=PRODUCT).model_copy(update={"role": "plan"}))) == ""


def test_parts_give_way_to_a_long_reference_the_last_first():
    long = PRODUCT.source + "# a comment of thirty bytes\n" * 110
    left = shown(PRODUCT.model_copy(update={"source": long}))
    assert {"shared_address", "wgmma_layouts"} <= left and not {"multicast", "bulk_store", "mbarrier"} & left


FIRST, LATER = 20_000, 12_000
SELECTION = tomllib.loads((Path(__file__).parents[2] / "results" / "selection.toml").read_text(encoding="utf-8"))
LONGEST_REFERENCE = 5_000  # bytes of the longest reference of the selection


def stand_in(file):
    """A problem that uses the operators in the name of a file of the benchmark, as long as its longest reference."""
    words = re.findall(r"[A-Za-z0-9]+", file.removesuffix(".py").replace("conv_standard_2D", "Conv2d"))
    layers = "".join(f"        self.layer_{at} = nn.{word}\n" for at, word in enumerate(words) if not word[0].isdigit())
    head = f"import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n{layers}"
    return PROBLEM.model_copy(update={"source": head + "# more\n" * ((LONGEST_REFERENCE - len(head)) // 7)})


PROBLEMS = {name: lambda size, dtype, name=name: load_problem(name, size, dtype) for name in catalog_names()} | {
    name: lambda size, dtype, file=entry["file"]: stand_in(file).model_copy(update={"dtype": dtype})
    for name, entry in SELECTION["problems"].items()
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_first_prompt_has_20_kb_at_most_and_a_later_one_12_kb_next_to_its_source(name):
    log = "\n".join(f"line {number} of a compiler's log" for number in range(300))
    for target, language in TARGETS.items():
        for dtype in (None, "bfloat16"):
            problem = PROBLEMS[name]("cpu" if language.device == "cpu" else "gpu", dtype)
            for role, limit in (("propose", FIRST), ("improve", LATER), ("repair", LATER)):
                plain = brief(role, target, problem=problem, baselines=BASELINES)
                evidence = log if len(problem.source) < LONGEST_REFERENCE // 2 else "short"
                parent = plain.parent and plain.parent.model_copy(update={"evidence": evidence})
                size = len(render(plain.model_copy(update={"parent": parent})).text.encode())
                assert size <= limit + (len(parent.source) if parent else 0), (target, dtype, role)
