"""The bytes of the parameters."""

from wrong_answers import right, wrong


@wrong("It is the number of elements")
def counts_elements(model):
    return sum(p.numel() for p in model.parameters())


@wrong("It is the state_dict's size")
def adds_up_the_state_dict(model):
    return sum(tensor.nbytes for tensor in model.state_dict().values())


@wrong("The tied matrix is in it twice")
def adds_up_module_by_module(model):
    return sum(p.nbytes for module in model.modules() for p in module.parameters(recurse=False))


@wrong("It is what four bytes for every element give")
def takes_four_bytes_each(model):
    return 4 * sum(p.numel() for p in model.parameters())


@wrong("Frozen parameters are missing")
def leaves_out_what_is_frozen(model):
    return sum(p.nbytes for p in model.parameters() if p.requires_grad)


@wrong("Buffers are in it")
def adds_the_buffers(model):
    return sum(t.nbytes for t in [*model.parameters(), *model.buffers()])


@wrong("should be an int, and is 0.")
def gives_mebibytes(model):
    return sum(p.nbytes for p in model.parameters()) / 2**20


@wrong("should be an int, and is None")
def prints_and_returns_nothing(model):
    print(sum(p.nbytes for p in model.parameters()))


@right
def elements_times_their_size(model):
    total = 0
    for p in model.parameters():
        total += p.numel() * p.element_size()
    return total


@right
def from_the_storages(model):
    storages = [p.untyped_storage() for _, p in model.named_parameters(remove_duplicate=False)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
