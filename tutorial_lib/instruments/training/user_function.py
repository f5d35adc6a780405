"""The user's own function as a model's name, as in `train.py:make_step`."""

import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tutorial_lib.instruments import published
from tutorial_lib.instruments.published import config_file
from tutorial_lib.instruments.training.fields import RecipeFields

_NAME = re.compile(r"(?P<home>.+):(?P<function>[A-Za-z_]\w*)")


def is_function(name: str) -> bool:
    """Tell whether a model's name is that of a function, `file.py:f` or `package.module:f`."""
    return _NAME.fullmatch(name) is not None


def build(recipe: RecipeFields, device: torch.device | str) -> tuple[Any, ...]:
    """Call the function that a recipe names, with those choices that it has parameters for.

    Args:
        recipe: `micro_batch`, `seq`, `size` and the overrides are handed on by name.
        device: Handed on to a function that takes it.

    Returns:
        Step, model and optimizer; or loss (a function that runs forward) and model.

    Raises:
        ValueError: When there is no such file, module or function, when it does not take what was
            asked for, or gives something else; or when it is to be divided over ranks.
    """
    name = recipe.model
    if recipe.shard is not None:
        raise ValueError(
            f"{name} is a function, and shard (={recipe.shard}) is for published models and "
            "config.json: divide the model in the function, and predict it inside ranks.pretend."
        )
    function = _function(name)
    taken = inspect.signature(function).parameters
    asked = {"micro_batch": recipe.micro_batch, "seq": recipe.seq, "size": recipe.size}
    asked |= recipe.overrides
    given: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    given["device"] = device
    made = function(**{key: value for key, value in given.items() if key in taken})
    for key in recipe.overrides if isinstance(made, nn.Module) else asked:
        if key not in taken and asked[key] not in (None, 1):
            raise ValueError(
                f"{name} takes no {key}, and {key} (={asked[key]}) was asked for: give the "
                f"function a parameter {key}, or leave it out."
            )
    if isinstance(made, nn.Module):
        return _with_batch(recipe, made, device)
    if isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[1], nn.Module):
        return made
    raise ValueError(
        f"{name} gives {_kinds(made)}: it must give step, model and optimizer; or loss (a function "
        "that runs forward) and model; or a model of transformers or diffusers."
    )


def _with_batch(
    recipe: RecipeFields, model: nn.Module, device: torch.device | str
) -> tuple[Any, ...]:
    what = config_file.of_model(recipe.model, model)
    batch = published.batch(
        what, recipe.micro_batch, seq=recipe.seq, size=recipe.size, device=device
    )
    return (lambda: published.loss(what, model, batch)), model.train()


def _kinds(made: Any) -> str:
    kinds = [type(part).__name__ for part in (made if isinstance(made, tuple) else (made,))]
    return ", ".join(kinds)


def _function(name: str) -> Callable[..., Any]:
    parts = _NAME.fullmatch(name)
    assert parts is not None
    module = _module(parts["home"])
    found = getattr(module, parts["function"], None)
    if inspect.isfunction(found) or inspect.isclass(found):
        return found
    own = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    raise ValueError(
        f"{parts['home']} has no function {parts['function']}: "
        + (f"it has {', '.join(own)}." if own else "it has none.")
    )


def _module(home: str) -> ModuleType:
    path = Path(home).expanduser()
    if path.suffix != ".py":
        with _importable(Path.cwd()):
            try:
                return importlib.import_module(home)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{home}.".startswith(f"{error.name}."):
                    raise  # of something that the module imports
                raise ValueError(
                    f"There is no module {home} here: name it as `import` does, or as a file, "
                    "path/to/file.py:function."
                ) from error
    if not path.is_file():
        raise ValueError(f"There is no file {home}: name one that has the function.")
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _importable(path.resolve().parent):
        sys.modules[module.__name__] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
