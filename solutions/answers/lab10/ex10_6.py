"""The chunk for a budget."""

import math

from solutions.answers import right, wrong

takes_the_largest = wrong(
    "as many chunks of equal size need fewer bytes",
    "    chunks = -(-tokens // largest)\n    return -(-tokens // chunks)",
    "    return min(largest, tokens)",
)
forgets_the_sums = wrong("the gradients' sums are missing", "(budget - floor)", "budget")
counts_logits_once = wrong(
    "you counted a chunk's logits once", "head.out_features * (size + 4)", "head.out_features * 4"
)
counts_two_of_float32 = wrong(
    "logits as two in float32", "head.out_features * (size + 4)", "head.out_features * 8"
)
counts_the_rows_once = wrong(
    "you counted hidden's bytes once", "2 * hidden.nbytes", "hidden.nbytes"
)
counts_what_is_frozen = wrong("as the gradient of a frozen matrix", " if p.requires_grad", "")
forgets_the_sums_in_float32 = wrong(
    "the sums in float32 are missing", "learns * (size + 4)", "learns * size"
)
forgets_the_bias = wrong(
    "the bias is missing",
    "sum(p.numel() for p in head.parameters() if p.requires_grad)",
    "head.weight.numel() if head.weight.requires_grad else 0",
)
assumes_float32 = wrong(
    "all numbers had four bytes",
    "width, size = hidden.shape[-1], hidden.element_size()",
    "width, size = hidden.shape[-1], 4",
    "2 * hidden.nbytes",
    "2 * hidden.numel() * size",
)
says_little = wrong("but this came: 'ValueError", "needs {least} bytes", "needs more bytes")
accepts_no_room = wrong(
    "but it went through", "    if largest < 1:", "    if largest < 0:",
    "    chunks = -(-tokens // largest)", "    chunks = -(-tokens // max(largest, 1))",
)  # fmt: skip
rounds_the_chunks_down = wrong(
    "more than the budget", "chunks = -(-tokens // largest)", "chunks = max(1, tokens // largest)"
)
rounds_to_the_nearest = wrong(
    "the leftover tokens then make one more chunk",
    "return -(-tokens // chunks)",
    "return round(tokens / chunks)",
)


def needs(head, hidden, chunk):
    learns = sum(p.numel() for p in head.parameters() if p.requires_grad)
    logits = chunk * head.weight.shape[0] * (hidden.dtype.itemsize + 4)
    return (
        learns * (hidden.itemsize + 4)
        + 2 * hidden.nbytes
        + logits
        + chunk * hidden.shape[2] * hidden.dtype.itemsize
    )


@right
def chunk_after_chunk(head, hidden, budget):
    tokens = math.prod(hidden.shape[:2])
    if needs(head, hidden, 1) > budget:
        raise ValueError(f"{budget} < {needs(head, hidden, 1)}")
    for chunks in range(1, tokens + 1):
        if needs(head, hidden, size := math.ceil(tokens / chunks)) <= budget:
            return size
    return 1


@right
def by_bisection(head, hidden, budget):
    tokens = hidden.shape[0] * hidden.shape[1]
    low, high = 0, tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needs(head, hidden, middle) <= budget else (low, middle - 1)
    if not low:
        raise ValueError(f"{needs(head, hidden, 1)} are needed, and there are {budget}.")
    return math.ceil(tokens / math.ceil(tokens / low))
