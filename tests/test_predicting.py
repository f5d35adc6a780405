import copy
import gc

import pytest
import torch
from foreign_models import trained
from test_meter import gpt_step
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from tutorial_lib import memory
from tutorial_lib.models.gpt import GPT, Block, GPTConfig


def assert_predicted_as_counted(make_step):
    step, model, optimizer = make_step()
    counted = memory.measure(step, model=model, optimizer=optimizer)
    predicted = memory.predict(make_step, kernels="cpu")
    assert predicted.method == "predicted"
    assert predicted.phases == counted.phases
    assert predicted.at_peak == counted.at_peak
    return counted


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_predicted_equals_counted_in_every_phase(attention, checkpointed, dropout):
    settings = {"attention": attention, "checkpointed": checkpointed, "dropout": dropout}
    assert_predicted_as_counted(lambda: gpt_step(**settings))


def test_a_model_larger_than_this_machine_is_predicted():
    def huge():
        config = GPTConfig(vocab_size=32000, num_layers=2, num_heads=64, d_model=65536)
        model, tokens = GPT(config), torch.zeros(1, 128, dtype=torch.long)
        return trained(model, lambda: model.loss(tokens), torch.optim.SGD(model.parameters()))

    report = memory.predict(huge)
    assert report.at_peak["parameters"] > 400e9


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_copy_of_the_model_made_in_the_step(kind):
    """As of averaged weights; a layer of PyTorch's is built by copying, too."""

    def make_step():
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        model = nn.TransformerEncoder(layer, num_layers=2)
        optimizer, x, kept = kind(model.parameters()), torch.randn(2, 8, 16), []

        def step():
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            kept[:] = [copy.deepcopy(model)]

        return step, model, optimizer

    assert_predicted_as_counted(make_step)


