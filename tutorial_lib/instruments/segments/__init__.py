"""Named ways to checkpoint a model, applied for a while and undone.

    with segments.applied(model, "per-block") as applied:
        loss = model.loss(tokens)
        loss.backward()
    print(applied)  # what was checkpointed

A checkpointed part keeps its inputs alone and runs again during backward. The gradients are the
same, bit for bit, as long as forward doesn't read what it changes: spectral norm's vectors, a
moving codebook or a cache of frames have other values in the second run, which `planning.judge`
looks for. What a part only changes, it changes twice: BatchNorm's running averages move two steps.
All this is so in `eval()` too, except with `library-switch`.
"""

from tutorial_lib import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        "find": "find_blocks",
        "strategies": "STRATEGIES Applied applied called_through possible replace_method "
        "stop_caching",
    },
)
