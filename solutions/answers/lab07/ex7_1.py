"""The contrastive loss."""

import torch
from torch.nn import functional as F

from solutions.answers import right, wrong

only_images_look = wrong(
    "from images to texts",
    "(F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2",
    "F.cross_entropy(logits, labels)",
)
only_texts_look = wrong(
    "from texts to images",
    "(F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2",
    "F.cross_entropy(logits.T, labels)",
)
adds_the_two = wrong("the mean of the two directions, not their sum", "labels)) / 2", "labels))")
sums_over_pairs = wrong(
    "a batch twice as large would count twice", "labels)) / 2", "labels)) / 2 * len(images)"
)
compares_raw_one_way = wrong(
    "or two of them at once",
    "    images, texts = F.normalize(images, dim=1), F.normalize(texts, dim=1)\n",
    "",
    "(F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2",
    "F.cross_entropy(logits, labels)",
)
compares_raw = wrong(
    "give each row length 1 first",
    "    images, texts = F.normalize(images, dim=1), F.normalize(texts, dim=1)\n",
    "",
)
takes_the_logarithm_as_scale = wrong("take its exponential", "log_scale.exp()", "log_scale")
divides_by_the_scale = wrong(
    "the scale is one over a temperature", "log_scale.exp()", "(-log_scale).exp()"
)
leaves_the_pair_out = wrong(
    "it is one of the candidates",
    "    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2",
    "    own = torch.eye(len(images), dtype=torch.bool)\n"
    "    others = logits.masked_fill(own, -torch.inf)\n"
    "    both = torch.logsumexp(others, 1) + torch.logsumexp(others, 0)\n"
    "    return (both / 2 - logits.diagonal()).mean()",
)
normalises_columns = wrong(
    "you gave each column length 1",
    "F.normalize(images, dim=1), F.normalize(texts, dim=1)",
    "F.normalize(images, dim=0), F.normalize(texts, dim=0)",
)
overflows = wrong(
    "overflows float32",
    "    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2",
    "    ratios = logits.exp() / logits.exp().sum(1, keepdim=True)\n"
    "    back = logits.exp() / logits.exp().sum(0)\n"
    "    return -(ratios.diagonal().log() + back.diagonal().log()).mean() / 2",
)
leaves_labels_on_the_cpu = wrong("on another device, as a GPU is", ", device=images.device", "")
lets_one_pair_pass = wrong("so its loss is always 0, but it went", " or len(images) < 2", "")
does_not_look_at_the_rows = wrong("this came: 'IndexError", "len(images) != len(texts) or ", "")
asserts = wrong("this came: 'AssertionError", "raise ValueError", "raise AssertionError")
takes_the_scale_out_of_the_graph = wrong(
    "the scale's gradient is missing", "log_scale.exp()", "log_scale.detach().exp()"
)
holds_the_texts_fixed = wrong(
    "the texts' gradient is missing", "normalize(texts,", "normalize(texts.detach(),"
)
clips_the_scale_as_clip_does = right("log_scale.exp()", "log_scale.exp().clamp(max=100)")


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
    own = torch.eye(len(images), dtype=logits.dtype, device=logits.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
