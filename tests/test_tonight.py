"""The notebook for one's own model: its lines to type."""

import contextlib
import re
from types import SimpleNamespace

import torch
from torch import nn

from tutorial_lib.instruments import planning


def test_the_lines_to_type_train_as_the_whole_batch_does(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (root / "course/source/tonight.py").read_text(encoding="utf-8").replace("\n# ", "\n")
    lines = re.search(r'id="lines".*?```python\n(.*?)```', text, flags=re.S)[1]
    samples = torch.randn(7, 8)  # the last part is shorter

    def trained(update):
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)]
        model = nn.Sequential(*blocks)
        update(model, lambda model, part: model(part).square().mean())
        return list(model.parameters())

    def whole(model, loss_of):
        profile = planning.profile(model, lambda: loss_of(model, samples))
        floor = planning.floor_bytes(profile)
        planning.solve(profile, budget_bytes=floor).save("tonight-plan.json")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        loss_of(model, samples).backward()
        optimizer.step()

    def by_lines(model, loss_of):
        plain = SimpleNamespace(**{**vars(torch), "autocast": lambda *_: contextlib.nullcontext()})
        given = {"model": model, "loss_of": loss_of, "batch": samples, "torch": plain}
        exec(lines.replace("\n#\n", "\n\n"), given | {"micro_batch": 2})

    expected = trained(whole)
    torch.testing.assert_close(trained(by_lines), expected)
