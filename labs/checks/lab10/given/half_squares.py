"""A loss that 10.3's answers know nothing of."""

from torch import Tensor


def squares(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return half the sum of the squares of `hidden @ weight.T + bias - targets`."""
    rest = hidden @ weight.T + bias - targets[:, None]
    loss: Tensor = rest.square().sum() / 2
    return loss


def squares_of_chunk(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the same of a chunk, and its gradients; None for a bias that is frozen."""
    rest = (hidden @ weight.T).add_(bias).sub_(targets[:, None])
    of_bias = rest.sum(0) if bias.requires_grad else None
    return rest.square().sum() / 2, rest @ weight, rest.T @ hidden, of_bias
