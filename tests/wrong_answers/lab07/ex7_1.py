"""The contrastive loss."""

import torch
from torch.nn import functional as F

from wrong_answers import right, wrong


def with_slips(
    *, prepare=None, scale=torch.exp, reduce=None, minimum=2, equal=True, error=ValueError
):
    """The solution from its parts: each maps what the solution does to what a slip does."""
    prepare = prepare or (lambda x: F.normalize(x, dim=1))
    reduce = reduce or mean_of_both

    def contrastive_loss(images, texts, log_scale):
        if len(images) < minimum or (equal and len(images) != len(texts)):
            raise error(f"{len(images)} images and {len(texts)} texts came.")
        logits = scale(log_scale) * prepare(images) @ prepare(texts).T
        return reduce(logits)

    return contrastive_loss


def one_way(logits):
    return F.cross_entropy(logits, torch.arange(len(logits)))


def mean_of_both(logits):
    return (one_way(logits) + one_way(logits.T)) / 2


def by_exponentials(logits):
    ratios = logits.exp() / logits.exp().sum(1, keepdim=True)
    back = logits.exp() / logits.exp().sum(0)
    return -(ratios.diagonal().log() + back.diagonal().log()).mean() / 2


def without_the_pair_itself(logits):
    own = torch.eye(len(logits), dtype=torch.bool)
    others = logits.masked_fill(own, -torch.inf)
    return (
        (torch.logsumexp(others, 1) + torch.logsumexp(others, 0)) / 2 - logits.diagonal()
    ).mean()


def summed(logits):
    return mean_of_both(logits) * len(logits)


only_images_look = wrong("in which an image looks for its text")(with_slips(reduce=one_way))
only_texts_look = wrong("in which a text looks for its image")(
    with_slips(reduce=lambda logits: one_way(logits.T))
)
adds_the_two = wrong("the mean of the two directions, not their sum")(
    with_slips(reduce=lambda logits: 2 * mean_of_both(logits))
)
sums_over_pairs = wrong("a batch twice as large would count twice")(with_slips(reduce=summed))
compares_raw_one_way = wrong("or two of them at once")(
    with_slips(prepare=lambda x: x, reduce=one_way)
)
compares_raw = wrong("give each row length 1 first")(with_slips(prepare=lambda x: x))
takes_the_logarithm_as_scale = wrong("take its exponential")(with_slips(scale=lambda s: s))
divides_by_the_scale = wrong("it is one over a temperature")(
    with_slips(scale=lambda s: torch.exp(-s))
)
leaves_the_pair_out = wrong("it is one of the candidates")(
    with_slips(reduce=without_the_pair_itself)
)
overflows = wrong("is no float32 any more")(with_slips(reduce=by_exponentials))
lets_one_pair_pass = wrong("whatever the embeddings are, and it went")(with_slips(minimum=0))
does_not_look_at_the_rows = wrong("this came: 'IndexError")(with_slips(equal=False))
asserts = wrong("this came: 'AssertionError")(with_slips(error=AssertionError))


@wrong("the scale's gradient is missing")
def takes_the_scale_out_of_the_graph(images, texts, log_scale):
    return with_slips()(images, texts, log_scale.detach())


@wrong("the texts' gradient is missing")
def holds_the_texts_fixed(images, texts, log_scale):
    return with_slips()(images, texts.detach(), log_scale)


@right
def written_out(images, texts, log_scale):
    if len(images) != len(texts) or len(images) < 2:
        raise ValueError(f"{len(images)} and {len(texts)} rows")
    a = images / images.norm(dim=1, keepdim=True)
    b = texts / texts.norm(dim=1, keepdim=True)
    logits = torch.einsum("id,jd->ij", a, b) * log_scale.exp()
    down, across = logits.log_softmax(0).diagonal(), logits.log_softmax(1).diagonal()
    return -(down + across).sum() / (2 * len(images))


@right
def by_cosine_similarity(images, texts, log_scale):
    if len({len(images), len(texts), 1}) != 2 or len(images) == 1:
        raise ValueError(f"got {len(images)} images for {len(texts)} texts")
    logits = F.cosine_similarity(images[:, None], texts[None], dim=-1) * torch.exp(log_scale)
    own = torch.eye(len(images), dtype=logits.dtype)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


@right
def clips_the_scale_as_clip_does(images, texts, log_scale):
    def at_most_100(logarithm):
        return logarithm.exp().clamp(max=100)

    return with_slips(scale=at_most_100)(images, texts, log_scale)
