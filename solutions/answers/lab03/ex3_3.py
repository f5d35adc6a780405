"""Random state, autocast, BatchNorm."""

import contextlib

import torch

from solutions.answers import right, solved, wrong

leaves_the_random_state = wrong(
    "set forward's random state",
    "read_rng(devices) if preserve_rng_state else None",
    "None",
)
reads_it_too_late = wrong(
    "you read the state when the context", "write_rng(rng)", "write_rng(read_rng(devices))"
)
never_puts_it_back = wrong(
    "left its random state behind",
    "                stack.callback(write_rng, read_rng(devices))\n",
    "",
)
forgets_about_errors = wrong(
    "put it back with stack.callback or finally",
    "stack.callback(write_rng, read_rng(devices))",
    "before = read_rng(devices)",
    "            yield",
    "            yield\n            if rng is not None:\n                write_rng(before)",
)
seeds_by_hand = wrong(
    "your call moved the random state", "    rng =", "    torch.manual_seed(0)\n    rng ="
)
uses_it_up = wrong(
    "keep what you read in forward, for every use",
    "read_rng(devices) if pre",
    "[read_rng(devices)] if pre",
    "write_rng(rng)",
    "write_rng(rng.pop() if rng else read_rng(devices))",
)
ignores_the_devices = wrong(
    "a GPU in `devices` drew other numbers", "    rng =", "    devices = ()\n    rng ="
)
leaves_the_devices = wrong(
    "a GPU in `devices` stayed as", "write_rng, read_rng(devices)", "write_rng, read_rng(())"
)
loses_the_setting_of_the_cache = wrong(
    "pass on all three settings",
    "**settings",
    'enabled=settings["enabled"], dtype=settings["dtype"]',
)
loses_autocast = wrong("forward's autocast is lost", "norms = read_autocast()", "norms = {}")
forgets_to_turn_it_off = wrong(
    "turn it off there",
    "autocast.items():",
    "autocast.items():\n                if not settings['enabled']:\n                    continue",
)
leaves_autocast_on = wrong(
    "leave the context, so",
    "stack.enter_context(torch.autocast(kind, **settings))",
    "torch.autocast(kind, **settings).__enter__()",
)
counts_batches_twice = wrong(
    "one batch was counted 2 times", "            stack.enter_context(uncounted(norms))\n", ""
)
stops_counting = wrong(
    "BatchNorm no longer counts",
    "stack.enter_context(uncounted(norms))",
    "for norm in norms:\n                norm.momentum, norm.num_batches_tracked = 0.0, None",
)
normalises_as_in_eval = wrong(
    "a BatchNorm computed something else when it ran again",
    "stack.enter_context(uncounted(norms))",
    "for norm in norms:\n                stack.callback(norm.eval().train)",
)
ignores_the_switch = wrong("leave it alone then", " if preserve_rng_state else None", "")


LAB = solved("lab03")


@right
def right_from_three_contexts(function, devices=(), preserve_rng_state=True):
    state, cpu = LAB.read_rng(devices), LAB.read_autocast()["cpu"]
    norms = LAB.batch_norms(function)

    @contextlib.contextmanager
    def random_state():
        before = LAB.read_rng(devices)
        LAB.write_rng(state)
        try:
            yield
        finally:
            LAB.write_rng(before)

    @contextlib.contextmanager
    def restored():
        drawn = random_state() if preserve_rng_state else contextlib.nullcontext()
        with torch.autocast("cpu", **cpu), LAB.uncounted(norms), drawn:
            yield

    return restored


@right
def with_a_class_and_fork_rng(function, devices=(), preserve_rng_state=True):
    states, cpu = LAB.read_rng(devices), LAB.read_autocast()["cpu"]

    class Restored(contextlib.ExitStack):
        def __enter__(self):
            kept = torch.random.fork_rng(devices, preserve_rng_state, device_type="cuda")
            self.enter_context(kept)
            self.enter_context(torch.autocast("cpu", **cpu))
            self.enter_context(LAB.uncounted(LAB.batch_norms(function)))
            if preserve_rng_state:
                LAB.write_rng(states)
            return super().__enter__()

    return Restored


@wrong("remember_surroundings should return a function, but NoneType came")
def returns_nothing(function, devices=(), preserve_rng_state=True):
    LAB.read_rng(devices)