def test_a_library_that_keeps_positions_is_real_before_and_after_a_prediction():
    """BEiT's are in a cache of the whole process, as DINOv3's, and all real or all fake."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = transformers.BeitConfig(
        **sizes, num_hidden_layers=2, image_size=32, patch_size=8, use_relative_position_bias=True
    )

    def make_step():
        model = transformers.BeitForImageClassification(config)
        images, labels = torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
        return trained(model, lambda: model(images, labels=labels).loss)

    predicted = memory.predict(make_step, kernels="cpu").peak_bytes
    step, model, optimizer = make_step()
    assert memory.measure(step, model=model, optimizer=optimizer).peak_bytes == predicted
    assert memory.predict(make_step, kernels="cpu").peak_bytes == predicted
    step()


def test_cuda_kernels_are_the_default_and_say_so():
    # from 2.15 on, a matmul's own workspace is in the peak: 8 MiB of a step of 2
    report = memory.predict(lambda: gpt_step(dropout=0.1), release="2.13")
    on_cpu = memory.predict(lambda: gpt_step(dropout=0.1), kernels="cpu")
    assert "CUDA kernels" in str(report)
    # bool instead of float dropout masks, and no scores are saved
    assert report.phases["backward"] < on_cpu.phases["backward"]
    # foreach, CUDA's default, holds one more copy of the parameters in the update
    assert report.phases["optimizer"] > on_cpu.phases["optimizer"]
    with pytest.raises(ValueError, match="tpu"):
        memory.predict(gpt_step, kernels="tpu")


def made_with(look, *, model=None, checkpointed=False):
    """A step whose forward looks at its numbers; checkpointed, only as it runs again."""

    class Looking(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            again = torch._C._current_graph_task_id() != -1
            looked = (checkpointed and not again) or look(y.detach()) is not None
            return (y * float(looked)).exp()  # saved, so that running again goes this far

    def make_step():
        looking = model or Looking(2, 2)
        optimizer = torch.optim.SGD(looking.parameters())

        def step():
            x = torch.ones(3, 2)
            y = checkpoint(looking, x, use_reentrant=False) if checkpointed else looking(x)
            y.sum().backward()
            optimizer.step()

        return step, looking, optimizer

    return make_step


LOOKS = {
    "item": (lambda y: y.sum().item(), r"asks for the value.*: 0\.\d+ was assumed"),
    "bool": (lambda y: y.sum() > 0 and 1, "decides by the value.*: True was assumed"),
    "tolist": (lambda y: y.tolist(), "asks for the value"),
    "numpy": (lambda y: y.detach().numpy(), "asks for the value"),
    "format": (lambda y: f"{y.sum():.3f}", "asks for the value"),
    "nonzero": (lambda y: y.nonzero(), r"shape depends on values: \(6, 2\) was assumed"),
    "list": (lambda y: torch.tensor([y.sum(), y.mean()]), "asks for the value"),
    "unique": (lambda y: y.topk(2).indices.unique(), r"shape depends on values: \(2,\)"),
    "split": (
        lambda y: y.split(y.topk(1).indices.flatten().bincount(minlength=2).tolist()),
        "asks",
    ),
    "unset": (lambda y: bool((torch.empty(9, dtype=torch.long) == 0).all()), "decides.*: True"),
    "mask": (lambda y: y[y.isnan()], r"shape depends on values: \(0, 2\) was assumed"),
}


@pytest.fixture
def state_of_torch():
    """What a prediction changes meanwhile."""

    def state():
        return (
            *(
                F.dropout,
                F.scaled_dot_product_attention,
                torch.autocast.__init__,
                torch.is_grad_enabled(),
            ),
            *(nn.init._no_grad_trunc_normal_, torch.amp.GradScaler._maybe_opt_step),
            *(len(_get_current_dispatch_mode_stack()), gc.isenabled()),
            *(len(module_hooks._global_forward_pre_hooks), torch.get_default_dtype()),
            torch.random.get_rng_state().tolist(),
        )

    before = state()
    yield
    assert state() == before


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", LOOKS)
def test_a_value_that_is_unknown_is_assumed_with_a_warning(name, checkpointed, state_of_torch):
    look, says = LOOKS[name]
    line = rf"test_predicting\.py, line {look.__code__.co_firstlineno}, in <lambda> \(`.*`\), .*"
    with pytest.warns(memory.MeterWarning, match=f"{line}{says}.*memory.measure"):
        report = memory.predict(made_with(look, checkpointed=checkpointed), kernels="cpu")
    with torch.random.fork_rng(devices=[]):
        step, model, optimizer = made_with(look, checkpointed=checkpointed)()
        assert report.phases == memory.measure(step, model=model, optimizer=optimizer).phases


def test_a_model_from_outside_is_refused_and_untouched(state_of_torch):
    with torch.random.fork_rng(devices=[]):
        model = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"line \d+, in step .*made outside make_step"):
        memory.predict(made_with(None, model=model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert not model._forward_hooks
    model(torch.ones(1, 2)).sum().backward()  # it works for real


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Linear(2, 2, device="meta"), "on meta, but a prediction needs it on the CPU"),
        (lambda: nn.Linear(2**40, 2**40), "more than 2\\*\\*63 bytes"),
    ],
)
def test_what_cannot_be_built_is_refused(make, says, state_of_torch):
    def make_step():
        model = make()
        return lambda: None, model, torch.optim.SGD(model.parameters())

    with pytest.raises((ValueError, RuntimeError), match=says):
        memory.predict(make_step)


@pytest.mark.parametrize("error", [AssertionError("mine"), RuntimeError("mine"), KeyError("mine")])
def test_an_error_of_the_step_itself_comes_through(error, state_of_torch):
    def fail(_):
        raise error

    with pytest.raises(type(error), match="mine"):
        memory.predict(made_with(fail))


def block_saves(**shape):
    config = GPTConfig(dropout=0.1, attention="eager", **shape)
    block = Block(config, causal=False).to(torch.bfloat16)
    x = torch.zeros(2, config.seq_len, config.d_model, dtype=torch.bfloat16, requires_grad=True)
    return memory.saved(lambda: block(x), params_of=block).num_bytes / x.numel()


def test_a_block_saves_what_the_paper_says():
    """Korthikanti et al. (2022), equation 1; what is left are the norms' statistics."""
    shape = {"num_heads": 16, "d_model": 1024, "seq_len": 1024}
    with memory.predicting():
        assert block_saves(**shape) == pytest.approx(34 + 5 * 16, rel=1e-3)


