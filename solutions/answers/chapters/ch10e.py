"""Chapter 10e: a part of a recipe for fine-tuning."""

from solutions.answers import right, wrong

FILLINGS = {
    "four-bits": {
        "keeps_the_whole_weight": wrong(
            "bytes wait for backward",
            "return checkpoint(compute, x, use_reentrant=False)",
            "return compute(x)",
        ),
        "makes_the_weight_outside": wrong(
            "bytes wait for backward",
            "    def compute(x):\n"
            "        return F.linear(x, planned.from_4_bits(*stored).to(x.dtype))\n",
            "    weight = planned.from_4_bits(*stored).to(x.dtype)\n\n"
            "    def compute(x):\n"
            "        return F.linear(x, weight)\n",
        ),
        "transposes": wrong(
            "mat1 and mat2", "planned.from_4_bits(*stored).to", "planned.from_4_bits(*stored).T.to"
        ),
        "stays_in_float32": wrong("have the same dtype", ".to(x.dtype)", ""),
        "returns_the_rows": wrong(
            "is not F.linear(x, weight)",
            "return checkpoint(compute, x, use_reentrant=False)",
            "return 2 * checkpoint(compute, x, use_reentrant=False)",
        ),
        "gives_the_tensors_too": right(
            "    def compute(x):\n"
            "        return F.linear(x, planned.from_4_bits(*stored).to(x.dtype))\n\n"
            "    return checkpoint(compute, x, use_reentrant=False)",
            "    def compute(x, *stored):\n"
            "        return x @ planned.from_4_bits(*stored).to(x.dtype).T\n\n"
            "    return checkpoint(compute, x, *stored, use_reentrant=False)",
        ),
    },
}
