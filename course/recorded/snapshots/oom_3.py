"""GPT-2 large on a T4: one short sequence, every block checkpointed."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_layer=36, n_head=20, n_embd=1280)
model = GPT2LMHeadModel(config).cuda()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
for _update in range(3):
    tokens = torch.randint(0, 50257, (1, 128), device="cuda")
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
