"""The programs behind the explained instructions: they compile, and what needs no device is right."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from kernelwright.problems import catalog_names, load_problem
from kernelwright.problems.languages import TARGETS
from kernelwright.prompts import Prompt, cpu_sheet, device_sheet, known_devices, render
from kernelwright.prompts.ideas import SNIPPETS, snippet_texts, snippets
from kernelwright.prompts.rendering import TEMPLATES
from tests.support.briefs import BASELINES, CPU, GPU, OLD_VERSIONS, PROBLEM, PRODUCT, brief
from tests.support.snippets import NO_COMPILER, PROGRAMS, build, run

compiled = pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or "")


def of_templates():
    text = "".join(path.read_text() for path in TEMPLATES.rglob("*.j2"))
    plain = set(re.findall(r'snippet\("(\w+)"\)', text))
    return plain | ({"bf16_rows", "fp16_rows"} if 'snippet(narrow.short ~ "_rows")' in text else set())


def test_every_marked_part_is_shown_and_every_part_that_is_shown_is_marked():
    assert {part.name for part in snippets()} | of_templates() == set(snippet_texts())


def test_names_of_parts_are_unique():
    begun = [name for path in SNIPPETS.iterdir() for name in re.findall(r"snippet: begin (\w+)", path.read_text())]
    assert sorted(begun) == sorted(snippet_texts())


def test_every_part_stands_in_a_program_that_is_built():
    sources = {path.name: path.read_text() for path in SNIPPETS.iterdir()}
    included = {name for text in sources.values() for name in re.findall(r'#include "(\S+)"', text)}
    assert set(sources) == included | {f"{name}.cu" for name in PROGRAMS}


@compiled
@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compiles_without_spills_and_reckons_right(name, tmp_path):
    program = build(name, tmp_path)
    spills = set(re.findall(r"(\d+) bytes spill", program.said))
    assert spills == {"0"}
    done = run(program.path, "without-device")
    assert (done.returncode, done.stdout) == (0, "")


@compiled
@pytest.mark.long
def test_registers_at_launch_are_those_that_the_snippet_names(tmp_path):
    said = build("setmaxnreg", tmp_path).said
    assert set(re.findall(r"Used (\d+) registers", said)) == {"168", "128"}


@compiled
@pytest.mark.long
def test_a_swizzle_by_the_wrong_bits_is_found_without_a_device(tmp_path):
    sources = shutil.copytree(SNIPPETS, tmp_path / "snippets")
    text = (sources / "wgmma.cuh").read_text()
    assert "at >> 3" in text
    (sources / "wgmma.cuh").write_text(text.replace("at >> 3", "at >> 4"))
    done = run(build("wgmma_shared", tmp_path, sources).path, "without-device")
    assert done.returncode == 1 and "swizzle 128: line" in done.stdout


def in_tables(width, line, piece):
    """Where a line's piece of 16 bytes lies, as the tables of the instruction set show it: by line modulo eight."""
    return line * width + 16 * (piece ^ {128: line % 8, 64: line % 8 // 2, 32: line % 8 // 4, 16: 0}[width])


@pytest.mark.parametrize("width", [128, 64, 32, 16])
def test_the_words_on_swizzles_give_the_places_of_the_tables(width):
    (shift,) = re.findall(r"return at \^ \(at >> (\d) & \(S - 16\)\);", snippet_texts()["wgmma_layouts"])
    for line in range(16):
        for piece in range(width // 16):
            at = line * width + piece * 16
            assert at ^ (at >> int(shift) & (width - 16)) == in_tables(width, line, piece)


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


LAYERS = "; ".join(["x = torch.relu(x)"] * 8)
CHAINS = {
    "recurrence": "self.cell = nn.LSTM(8, 8)",
    "loop": "self.parts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])",
    "layers": LAYERS,
    "one step": "x = torch.relu(x)",
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_of_operators_is_told_how_launches_are_chained(name):
    part = f"class Part:\n    def f(self, x):\n        {CHAINS[name]}\n\n\nclass Model(nn.Module):"
    source = PROBLEM.source.replace("class Model(nn.Module):", part)
    assert ({"chained", "grid_barrier"} <= shown(PROBLEM.model_copy(update={"source": source}))) is (name != "one step")


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


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("h200", "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40 GB"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM 80 GB"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100 SXM2 32 GB"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("Tesla T4", "NVIDIA T4"),
    ],
)
def test_device_is_found_by_the_name_that_the_driver_reports(reported, name):
    assert device_sheet(reported).name == name


def test_unknown_device_has_no_sheet():
    assert device_sheet("NVIDIA H20") is None


@pytest.mark.parametrize("name", known_devices())
def test_every_known_device_finds_itself_and_no_other(name):
    assert device_sheet(name).name == name


def test_balances_of_the_h200_are_its_rates_over_its_bandwidth():
    assert any("about 14 fp32 operations" in fact for fact in device_sheet("H200").facts)
    assert any("tensor cores about 206)" in fact for fact in device_sheet("H200").facts)


def test_processor_is_described_by_its_widest_vectors():
    facts = cpu_sheet("x", 2, ["sse2", "avx", "avx2", "avx512f"], {}).facts
    assert [fact.split(":")[0] for fact in facts] == ["2 cores to use", "AVX-512"]


def test_cache_sizes_are_given_in_binary_units():
    facts = cpu_sheet("x", 4, [], {"L1d": 48 << 10, "L2": 1 << 20, "L3": 40 << 20}).facts
    assert facts[-1].startswith("caches") and facts[-1].endswith("L1d 48 KiB, L2 1 MiB, L3 40 MiB")
