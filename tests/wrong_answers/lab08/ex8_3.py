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


@wrong("to a side and 3 levels")
def never_refuses_a_side(unet, side, state_bytes, cap):
    return demands(unet, 8, cap, sum(parts_of(unet, side, state_bytes).values()))


@wrong("the room comes as float")
def gives_mebibytes(unet, side, state_bytes, cap):
    return demands(unet, side, cap, sum(parts_of(unet, side, state_bytes).values())) / 2**20


@wrong("none of the usual slips")
def doubles_the_gradients(unet, side, state_bytes, cap):
    parts = parts_of(unet, side, state_bytes)
    return demands(unet, side, cap, sum(parts.values()) + parts["gradients"])


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
