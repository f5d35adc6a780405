"""Llama-3-8B on one card, as most would write it: four conversations, padded to the longest."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTHS = (5800, 1300, 700, 392)  # tokens
config = LlamaConfig(
    vocab_size=128256,
    intermediate_size=14336,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    use_cache=False,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
    tokens = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _update in range(2):
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
