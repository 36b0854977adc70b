"""The public names of TorchRL that concern experience, their arguments and methods: as installed, and as recorded.

TorchRL 0.14.1 requires tensordict < 0.15, so it is not among the development dependencies; ``torchrl_api.json`` records
what it offers. ``python -m tests.docs.torchrl_api`` writes that file anew from the TorchRL that is installed.
"""

import enum
import inspect
import json
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin

VERSION = "0.14.1"
RECORD = Path(__file__).with_suffix(".json")
# Modules whose __all__ counts, and further names of others.
MODULES = {
    "torchrl.data": None,
    "torchrl.data.replay_buffers": ["Sampler"],
    "torchrl.data.replay_buffers.scheduler": [
        "LambdaScheduler",
        "LinearScheduler",
        "ParameterScheduler",
        "SchedulerList",
        "StepScheduler",
    ],
    "torchrl.data.datasets": None,
    "torchrl.collectors": None,
    "torchrl.collectors.distributed": None,
    "torchrl.collectors.utils": ["split_trajectories"],
    "torchrl.envs": [
        "CatFrames",
        "Compose",
        "DTypeCastTransform",
        "DeviceCastTransform",
        "GymEnv",
        "MultiStepTransform",
        "ParallelEnv",
        "Reward2GoTransform",
        "RewardClipping",
        "SerialEnv",
        "SignTransform",
        "ToTensorImage",
    ],
}

Api = dict[str, dict[str, dict[str, Any]]]


def recorded() -> Api:
    """By module and name: arguments (None: not callable) and, of a class, methods with their arguments."""
    found: Api = json.loads(RECORD.read_text())
    return found


def installed() -> Api:
    """What ``recorded`` gives, of the TorchRL that is installed.

    Raises:
        ImportError: none is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensordict's deprecations, which are no business of rlx
        return {
            name: {member: _described(getattr(module, member)) for member in sorted(names or module.__all__)}
            for name, names in MODULES.items()
            for module in [import_module(name)]
        }


def _described(member: Any) -> dict[str, Any]:
    if not inspect.isclass(member):
        return {"arguments": _arguments(member) if inspect.isfunction(member) else None}
    if issubclass(member, (enum.Enum, tuple)):
        return {"arguments": None}
    return {"arguments": _of_constructor(member), "methods": _methods(member)}


def arguments_of(member: Any) -> list[str]:
    """The arguments of a function, or of a class's constructor."""
    return _of_constructor(member) if inspect.isclass(member) else _arguments(member)


def _of_constructor(cls: type) -> list[str]:
    """The arguments of a class's constructor and, where it passes on ``**kwargs``, of those above it."""
    found: list[str] = []
    for above in cls.__mro__:
        if above is not object and "__init__" in vars(above):
            signature = inspect.signature(vars(above)["__init__"])
            found += [name for name in _arguments(vars(above)["__init__"]) if name not in found]
            if inspect.Parameter.VAR_KEYWORD not in {each.kind for each in signature.parameters.values()}:
                break
    return found


def _methods(cls: type) -> dict[str, list[str]]:
    """The public methods of a class that torchrl itself defines, with their arguments; [] of a property."""
    names = [name for above in cls.__mro__ if above.__module__.startswith("torchrl") for name in vars(above)]
    return {
        name: _arguments(member) if inspect.isfunction(member := inspect.getattr_static(cls, name)) else []
        for name in sorted(set(names))
        if not name.startswith("_") and not name.isupper()
    }


def _arguments(function: Any) -> list[str]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    named = [each.name for each in parameters if each.kind not in variadic and each.name != "self"]
    # ``**options: Unpack[Options]`` are arguments too.
    unpacked: list[Any] = [
        get_args(each.annotation)[0].__annotations__
        for each in parameters
        if each.kind == inspect.Parameter.VAR_KEYWORD and get_origin(each.annotation) is Unpack
    ]
    return [*named, *(name for options in unpacked for name in options)]


def written(api: Api) -> str:
    """JSON with a line for every name."""
    modules = (
        f"{json.dumps(module)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(member)}" for name, member in names.items())
        + "\n}"
        for module, names in api.items()
    )
    return "{\n" + ",\n".join(modules) + "\n}\n"


if __name__ == "__main__":
    RECORD.write_text(written(installed()))
