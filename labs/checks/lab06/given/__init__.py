"""The world of lab 06's answers: small models, windows, and the halves that run the answers."""

from .pairs import first_difference
from .steps import exact_step, rank_step, scaled_step, token_step, train_epoch

__all__ = ["exact_step", "first_difference", "rank_step", "scaled_step"]
__all__ += ["token_step", "train_epoch"]
