"""The checks of lab 01, the memory ledger of a training step."""

from tutorial_lib.checks.calls import calls_of
from tutorial_lib.checks.lab01.ex1_1 import parameter_bytes
from tutorial_lib.checks.lab01.ex1_2 import gradient_and_state_bytes
from tutorial_lib.checks.lab01.ex1_3 import chain_saved_bytes
from tutorial_lib.checks.lab01.ex1_4 import bytes_per_parameter
from tutorial_lib.checks.lab01.ex1_5 import predict_peak

__all__ = [
    "bytes_per_parameter",
    "chain_saved_bytes",
    "gradient_and_state_bytes",
    "parameter_bytes",
    "predict_peak",
]

case = calls_of(__name__)
