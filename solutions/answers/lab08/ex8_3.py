"""The floor, and what is refused."""

from solutions.answers import right, wrong

forgets_gradients = wrong(
    "the gradients are missing", "p.nbytes + state_bytes(p)", "state_bytes(p)"
)
forgets_buffers = wrong(
    "the buffers are missing", "[*unet.parameters(), *unet.buffers()]", "unet.parameters()"
)
forgets_the_sample = wrong(
    "the sample is missing", "    floor += 2 * unet.config.in_channels * side**2 * 4 + 8\n", ""
)
forgets_the_state = wrong("the optimizer's state is missing", " + state_bytes(p)", "")
forgets_the_noise = wrong("one image is missing in the sample", "2 * unet.config", "unet.config")
trains_everything = wrong(
    "frozen parameters have neither gradient nor state", " if p.requires_grad", ""
)
a_time_of_four_bytes = wrong("the sample's time is an int64", "* 4 + 8", "* 4 + 4")
never_refuses_a_cap = wrong("one below the floor", "cap_bytes < floor", "cap_bytes < 0")
never_refuses_a_side = wrong(
    "to a side, but it went through", "rest := side % multiple", "rest := 0"
)
gives_mebibytes = wrong(
    "the room should be an int", "cap_bytes - floor", "(cap_bytes - floor) / 2**20"
)
doubles_the_gradients = wrong(
    "none of the usual faults", "p.nbytes + state", "2 * p.nbytes + state"
)
gives_the_floor = wrong("that is the floor itself", "cap_bytes - floor", "floor")
doubles_the_levels = wrong(
    "must be a multiple of 6",
    "2 ** (len(unet.config.block_out_channels) - 1)",
    "2 * (len(unet.config.block_out_channels) - 1)",
)
four_always = wrong(
    "came: 'side (=6) is no multiple of 4",
    "    if rest",
    "    if side % 4:\n"
    "        raise ValueError(f'side (={side}) is no multiple of 4.')\n"
    "    if rest",
)
powers_of_two_alone = wrong(
    "came: 'side (=6) is no power of 2",
    "    if rest",
    "    if side & (side - 1):\n"
    "        raise ValueError(f'side (={side}) is no power of 2: try 4.')\n"
    "    if rest",
)
halved_at_each_level = wrong(
    "came: 'side (=6) cannot be halved",
    "    if rest",
    "    if side % (2 * multiple):\n"
    "        raise ValueError(f'side (={side}) cannot be halved, 2 to 4 times.')\n"
    "    if rest",
)
suggests_none = wrong(
    "is no multiple of 4.': it names no side to try",
    "must be a multiple of {multiple}: {more}",
    "is no multiple of {multiple}",
)
suggests_what_does_not_fit = wrong(
    "more.': it names no side to try",
    "{side - rest + multiple}",
    "{side + multiple}, or a few more",
)
suggests_nothing_at_all = wrong(
    "try 0.': it names no side to try", "{side - rest + multiple}", "{side - rest}"
)
suggests_the_next_below = right("{side - rest + multiple}", "{side - rest or multiple}")
from_the_state_dict = wrong(
    "that state_dict() leaves out",
    "[*unet.parameters(), *unet.buffers()]",
    "unet.state_dict().values()",
)
four_bytes_a_number = wrong(
    "not every buffer is float32", "tensor.nbytes for", "4 * tensor.numel() for"
)
state_for_frozen_parameters = wrong(
    "the optimizer keeps nothing for frozen parameters",
    "(p.nbytes + state_bytes(p) for p in trained)",
    "(p.nbytes for p in trained) + sum(map(state_bytes, unet.parameters()))",
)


def demands(unet, side, cap, floor):
    multiple = 2 ** (len(unet.config.block_out_channels) - 1)
    if side % multiple:
        raise ValueError(f"side (={side}) must be a multiple of {multiple}: try {multiple}.")
    if cap < floor:
        raise ValueError(f"the cap ({cap:,} bytes) is below the floor ({floor:,} bytes).")
    return cap - floor


def floor_of(unet, side, state_bytes):
    trained = [p for p in unet.parameters() if p.requires_grad]
    resident = sum(t.nbytes for t in [*unet.parameters(), *unet.buffers(), *trained])
    return resident + sum(map(state_bytes, trained)) + 8 * unet.config.in_channels * side**2 + 8


@wrong("look at buffers, the sample and frozen parameters")
def counts_each_parameter_fully(unet, side, state_bytes, cap):
    return cap - sum(2 * p.nbytes + state_bytes(p) for p in unet.parameters())


class TooSmallError(ValueError):
    pass


@right
def with_an_error_of_its_own(unet, side, state_bytes, cap):
    try:
        return part_by_part(unet, side, state_bytes, cap)
    except ValueError as error:
        raise TooSmallError(str(error)) from None


@right
def part_by_part(unet, side, state_bytes, cap):
    return demands(unet, side, cap, floor_of(unet, side, state_bytes))


@right
def in_a_loop(unet, side, state_bytes, cap):
    room = cap - 8 - 2 * 4 * unet.config.in_channels * side * side
    halvings = len(unet.config.block_out_channels) - 1
    if side >> halvings << halvings != side:
        raise ValueError(
            f"{side} is no multiple of {2**halvings}, try {side + -side % 2**halvings}"
        )
    for tensor in [*unet.parameters(), *unet.buffers()]:
        room -= tensor.numel() * tensor.element_size()
        if tensor.requires_grad:
            room -= tensor.numel() * tensor.element_size() + state_bytes(tensor)
    if room < 0:
        raise ValueError(f"{cap} bytes are asked for, and {cap - room} bytes are needed at least")
    return room
