"""Random state, autocast, BatchNorm."""

import contextlib

import torch

from wrong_answers import right, solved, wrong

LAB = solved("lab03")


def with_parts(random=None, autocast=None, norms=None):
    """The solution from three contexts: each part maps what it is given to a reader of contexts."""
    random = random or random_state
    autocast = autocast or settings
    norms = norms or uncounted

    def remember_surroundings(function, devices=(), preserve_rng_state=True):
        make = [autocast(), norms(function)]
        if preserve_rng_state:
            make.append(random(devices))

        @contextlib.contextmanager
        def restored():
            with contextlib.ExitStack() as stack:
                for part in make:
                    stack.enter_context(part())
                yield

        return restored

    return remember_surroundings


def random_state(devices):
    state = LAB.read_rng(devices)

    @contextlib.contextmanager
    def restored():
        before = LAB.read_rng(devices)
        LAB.write_rng(state)
        try:
            yield
        finally:
            LAB.write_rng(before)

    return restored


def settings():
    cpu = LAB.read_autocast()["cpu"]
    return lambda: torch.autocast("cpu", **cpu)


def uncounted(function):
    return lambda: LAB.uncounted(LAB.batch_norms(function))


def nothing(*_):
    return contextlib.nullcontext


def read_when_entered(devices):
    return lambda: random_state(devices)()


def never_put_back(devices):
    state = LAB.read_rng(devices)
    return lambda: contextlib.nullcontext(LAB.write_rng(state))


def not_put_back_after_an_error(devices):
    state = LAB.read_rng(devices)

    @contextlib.contextmanager
    def restored():
        before = LAB.read_rng(devices)
        LAB.write_rng(state)
        yield
        LAB.write_rng(before)

    return restored


def seeded(devices):
    torch.manual_seed(0)
    return random_state(devices)


def used_up(devices):
    states = [LAB.read_rng(devices)]

    @contextlib.contextmanager
    def restored():
        before = LAB.read_rng(devices)
        LAB.write_rng(states.pop() if states else before)
        try:
            yield
        finally:
            LAB.write_rng(before)

    return restored


def of_the_cpu_alone(devices):
    return random_state(())


def of_a_gpu_never_put_back(devices):
    of_all, of_cpu = LAB.read_rng(devices), random_state(())

    @contextlib.contextmanager
    def restored():
        with of_cpu():
            LAB.write_rng(of_all)
            yield

    return restored


def without_the_cache():
    on, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return lambda: torch.autocast("cpu", dtype, enabled=on)


def turned_on_where_it_was_on():
    on = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu")
    return lambda: torch.autocast("cpu", dtype) if on else contextlib.nullcontext()


def without_its_dtype():
    on = torch.is_autocast_enabled("cpu")
    # what a plain torch.autocast("cpu") would take, whatever is on around it
    return lambda: torch.autocast("cpu", torch.float16 if on else None, enabled=on)


def left_on():
    on, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def entered():
        torch.set_autocast_enabled("cpu", on)
        torch.set_autocast_dtype("cpu", dtype)
        return contextlib.nullcontext()

    return entered


def never_counting_again(function):
    def entered():
        for norm in LAB.batch_norms(function):
            norm.momentum, norm.num_batches_tracked = 0.0, None
        return contextlib.nullcontext()

    return entered


def in_eval_mode(function):
    @contextlib.contextmanager
    def entered():
        norms = LAB.batch_norms(function)
        for norm in norms:
            norm.eval()
        yield
        for norm in norms:
            norm.train()

    return entered


leaves_the_random_state = wrong("set the random state of the forward")(with_parts(random=nothing))
reads_it_too_late = wrong("it was read when the context was entered")(
    with_parts(random=read_when_entered)
)
never_puts_it_back = wrong("left its random state behind")(with_parts(random=never_put_back))
forgets_about_errors = wrong("put it back with stack.callback or finally")(
    with_parts(random=not_put_back_after_an_error)
)
seeds_by_hand = wrong("your call moved the random state")(with_parts(random=seeded))
uses_it_up = wrong("must still be there after one use")(with_parts(random=used_up))
ignores_the_devices = wrong("a GPU in `devices` drew other numbers")(
    with_parts(random=of_the_cpu_alone)
)
leaves_the_devices = wrong("a GPU in `devices` stayed as")(
    with_parts(random=of_a_gpu_never_put_back)
)
loses_the_setting_of_the_cache = wrong("hand on all three settings")(
    with_parts(autocast=without_the_cache)
)
loses_autocast = wrong("autocast of the forward is lost")(with_parts(autocast=nothing))
forgets_to_turn_it_off = wrong("turn it off inside")(with_parts(autocast=turned_on_where_it_was_on))
leaves_autocast_on = wrong("leave the context again")(with_parts(autocast=left_on))
counts_batches_twice = wrong("one batch was counted 2 times")(with_parts(norms=nothing))
stops_counting = wrong("BatchNorm does not count any more")(with_parts(norms=never_counting_again))
normalises_as_in_eval = wrong("a BatchNorm in training gave another result")(
    with_parts(norms=in_eval_mode)
)


@wrong("leave it alone then")
def ignores_the_switch(function, devices=(), preserve_rng_state=True):
    return with_parts()(function, devices)


right_from_three_contexts = right(with_parts())


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


@wrong("remember_surroundings should return a function, and NoneType came")
def returns_nothing(function, devices=(), preserve_rng_state=True):
    LAB.read_rng(devices)
