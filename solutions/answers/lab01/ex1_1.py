"""The bytes of the parameters."""

from solutions.answers import right, wrong

counts_elements = wrong("It is the number of elements", "parameter.nbytes", "parameter.numel()")
adds_up_the_state_dict = wrong(
    "It is the state_dict's size", "model.parameters()", "model.state_dict().values()"
)
takes_four_bytes_each = wrong(
    "You counted four bytes for every element", "parameter.nbytes", "4 * parameter.numel()"
)
leaves_out_what_is_frozen = wrong(
    "Frozen parameters are missing", "parameters())", "parameters() if parameter.requires_grad)"
)
adds_the_buffers = wrong(
    "You counted buffers", "model.parameters()", "[*model.parameters(), *model.buffers()]"
)
gives_mebibytes = wrong(
    "should be an int, but is 0.", "model.parameters())", "model.parameters()) / 2**20"
)
prints_and_returns_nothing = wrong("should be an int, but is None", "return sum", "print")


@wrong("You counted the tied matrix twice")
def adds_up_module_by_module(model):
    return sum(p.nbytes for module in model.modules() for p in module.parameters(recurse=False))


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
