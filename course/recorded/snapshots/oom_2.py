"""GPT-2 on a T4: trains well, and dies in its first validation."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(0, 50257, (2, 1024), device="cuda")
for _update in range(2):
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

total = 0
for _batch in range(20):
    total += model(tokens, labels=tokens).loss
print(f"validation loss {total / 20:.2f}")
