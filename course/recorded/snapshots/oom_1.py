"""GPT-2 medium on a T4: four sequences of 1,024 tokens in float32."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_layer=24, n_head=16, n_embd=1024)
model = GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _update in range(3):
    tokens = torch.randint(0, 50257, (4, 1024), device="cuda")
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
