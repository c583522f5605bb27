"""Which parts of the programs a prompt shows, and how many tokens all of it may take."""

import pytest

from kernelwright.problems import catalog_names, load_problem
from kernelwright.problems.languages import TARGETS
from kernelwright.prompts import Prompt, device_sheet, render
from kernelwright.prompts.ideas import snippet_texts
from tests.support.briefs import BASELINES, CPU, GPU, OLD_VERSIONS, PASSED, PROBLEM, PRODUCT, brief

MOST = 9_000


def instructions(prompt: Prompt) -> str:
    return next((section.text for section in prompt.sections if section.name == "instructions"), "")


def shown(problem=PROBLEM, role="propose", **changes):
    """The names of the parts in the prompt for CUDA."""
    text = instructions(render(brief(role, "cuda", problem=problem, **changes)))
    return {name for name, part in snippet_texts().items() if part in text}


def narrow(problem, dtype="bfloat16"):
    return problem.model_copy(update={"dtype": dtype})


COPIES = {"shared_address", "mbarrier", "bulk_load", "bulk_store"}
PRODUCTS = {"wgmma", "wgmma_layouts", "wgmma_order", "wgmma_registers", "setmaxnreg", "named_barriers", "multicast"}
PRODUCTS |= {"mma", "ldmatrix", "cp_async"}


@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        (PROBLEM, COPIES),
        (narrow(PROBLEM), COPIES),
        (PRODUCT, COPIES | PRODUCTS | {"split"}),
        (narrow(PRODUCT), COPIES | PRODUCTS),
        (narrow(PRODUCT, "float16"), COPIES | PRODUCTS),
        (PRODUCT.model_copy(update={"precision": "tf32"}), COPIES | PRODUCTS),
    ],
    ids=["memory", "memory, bf16", "arithmetic", "arithmetic, bf16", "arithmetic, fp16", "arithmetic, tf32"],
)
def test_parts_are_those_that_bound_dtype_and_precision_call_for(problem, parts):
    assert shown(problem) == parts


def test_rows_that_are_reduced_are_told_of_clusters():
    assert shown(load_problem("layer_norm", "gpu")) == COPIES | {"cluster"}


@pytest.mark.parametrize(
    ("device", "parts"),
    [
        ("A100", {"shared_address", "split", "cp_async", "named_barriers", "mma", "ldmatrix"}),
        ("B200", COPIES | {"split", "cp_async", "named_barriers", "mma", "ldmatrix"}),
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
    ringed = failed.model_copy(update={"source": "mbarrier.init wgmma.fence __cvta_generic_to_shared"})
    assert shown(PROBLEM, "repair", parent=plain) == set()
    assert shown(PROBLEM, "repair", parent=ringed) >= {"shared_address", "mbarrier", "wgmma_order"}
    assert "bulk_store" not in shown(PROBLEM, "repair", parent=ringed)


def test_a_plan_is_told_of_no_instruction():
    assert instructions(render(brief(target="cuda", problem=PRODUCT).model_copy(update={"role": "plan"}))) == ""


def longer(lines):
    """An attempt that passed, with so many lines of 56 characters more."""
    more = "# a comment as long as this one, and nothing beside it\n" * lines
    return PASSED.model_copy(update={"source": PASSED.source + more})


def test_parts_give_way_to_a_long_source_the_last_first():
    long = PASSED.model_copy(
        update={"source": PASSED.source + "# a comment of sixty characters, and nothing besides it\n" * 250}
    )
    prompt = render(brief("improve", "cuda", problem=PRODUCT, parent=long))
    assert prompt.tokens < MOST
    left = shown(PRODUCT, "improve", parent=long)
    assert {"shared_address", "mbarrier"} <= left and not {"multicast", "bulk_store"} & left


def test_a_source_that_fills_the_prompt_leaves_no_room_for_any():
    long = PASSED.model_copy(
        update={"source": PASSED.source + "# a comment of sixty characters, and nothing besides it\n" * 600}
    )
    assert shown(PRODUCT, "improve", parent=long) == set()


@pytest.mark.parametrize("name", catalog_names())
def test_no_prompt_of_the_catalog_has_nine_thousand_tokens(name):
    for target, language in TARGETS.items():
        size = "cpu" if language.device == "cpu" else "gpu"
        for dtype in (None, "bfloat16"):
            for role in ("propose", "improve"):
                prompt = render(brief(role, target, problem=load_problem(name, size, dtype), baselines=BASELINES))
                assert prompt.tokens < MOST, (target, dtype, role)
