"""The experiment that every trainer is put through, and the names of what it may do.

Ten micro-batches of one to nine tokens, four to an update, twice over. The loss is linear in three
weights and the rate is 0, so each micro-batch has one gradient, the same whenever it runs. What a
trainer hands to its optimizer is then compared with what each habit would hand over. A cell of
the table is the habit's name that fits within 0.1 %, never a sentence of ours about the library.
"""

import json
import re
from pathlib import Path

import torch
from torch import nn

LENGTHS = (2, 9, 4, 1, 7, 3, 5, 8, 6, 2)  # tokens of each micro-batch
STEPS, CLIP = 4, 0.5


def make_micro_batches():
    """Return ten tensors `(tokens, 3)`, each around a mean of its own."""
    draw = torch.Generator().manual_seed(3)
    return [
        torch.rand(3, generator=draw) * 4 - 1 + torch.rand(length, 3, generator=draw)
        for length in LENGTHS
    ]


ROWS = make_micro_batches()
GRADIENTS = [row.mean(dim=0) for row in ROWS]  # of each micro-batch's mean loss


class Linear(nn.Module):
    """A loss that is linear in its weights: the mean of a micro-batch's tokens."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 0.5, 0.25]))

    def forward(self, x):
        return (x @ self.weight).mean()


class Watched(torch.optim.SGD):
    """SGD at rate 0 that keeps a copy of each gradient it is handed."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.0)
        self.gradients = []

    def step(self, closure=None):
        """Keep the gradients of one update."""
        loss = None if closure is None else closure()
        weights = [weight for group in self.param_groups for weight in group["params"]]
        self.gradients.append(flat([weight.grad for weight in weights]))
        return super().step() if loss is None else loss


def flat(tensors):
    """Return a copy of all numbers of several tensors as one vector."""
    return torch.cat([tensor.detach().flatten().clone() for tensor in tensors])


def named(seen, habits):
    """Return the name of the habit that gives `seen` within 0.1 %, or how far each is off."""
    seen = torch.as_tensor(seen, dtype=torch.float32)
    off = {}
    for name, value in habits.items():
        value = torch.as_tensor(value, dtype=torch.float32)
        off[name] = float((seen - value).norm() / value.norm())
    fits = [name for name, share in off.items() if share < 1e-3]
    return " or ".join(fits) or f"none of these ({off})"


def divided(window, gradients=None, lengths=None):
    """Return what the ways to divide make of the micro-batches `window`, by name."""
    gradients, lengths = gradients or GRADIENTS, lengths or LENGTHS
    parts = [gradients[index] for index in window]
    tokens = [lengths[index] for index in window]
    total = sum(parts)
    weighed = sum(count * part for count, part in zip(tokens, parts, strict=True))
    ways = {"micro-batches": total / len(window)}
    if len(set(lengths)) > 1:
        ways["tokens"] = weighed / sum(tokens)
    if len(window) != STEPS:
        ways |= {f"{STEPS} steps": total / STEPS}
    return ways | {"nothing": total}


def divisor(seen, **known):
    """Name what divides a full window's sum of gradients."""
    return named(seen, divided(range(STEPS), **known))


def short_window(seen, **known):
    """Name what becomes of the last two of ten micro-batches; `seen` has both epochs' updates."""
    rest = divided((8, 9), **known)
    habits = {f"updates, divided by {name}": value for name, value in rest.items()}
    carried = divided((8, 9, 0, 1), **known)
    habits |= {f"waits for the next epoch, by {name}": value for name, value in carried.items()}
    again = divided(range(STEPS), **known)
    habits |= {f"dropped, by {name}": value for name, value in again.items()}
    kept = named(seen[2], habits)
    return kept.partition(", by ")[0] if not kept.startswith("none") else kept


def clipped(seen):
    """Name what clipping saw, from the first update under a norm of CLIP."""
    means, sums = GRADIENTS[:STEPS], 0.0
    each = sum(cut(part) for part in means)
    for part in means:
        sums = cut(sums + part / STEPS)
    ways = {"each micro-batch": each, "each sum so far": sums}
    ways |= {f"the window's sum, by {way}": total for way, total in divided(range(STEPS)).items()}
    kept = named(seen / seen.norm(), {name: way / way.norm() for name, way in ways.items()})
    return kept.partition(", by")[0]


def cut(gradient):
    """Return the gradient, no longer than CLIP."""
    return gradient * min(1.0, CLIP / float(gradient.norm()))


def losses():
    """Return the loss of each micro-batch."""
    weight = Linear().weight.detach()
    return [float(gradient @ weight) for gradient in GRADIENTS]


def logged(seen, each=None, lengths=None):
    """Name what the first logged loss is, among means, sums and shares of four losses."""
    each, lengths = (each or losses())[:STEPS], (lengths or LENGTHS)[:STEPS]
    tokens = sum(length * loss for length, loss in zip(lengths, each, strict=True)) / sum(lengths)
    weighed = {"mean of the window's tokens": tokens} if len(set(lengths)) > 1 else {}
    return named(
        seen,
        weighed
        | {
            "mean of the window's micro-batches": sum(each) / STEPS,
            "sum of the window's micro-batches": sum(each),
            "first micro-batch": each[0],
            "first micro-batch, divided": each[0] / STEPS,
            "last micro-batch": each[-1],
            "last micro-batch, divided": each[-1] / STEPS,
        },
    )


def counted(times, updates):
    """Say how often something counted in an epoch of ten micro-batches."""
    if times == updates:
        return f"each update ({times})"
    return f"each micro-batch ({times})" if times == len(LENGTHS) else f"{times} times"


def replayed(plain, checkpointed, forwards):
    """Say whether a recomputation drew the same dropout masks; `forwards` is runs of its block."""
    if forwards < 2:
        return f"not recomputed ({forwards} forwards)"
    off = float((plain - checkpointed).norm() / plain.norm())
    return "yes" if off < 1e-5 else f"no: gradient {100 * off:.0f} % off"


def cells(seen, once, schedule, clip=None):
    """Return the cells that say what becomes of a window, for `report`.

    Args:
        seen: Gradients of the updates of two epochs; `once` those of one, after which something
            that was to count updates is at `schedule`.
        clip: The same under a norm of CLIP; None where a library clips nothing itself.
    """
    return {
        "divides_by": divisor(seen[0]),
        "short_window": short_window(seen),
        "clips": clipped(clip[0]) if clip else "",
        "schedule": counted(schedule, len(once)),
    }


def averages(package, files="**/*.py"):
    """Name the classes of a package that average weights, by their names, or say that none does."""
    words = re.compile(r"^class (\w*(?:EMA|Ema|WeightAverag|MovingAverage)\w*)", re.MULTILINE)
    folder = Path(package.__file__).parent
    names = {name for file in folder.glob(files) for name in words.findall(file.read_text())}
    return ", ".join(sorted(names)) or "none in its source"


def report(**cells):
    """Print the row's cells, as the last line of a program's output."""
    print("ROW " + json.dumps(cells))
