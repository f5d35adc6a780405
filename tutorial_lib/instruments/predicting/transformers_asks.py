"""What transformers asks of tensors and of the compiler, answered as in a real step."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock


def _never(_: Any) -> bool:
    return False


def with_values() -> contextlib.AbstractContextManager[Any]:
    """Make transformers look at masks and positions, as it does in a real step.

    It looks whether a mask hides anything and whether texts are packed, and not at fake tensors.

    Source:
        `is_fake_tensor`, asked in transformers/masking_utils.py (5.23).
    """
    asked = sys.modules.get("transformers.utils.import_utils")
    if not hasattr(asked, "is_fake_tensor"):
        return contextlib.nullcontext()
    return mock.patch.object(asked, "is_fake_tensor", _never)


@contextlib.contextmanager
def with_own_caches() -> Iterator[None]:
    """Empty transformers' caches of tensors that are asked inside, before and after.

    Else real tensors come into a prediction, or fake ones stay for the next step.

    Source:
        `compile_compatible_method_lru_cache` in transformers/pytorch_utils.py (5.23), which asks
        at each call whether code is compiled. DINOv3, BEiT, DETR and SAM use it.
    """
    caching = sys.modules.get("transformers.pytorch_utils")
    asked = getattr(caching, "is_torchdynamo_compiling", None)
    seen = list[Any]()

    def is_compiling() -> Any:
        cached = sys._getframe(1).f_locals.get("func_with_cache")
        if cached is not None and cached not in seen:
            cached.cache_clear()
            seen.append(cached)
        return asked and asked()

    with contextlib.ExitStack() as stack:
        if asked is not None:
            stack.enter_context(
                mock.patch.object(caching, "is_torchdynamo_compiling", is_compiling)
            )
        stack.callback(lambda: [cached.cache_clear() for cached in seen])
        yield
