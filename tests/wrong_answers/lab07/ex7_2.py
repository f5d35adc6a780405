"""The first pass."""

import torch

from wrong_answers import right, wrong


def with_slips(run=None, before=True, parts=list, join=torch.cat):
    """The solution, with what runs the tower, when to remember, which parts, and what joins."""
    run = run or quiet

    def embed(tower, micro_batches, remember):
        moments, embeddings = [], []
        for rows in parts(micro_batches):
            if before:
                moments.append(remember(tower))
            embeddings.append(run(tower, rows))
            if not before:
                moments.append(remember(tower))
        return join(embeddings), moments

    return embed


@torch.no_grad()
def quiet(tower, rows):
    return tower(rows)


@torch.no_grad()
def evaluating(tower, rows):
    tower.eval()
    embeddings = tower(rows)
    tower.train()
    return embeddings


def plainly(tower, rows):
    return tower(rows)


@torch.no_grad()
def runs_twice(tower, rows):
    tower(rows)
    return tower(rows)


keeps_the_graph = wrong("the embeddings still have a graph")(with_slips(plainly))
detaches_at_the_end = wrong("turn gradients off while the tower runs")(
    with_slips(plainly, join=lambda embeddings: torch.cat(embeddings).detach())
)
evaluates = wrong("the tower was in eval mode")(with_slips(evaluating))
remembers_too_late = wrong("a moment is what a run begins with")(with_slips(before=False))
drops_the_last = wrong("the last micro-batch, smaller or not")(with_slips(parts=lambda p: p[:-1]))
runs_all_at_once = wrong("rows at once, and the largest micro-batch")(
    with_slips(parts=lambda p: [torch.cat(p)])
)
runs_each_twice = wrong("run each once")(with_slips(runs_twice))
returns_a_list = wrong("one tensor of all rows is wanted")(with_slips(join=list))
turns_them_round = wrong("are not those of the rows in their order")(
    with_slips(join=lambda embeddings: torch.cat(embeddings[::-1]))
)


@wrong("the embeddings are inference tensors")
def infers(tower, micro_batches, remember):
    with torch.inference_mode():
        return with_slips()(tower, micro_batches, remember)


@wrong("2 values are wanted, embeddings and moments")
def forgets_the_moments(tower, micro_batches, remember):
    return with_slips()(tower, micro_batches, remember)[0]


@wrong("the moments come otherwise than remember gave them")
def keeps_one_moment(tower, micro_batches, remember):
    embeddings, moments = with_slips()(tower, micro_batches, remember)
    return embeddings, moments[:1]


@wrong("gradients turned off, or on")
def turns_gradients_off_for_good(tower, micro_batches, remember):
    torch.set_grad_enabled(False)
    return with_slips(plainly)(tower, micro_batches, remember)


@wrong("and freezes nothing")
def freezes_the_tower(tower, micro_batches, remember):
    tower.requires_grad_(False)
    return with_slips(plainly)(tower, micro_batches, remember)


@wrong("leave each as it came")
def evaluates_from_then_on(tower, micro_batches, remember):
    both = with_slips()(tower, micro_batches, remember)
    tower.eval()
    return both


@wrong("seed nothing, and put nothing back")
def seeds_afterwards(tower, micro_batches, remember):
    both = with_slips()(tower, micro_batches, remember)
    torch.manual_seed(0)
    return both


@wrong("nothing goes backward in this stage")
def clears_gradients(tower, micro_batches, remember):
    tower.zero_grad()
    return with_slips()(tower, micro_batches, remember)


in_a_loop = right(with_slips())


@right
def as_a_list(tower, micro_batches, remember):
    return list(with_slips()(tower, micro_batches, remember))


@right
def detaches_each(tower, micro_batches, remember):
    pairs = [(remember(tower), tower(rows).detach()) for rows in micro_batches]
    moments, embeddings = zip(*pairs, strict=True)
    return torch.cat(embeddings), list(moments)


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


@wrong("what remember returned before each run, and int came")
def remembers_once(tower, micro_batches, remember):
    moment = remember(tower)
    with torch.no_grad():
        return torch.cat([tower(rows) for rows in micro_batches]), moment
