"""A causal language model of a few thousand weights with a tokenizer of a few words: made here, nothing is fetched."""


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
