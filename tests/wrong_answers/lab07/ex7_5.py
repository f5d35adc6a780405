"""Moments."""

import contextlib
import copy

import torch

from wrong_answers import right, solved, wrong

LAB = solved("lab07")


def clones(tower):
    return {name: buffer.clone() for name, buffer in tower.named_buffers()}


def write(tower, buffers):
    with torch.no_grad():
        for name, buffer in tower.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])


def with_slips(*, read=clones, write=write, random=True, at_entry=False, back=(True, True)):
    """The solution from its parts.

    `back` says whether random state and buffers are put back, `at_entry` that the state is read
    when a moment is entered.
    """

    def remember(tower):
        then = LAB.read_rng(tower), read(tower)

        @contextlib.contextmanager
        def moment():
            state, buffers = (LAB.read_rng(tower), then[1]) if at_entry else then
            before = LAB.read_rng(tower), clones(tower)
            if random:
                LAB.write_rng(state)
            write(tower, buffers)
            try:
                yield
            finally:
                if back[0]:
                    LAB.write_rng(before[0])
                if back[1]:
                    write(tower, before[1])

        return moment

    return remember


def no_buffers(tower):
    return {}


def of_the_state_dict(tower):
    return {name: value.clone() for name, value in tower.state_dict().items()}


def everything(tower):
    return clones(tower) | {name: p.detach().clone() for name, p in tower.named_parameters()}


def its_own(tower):
    return {name: buffer.clone() for name, buffer in tower.named_buffers(recurse=False)}


def of_floats(tower):
    return {name: value for name, value in clones(tower).items() if value.is_floating_point()}


def references(tower):
    return dict(tower.named_buffers())


forgets_the_random_state = wrong("is the one that was read when remember was called")(
    with_slips(random=False, back=(False, True))
)
reads_it_too_late = wrong("it was read when the moment was entered")(with_slips(at_entry=True))
never_puts_it_back = wrong("would draw masks that were drawn before")(
    with_slips(back=(False, True))
)
forgets_the_buffers = wrong("they belong to the moment too")(with_slips(read=no_buffers))
takes_the_state_dict = wrong("named_buffers has them all")(with_slips(read=of_the_state_dict))
forgets_modules_inside = wrong("those of a module inside the tower were not")(
    with_slips(read=its_own)
)
takes_floats_alone = wrong("BatchNorm counts its batches so")(with_slips(read=of_floats))
keeps_references = wrong("so keep a clone")(with_slips(read=references))
never_puts_buffers_back = wrong("each micro-batch has moved them once")(
    with_slips(back=(True, False))
)
keeps_the_weights = wrong("parameters do not")(with_slips(read=everything))


@wrong("read, and change nothing")
def seeds(tower):
    torch.manual_seed(0)
    return with_slips()(tower)


@wrong("A seed leads back to its beginning")
def replays_the_seed(tower):
    seed, plain = torch.initial_seed(), with_slips(random=False)(tower)

    @contextlib.contextmanager
    def moment():
        with plain():
            torch.manual_seed(seed)
            yield

    return moment


@wrong("nobody heard of it")
def swallows_errors(tower):
    plain = with_slips()(tower)

    @contextlib.contextmanager
    def moment():
        with contextlib.suppress(Exception), plain():
            yield

    return moment


@wrong("look buffers up by name when you write")
def looks_buffers_up_too_early(tower):
    state, buffers = LAB.read_rng(tower), dict(tower.named_buffers())
    values = {name: buffer.clone() for name, buffer in buffers.items()}

    @contextlib.contextmanager
    def moment():
        before = LAB.read_rng(tower), {name: b.clone() for name, b in buffers.items()}
        LAB.write_rng(state)
        for name, buffer in buffers.items():
            buffer.copy_(values[name])
        try:
            yield
        finally:
            LAB.write_rng(before[0])
            for name, buffer in buffers.items():
                buffer.copy_(before[1][name])

    return moment


@wrong("an error inside the moment leaves")
def forgets_about_errors(tower):
    then = LAB.read_rng(tower), clones(tower)

    @contextlib.contextmanager
    def moment():
        before = LAB.read_rng(tower), clones(tower)
        LAB.write_rng(then[0])
        write(tower, then[1])
        yield
        LAB.write_rng(before[0])
        write(tower, before[1])

    return moment


@wrong("must still be there after one use")
def uses_it_up(tower):
    states = [(LAB.read_rng(tower), clones(tower))]

    @contextlib.contextmanager
    def moment():
        before = LAB.read_rng(tower), clones(tower)
        state, buffers = states.pop() if states else before
        LAB.write_rng(state)
        write(tower, buffers)
        try:
            yield
        finally:
            LAB.write_rng(before[0])
            write(tower, before[1])

    return moment


from_its_parts = right(with_slips())


@wrong("for that GPU's random state too")
def of_the_cpu_alone(tower):
    state, buffers = torch.get_rng_state(), clones(tower)

    @contextlib.contextmanager
    def moment():
        before = clones(tower)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            write(tower, buffers)
            try:
                yield
            finally:
                write(tower, before)

    return moment


@wrong("the random state of a GPU stayed")
def leaves_the_gpu(tower):
    states, plain = LAB.read_rng(tower), of_the_cpu_alone(tower)

    @contextlib.contextmanager
    def moment():
        with plain():
            LAB.write_rng(states)
            yield

    return moment


@right
def as_a_class_with_fork_rng(tower):
    states, buffers = LAB.read_rng(tower), copy.deepcopy(dict(tower.named_buffers()))
    gpus = [place for place in states if place.type != "cpu"]

    class Moment(contextlib.ExitStack):
        def __enter__(self):
            self.enter_context(torch.random.fork_rng(gpus, device_type="cuda"))
            self.callback(write, tower, clones(tower))
            LAB.write_rng(states)
            write(tower, buffers)
            return super().__enter__()

    return Moment


def load(tower, buffers):
    write(tower, buffers)
    state = tower.state_dict()
    tower.load_state_dict(state | {name: buffers[name] for name in buffers if name in state})


writes_parameters_too = wrong("parameters are not")(with_slips(write=load))


@wrong("should return a function, and NoneType came")
def returns_nothing(tower):
    with_slips()(tower)
