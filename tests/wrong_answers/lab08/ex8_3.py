"""The floor, and what is refused."""

from wrong_answers import right, wrong


def demands(unet, side, cap, floor):
    multiple = 2 ** (len(unet.config.block_out_channels) - 1)
    if side % multiple:
        raise ValueError(f"side (={side}) must be a multiple of {multiple}: try {multiple}.")
    if cap < floor:
        raise ValueError(f"the cap ({cap:,} bytes) is below the floor ({floor:,} bytes).")
    return cap - floor


def parts_of(unet, side, state_bytes):
    trained = [p for p in unet.parameters() if p.requires_grad]
    return {
        "parameters": sum(p.nbytes for p in unet.parameters()),
        "buffers": sum(b.nbytes for b in unet.buffers()),
        "gradients": sum(p.nbytes for p in trained),
        "state": sum(map(state_bytes, trained)),
        "sample": 8 * unet.config.in_channels * side**2 + 8,
    }


def without(name):
    def room_for_activations(unet, side, state_bytes, cap):
        parts = parts_of(unet, side, state_bytes)
        return demands(unet, side, cap, sum(parts.values()) - parts[name])

    return room_for_activations


@wrong("look at buffers, the sample and frozen parameters")
def counts_each_parameter_fully(unet, side, state_bytes, cap):
    return cap - sum(2 * p.nbytes + state_bytes(p) for p in unet.parameters())


forgets_gradients = wrong("the gradients are not in it")(without("gradients"))
forgets_buffers = wrong("the buffers are not in it")(without("buffers"))
forgets_the_sample = wrong("the sample is not in it")(without("sample"))


@wrong("the optimizer's state is not in it")
def forgets_the_state(unet, side, state_bytes, cap):
    parts = parts_of(unet, side, lambda p: 0)
    return demands(unet, side, cap, sum(parts.values()))


@wrong("one image is missing")
def forgets_the_noise(unet, side, state_bytes, cap):
    floor = sum(parts_of(unet, side, state_bytes).values())
    return demands(unet, side, cap, floor - 4 * unet.config.in_channels * side**2)


@wrong("frozen parameters have neither gradient nor state")
def trains_everything(unet, side, state_bytes, cap):
    unet.requires_grad_(True)
    return demands(unet, side, cap, sum(parts_of(unet, side, state_bytes).values()))


@wrong("the sample's time is an int64")
def a_time_of_four_bytes(unet, side, state_bytes, cap):
    return demands(unet, side, cap, sum(parts_of(unet, side, state_bytes).values()) - 4)


@wrong("one below the floor")
def never_refuses_a_cap(unet, side, state_bytes, cap):
    demands(unet, side, 2**60, 0)
    return cap - sum(parts_of(unet, side, state_bytes).values())


@wrong("to a side, and it went through")
def never_refuses_a_side(unet, side, state_bytes, cap):
    return demands(unet, 8, cap, sum(parts_of(unet, side, state_bytes).values()))


@wrong("the room should be an int")
def gives_mebibytes(unet, side, state_bytes, cap):
    return demands(unet, side, cap, sum(parts_of(unet, side, state_bytes).values())) / 2**20


@wrong("none of the usual faults")
def doubles_the_gradients(unet, side, state_bytes, cap):
    parts = parts_of(unet, side, state_bytes)
    return demands(unet, side, cap, sum(parts.values()) + parts["gradients"])


@wrong("that is the floor itself")
def gives_the_floor(unet, side, state_bytes, cap):
    return cap - part_by_part(unet, side, state_bytes, cap)


def refuses_sides(is_refused, words):
    def room_for_activations(unet, side, state_bytes, cap):
        levels = len(unet.config.block_out_channels)
        if is_refused(side, levels):
            raise ValueError(f"side (={side}) {words}.")
        return demands(unet, 0, cap, sum(parts_of(unet, side, state_bytes).values()))

    return room_for_activations


four_always = wrong("came: 'side (=6) is no multiple of 4")(
    refuses_sides(lambda side, _: side % 4, "is no multiple of 4")
)
powers_of_two_alone = wrong("came: 'side (=6) is no power of 2")(
    refuses_sides(lambda side, _: side & (side - 1), "is no power of 2: try 4")
)
halved_at_each_level = wrong("came: 'side (=6) cannot be halved")(
    refuses_sides(lambda side, levels: side % 2**levels, "cannot be halved, 2 to 4 times")
)


def suggests(side_to_try):
    def room_for_activations(unet, side, state_bytes, cap):
        multiple = 2 ** (len(unet.config.block_out_channels) - 1)
        if side % multiple:
            tried = side_to_try(side, multiple)
            raise ValueError(f"side (={side}) is no multiple of {multiple}{tried}.")
        return demands(unet, side, cap, sum(parts_of(unet, side, state_bytes).values()))

    return room_for_activations


suggests_none = wrong("is no multiple of 4.': it names no side to try")(
    suggests(lambda side, multiple: "")
)
suggests_what_does_not_fit = wrong("more.': it names no side to try")(
    suggests(lambda side, multiple: f": try {side + multiple}, or a few more")
)
suggests_nothing_at_all = wrong("try 0.': it names no side to try")(
    suggests(lambda side, multiple: f": try {side // multiple * multiple}")
)
suggests_the_next_below = right(
    suggests(lambda side, multiple: f": try {side // multiple * multiple or multiple}")
)


@wrong("that state_dict() leaves out")
def from_the_state_dict(unet, side, state_bytes, cap):
    parts = parts_of(unet, side, state_bytes)
    parts["buffers"] = sum(t.nbytes for t in unet.state_dict().values()) - parts["parameters"]
    return demands(unet, side, cap, sum(parts.values()))


@wrong("not every buffer is float32")
def four_bytes_a_number(unet, side, state_bytes, cap):
    parts = parts_of(unet, side, state_bytes)
    parts["buffers"] = sum(4 * b.numel() for b in unet.buffers())
    return demands(unet, side, cap, sum(parts.values()))


@wrong("the optimizer keeps nothing for frozen parameters")
def state_for_frozen_parameters(unet, side, state_bytes, cap):
    parts = parts_of(unet, side, state_bytes)
    parts["state"] = sum(map(state_bytes, unet.parameters()))
    return demands(unet, side, cap, sum(parts.values()))


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
    return demands(unet, side, cap, sum(parts_of(unet, side, state_bytes).values()))


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
