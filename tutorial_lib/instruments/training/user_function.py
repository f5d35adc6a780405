"""The user's own function as a model's name, as in `train.py:make_step`."""

import ast
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

from tutorial_lib.instruments.training.fields import RecipeFields

_NAME = re.compile(r"(?P<home>.+):(?P<function>[A-Za-z_]\w*)")

# Shown in help, in README and in tonight, and by each refusal that it cures.
SAMPLE = """\
def make_loss(micro_batch=1):
    model = MyModel()
    images = torch.randn(micro_batch, 3, 224, 224)
    labels = torch.zeros(micro_batch, dtype=torch.long)
    return lambda: F.cross_entropy(model(images), labels), model
"""


def is_function(name: str) -> bool:
    """Tell whether a model's name is that of a function, `file.py:f` or `package.module:f`.

    Raises:
        ValueError: When it is a file alone; the message lists the functions that it has.
    """
    if name.endswith(".py"):
        raise ValueError(_without_function(Path(name)))
    return _NAME.fullmatch(name) is not None


def takes_micro_batch(name: str) -> bool:
    """Tell whether a name is that of a function with a parameter `micro_batch`, run before."""
    if not is_function(name):
        return False
    home, _, function = name.rpartition(":")
    module = sys.modules.get(f"own_{Path(home).stem}" if home.endswith(".py") else home)
    return "micro_batch" in inspect.signature(getattr(module, function)).parameters


def _without_function(path: Path) -> str:
    """Say which functions a file has. It is read and not imported: it may begin to train."""
    if not path.is_file():
        return f"There is no file {path}: name one that has the function, as in train.py:make_loss."
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as error:
        return f"{path} is not valid Python ({error}): correct it first."
    found = [part.name for part in body if isinstance(part, ast.FunctionDef)]
    classes = [part.name for part in body if isinstance(part, ast.ClassDef)]
    if not found:
        return f"{path} has no function, but one is needed. {_add(path, *classes[-1:])}"
    names = ", ".join(f"{path}:{name}" for name in found)
    return f"{path} is a file: name a function in it, too. It has {names}."


def _add(home: Path | str, model: str = "MyModel") -> str:
    """Say which lines to add to a file so that its model can be trained."""
    lines = SAMPLE.replace("MyModel", model)
    return f"Add these lines, with your own batch and loss, and name {home}:make_loss:\n\n{lines}"


def build(recipe: RecipeFields, device: torch.device | str) -> tuple[Any, ...]:
    """Call the function that a recipe names, with those choices that it has parameters for.

    `micro_batch`, `seq`, `size`, `device` and the overrides are handed on by name.

    Returns:
        Step, model and optimizer; or loss (a function that runs forward) and model.

    Raises:
        ValueError: When there is no such file, module or function, when it does not take what was
            asked for, or returns something else; or when it is to be divided over ranks.
    """
    name = recipe.model
    if recipe.shard is not None:
        raise ValueError(
            f"{name} is a function, but shard (={recipe.shard}) is for published models and "
            "config.json: divide the model in the function, and predict it inside ranks.pretend."
        )
    function = _function(name)
    taken = inspect.signature(function).parameters
    asked = {"micro_batch": recipe.micro_batch, "seq": recipe.seq, "size": recipe.size}
    asked |= recipe.overrides
    given: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    given["device"] = device
    given = {key: value for key, value in given.items() if key in taken}
    is_model = inspect.isclass(function) and issubclass(function, nn.Module)
    for key, parameter in () if is_model else taken.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and key not in given and not variadic:
            raise ValueError(
                f"{name} has a parameter {key} without a default: call it micro_batch if it is "
                f"the number of samples, give it a default, or pass it with --set {key}=VALUE."
            )
    made = function if is_model else function(**given)
    if is_model or isinstance(made, nn.Module):
        cls = getattr(made, "__name__", type(made).__name__)
        raise ValueError(
            f"{name} {'is the class' if is_model else 'returns a'} {cls}, and nothing says what "
            "it is trained on. " + _add(name.rpartition(":")[0], cls)
        )
    for key in asked:
        if key not in taken and asked[key] not in (None, 1):
            raise ValueError(
                f"{name} takes no {key}, but {key} (={asked[key]}) was asked for: give the "
                f"function a parameter {key}, or leave it out."
            )
    if isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[1], nn.Module):
        if isinstance(made[-1], list | tuple | dict):
            raise ValueError(
                f"{name} returns its optimizers in a {type(made[-1]).__name__}, but one is needed: "
                "return any of them. The others that the step calls are counted as well."
            )
        return made
    kinds = [type(part).__name__ for part in (made if isinstance(made, tuple) else (made,))]
    raise ValueError(
        f"{name} returns {', '.join(kinds)}: return step, model and optimizer; or loss (a function "
        "that runs forward) and model. " + _add(name.rpartition(":")[0])
    )


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
