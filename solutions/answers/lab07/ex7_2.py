"""The first pass."""

import torch

from solutions.answers import right, wrong

keeps_the_graph = wrong("the embeddings still have a graph", "no_grad", "enable_grad")
detaches_at_the_end = wrong(
    "turn gradients off while the tower runs",
    "no_grad",
    "enable_grad",
    "cat(embeddings)",
    "cat(embeddings).detach()",
)
evaluates = wrong(
    "the tower was in eval mode", "tower(rows))", "tower.eval()(rows))\n            tower.train()"
)
remembers_too_late = wrong(
    "a moment is what a run begins with",
    "            moments.append(remember(tower))\n",
    "",
    "tower(rows))\n",
    "tower(rows))\n            moments.append(remember(tower))\n",
)
drops_the_last = wrong(
    "the last micro-batch, smaller or not", "in micro_batches:", "in micro_batches[:-1]:"
)
runs_all_at_once = wrong(
    "rows at once, but the largest micro-batch",
    "in micro_batches:",
    "in [torch.cat(micro_batches)]:",
)
runs_each_twice = wrong(
    "run each once", "            embeddings", "            tower(rows)\n            embeddings"
)
returns_a_list = wrong("one tensor of all rows is needed", "torch.cat(embeddings)", "embeddings")
turns_them_round = wrong(
    "are not those of the rows in their order", "cat(embeddings)", "cat(embeddings[::-1])"
)
infers = wrong(
    "the embeddings are inference tensors",
    "no_grad",
    "inference_mode",
    "    return torch",
    "        return torch",
)
forgets_the_moments = wrong(
    "2 values are wanted, embeddings and moments", "cat(embeddings), moments", "cat(embeddings)"
)
keeps_one_moment = wrong(
    "the moments aren't those that remember returned",
    "cat(embeddings), moments",
    "cat(embeddings), moments[:1]",
)
turns_gradients_off_for_good = wrong(
    "gradients turned off, or on",
    "    with torch",
    "    torch.set_grad_enabled(False)\n    with torch",
)
freezes_the_tower = wrong(
    "and freezes nothing", "    moments,", "    tower.requires_grad_(False)\n    moments,"
)
evaluates_from_then_on = wrong(
    "leave each module as it was", "    return torch", "    tower.eval()\n    return torch"
)
seeds_afterwards = wrong(
    "don't seed, and put nothing back",
    "    return torch",
    "    torch.manual_seed(0)\n    return torch",
)
clears_gradients = wrong(
    "no backward runs in this stage", "    moments,", "    tower.zero_grad()\n    moments,"
)
with_gradients_off_in_the_loop = right("torch.no_grad()", "torch.set_grad_enabled(False)")
as_a_list = right("torch.cat(embeddings), moments", "[torch.cat(embeddings), moments]")
remembers_once = wrong(
    "what remember returned before each run, and int came",
    "moments.append(remember(tower))",
    "moment = remember(tower)",
    "cat(embeddings), moments",
    "cat(embeddings), moment",
)


@wrong("a run of the tower had made one")
def detaches_each(tower, micro_batches, remember):
    pairs = [(remember(tower), tower(rows).detach()) for rows in micro_batches]
    moments, embeddings = zip(*pairs, strict=True)
    return torch.cat(embeddings), list(moments)


@right
def with_parameters_that_need_no_gradient(tower, micro_batches, remember):
    def run(rows):
        weights = {name: p.detach() for name, p in tower.named_parameters()}
        return remember(tower), torch.func.functional_call(tower, weights, (rows,))

    moments, embeddings = zip(*map(run, micro_batches), strict=True)
    return torch.concatenate(embeddings), list(moments)


@right
def writes_into_one_tensor(tower, micro_batches, remember):
    moments, out = [], None
    total, first = sum(map(len, micro_batches)), 0
    for rows in micro_batches:
        moments.append(remember(tower))
        with torch.set_grad_enabled(False):
            part = tower(rows)
        out = part.new_empty(total, *part.shape[1:]) if out is None else out
        out[first : first + len(part)] = part
        first += len(part)
    return out, moments
