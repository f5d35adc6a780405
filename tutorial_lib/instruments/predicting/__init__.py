"""The same report without allocating: fake tensors, and a GPU's kernels, casts and workspace."""

from tutorial_lib.instruments.predicting.prediction import predict, predicting

__all__ = ["predict", "predicting"]
