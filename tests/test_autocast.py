"""CUDA's autocast on CPU tensors against PyTorch's own, which works on fake CUDA tensors."""

import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tutorial_lib import memory
from tutorial_lib.instruments.predicting import autocast
from tutorial_lib.instruments.private_torch import operations

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
HALVES = [torch.bfloat16, torch.float16]


class Dispatched(TorchDispatchMode):
    """Writes down every operation with the types of what goes in and comes out."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            first = out[0] if isinstance(out, tuple | list) else out
            types_in = [value.dtype for value in args if isinstance(value, torch.Tensor)]
            self.seen.append((func.name(), types_in, getattr(first, "dtype", None)))
        return out


def rows(device, dtype):
    return torch.empty(4, 8, dtype=dtype, device=device)


def labels(device):
    return torch.empty(4, dtype=torch.int64, device=device)


OPERATIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax, type given": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "softmax, own type given": lambda x: torch.softmax(x, -1, x.dtype),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "log_softmax, type given": lambda x: F.log_softmax(x, -1, dtype=torch.float32),
    "cross_entropy": lambda x: F.cross_entropy(x, labels(x.device)),
    "cross_entropy, smoothed": lambda x: F.cross_entropy(x, labels(x.device), label_smoothing=0.1),
    "nll_loss": lambda x: F.nll_loss(x, labels(x.device)),
    "sum": lambda x: x.sum(),
    "sum over rows": lambda x: x.sum(0),
    "sum, type given": lambda x: x.sum(dtype=torch.float64),
    "mean": lambda x: x.mean(),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "prod": lambda x: x.prod(),
    "prod over rows": lambda x: x.prod(0),
    "norm": lambda x: x.norm(),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "exp": torch.exp,
    "pow": lambda x: x**2,
    "logsumexp": lambda x: x.logsumexp(-1),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "addcmul": lambda x: torch.addcmul(x, x.float(), x),
    "index_put": lambda x: x.clone().index_put((labels(x.device),), x.float()),
    "scatter_add": lambda x: x.scatter_add(0, labels(x.device).unsqueeze(1), x.float()),
    "mv": lambda x: torch.mv(x.float(), x.float().select(0, 0)),
    "matmul": lambda x: x.float() @ x.T,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x.float(), x),
    "convolution, padding in a word": lambda x: F.conv1d(
        x.view(1, 4, 8).float(), x.view(2, 4, 4).float(), padding="valid"
    ),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "double stays": lambda x: x.double().softmax(-1),
}


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_the_operations_and_their_types_are_those_of_cudas_autocast(operation, dtype):
    half = torch.float16 if dtype == torch.float16 else torch.bfloat16
    with FakeTensorMode():
        x = rows("cuda", dtype)
        before = torch.get_autocast_dtype("cuda")
        torch.set_autocast_dtype("cuda", half)
        torch.set_autocast_enabled("cuda", True)
        try:
            with Dispatched() as wanted:
                operation(x)
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
    with memory.predicting("cuda"):
        x = rows("cpu", dtype)
        with torch.autocast("cuda", dtype=half), Dispatched() as seen:
            operation(x)
    assert seen.seen == wanted.seen


def names_of(macro):
    text = HEADER.read_text().replace("\\\n", " ")
    (body,) = re.findall(rf"#define {macro}\(_\)(.*)", text)
    words = re.findall(r"_\(([^)]*)\)", body)
    return {word.replace(" ", "").replace(",", ".") for word in words}


@pytest.mark.skipif(not HEADER.exists(), reason="this PyTorch came without its headers")
def test_the_lists_are_those_of_the_installed_header():
    newest = torch.__version__ >= "2.13"
    for macro, names in {
        "AT_FORALL_FP32": autocast._LISTS["float32"],
        "AT_FORALL_FP32_SET_OPT_DTYPE": autocast._LISTS["float32_result"],
        "AT_FORALL_PROMOTE": autocast._LISTS["widest"],
    }.items():
        there = names_of(macro)
        if not newest:  # Older ones have a few less, and overloads for named tensors.
            there = {name for name in there if "dimname" not in name.lower()}
        assert there <= set(names.split()), f"{macro} has what the list has not"
        assert not newest or set(names.split()) == there
    halves, listed = names_of("AT_FORALL_LOWER_PRECISION_FP"), set(autocast._LISTS["half"].split())
    on_cuda_alone = {n for n in halves if not operations.has_kernel(f"aten::{n}", "AutocastCPU")}
    assert listed <= halves
    assert not newest or on_cuda_alone - listed == {
        *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"),  # kernels that a CPU has not
        "_scaled_dot_product_flash_attention",  # taken after the types are decided
    }
