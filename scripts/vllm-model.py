"""Saves a Llama of two layers with random weights, and a tokenizer, into a folder.

It makes no sense of what it is asked, but always the same: tests compare its
greedy answers. The seed and the text that the tokenizer is trained on are fixed.
"""
import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = pathlib.Path(sys.argv[1])

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
special = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
repository = pathlib.Path(__file__).resolve().parent.parent
tokenizer.train_from_iterator([(repository / "LICENSE").read_text()], trainer)

fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
fast.chat_template = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
fast.save_pretrained(folder)

torch.manual_seed(20261130)
config = LlamaConfig(
    vocab_size=len(fast), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=8192,
    eos_token_id=fast.eos_token_id, bos_token_id=None, pad_token_id=fast.pad_token_id,
)
LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