def test_predicting_refuses_other_kernels_and_tensors_from_outside():
    with pytest.raises(ValueError, match="tpu"), memory.predicting("tpu"):
        pass
    outside = torch.ones(3)
    with pytest.raises(ValueError, match="made outside"), memory.predicting():
        outside + torch.ones(3)


def test_an_assumed_value_that_an_operation_refuses_is_said():
    def make_step():
        model, labels = nn.Linear(4, 5), torch.zeros(2, 1, dtype=torch.long)
        return trained(model, lambda: loss(model, labels))

    def loss(model, labels):
        sizes = (model(torch.randn(2, 4)) > 0).long().sum(-1) - 9  # nobody knows these values
        return F.ctc_loss(model(torch.randn(6, 2, 4)).log_softmax(-1), labels, sizes, labels[:, 0])

    with pytest.raises(RuntimeError, match=r"(?s)line \d+, in loss .*assumed values don't suit it"):
        memory.predict(make_step)


@pytest.mark.filterwarnings("ignore::tutorial_lib.memory.MeterWarning")
@pytest.mark.parametrize("computed", ["lengths", "targets", "labels", "unset", "out of range"])
def test_a_ctc_loss_whose_lengths_a_model_computes_is_predicted(computed):
    def make_step():
        model, sounds = nn.Linear(8, 15), torch.randn(20, 4, 8)

        def step():
            scores = model(sounds)
            labels, lengths, targets = torch.ones(4, 6).long(), torch.full((4,), 20), None
            if computed == "lengths":
                lengths = 15 + (scores.sum(-1) > 0).long().sum(0).clamp(max=5)
            if computed == "targets":
                targets = 1 + (scores[:5, :, 0] > 0).long().sum(0)
            if computed == "labels":
                labels = scores[:6].argmax(-1).t().clamp(min=1)
            if computed == "unset":
                labels = torch.empty(4, 6, dtype=torch.long)
            if computed == "out of range":  # the kernel reads beyond the scores; seen to end Python
                labels = torch.full((4, 6), 10**12)
            targets = torch.full((4,), 5) if targets is None else targets
            F.ctc_loss(scores.log_softmax(-1), labels, lengths, targets).backward()

        return step, model, None

    predicted = memory.predict(make_step, kernels="cpu")
    if computed not in ("unset", "out of range"):
        step, model, _ = make_step()
        assert predicted.peak_bytes == memory.measure(step, model=model).peak_bytes
    assert predicted.peak_bytes > 2 * 20 * 4 * 15 * 4


@pytest.mark.filterwarnings("error::tutorial_lib.memory.MeterWarning")  # the lengths are known
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("is_packed", [True, False])
def test_recurrent_layers_are_predicted(kind, batch_first, is_packed):
    def make_step():
        layers = nn.ModuleList(kind(12, 12, 2, dropout=0.3, bidirectional=b) for b in (False, True))
        model = nn.ModuleList([nn.Linear(12, 12), *layers])
        x, lengths = torch.randn(6, 8, 12), torch.tensor([3, 8, 6, 2, 6, 7])
        x = x if batch_first else x.transpose(0, 1)

        def step():
            y = model[0](x)
            if is_packed:
                y = pack_padded_sequence(y, lengths, batch_first, enforce_sorted=False)
            for layer in layers:
                y, _ = layer(y)
            if is_packed:
                y, _ = pad_packed_sequence(y, batch_first, 0.5, total_length=10)
            y.square().mean().backward()
            model.zero_grad()

        return step, model, None

    step, model, _ = make_step()
    counted = memory.measure(step, model=model)
    assert memory.predict(make_step, kernels="cpu").peak_bytes == counted.peak_bytes


def test_a_leaf_that_only_the_graph_holds_is_counted():
    def make_step():
        leaf = torch.ones(512, 256, requires_grad=True)
        y = leaf.exp()  # its graph is older than the step
        return (lambda: y.sum().backward(retain_graph=True)), nn.Identity(), None

    leaf_result_and_two_gradients = 4 * 512 * 1024
    predicted = memory.predict(make_step).peak_bytes
    assert leaf_result_and_two_gradients <= predicted < 1.01 * leaf_result_and_two_gradients
