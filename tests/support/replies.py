"""A problem with answers to it, for tests of rewards; and a language model of a few thousand weights, made here."""

from pathlib import Path

import kernelwright.prompts
from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.support.servers import fake_reply

EXAMPLES = Path(kernelwright.prompts.__file__).parent / "examples"
SETTINGS = JudgeSettings(threads=1, warm_up=1, worker_pairs=1, min_pairs=4, max_pairs=4, time_budget_s=0.1)
REFERENCE = (EXAMPLES / "reference.py").read_text().replace("rand(512, 1000)", "rand(64, 1000)")
OWN = (EXAMPLES / "cpp.py").read_text()
LIBRARY = REFERENCE.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
WRONG = LIBRARY.replace("x.sum(", "2 * x.sum(")
HIDDEN_BUILD = LIBRARY.replace(
    "class ModelNew(",
    """try:
    from torch.utils.cpp_extension import load_inline
    load_inline(name="broken", cpp_sources=["int broken("], no_implicit_headers=True, is_python_module=False)
except Exception:
    pass

class ModelNew(""",
)


def posed(name: str) -> Problem:
    """The only problem, under own kernels only; `any` allows every operator."""
    operators = "any" if name == "any" else "custom-only"
    return Problem(name=name, title="Scaled", family="map", size="cpu", source=REFERENCE, operators=operators)


def reply(source: str) -> str:
    """As a model with reasoning answers."""
    return f"<think>Perhaps\n```python\nclass ModelNew: pass\n```\nor not.</think>\nHere it is.\n{fake_reply(source)}"


def tiny():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(("<pad>", "<eos>", "<unk>", "one", "two", "three"))}
    plain = Tokenizer(WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words), num_key_value_heads=2, max_position_embeddings=64, **shape)
    return LlamaForCausalLM(config), tokenizer
