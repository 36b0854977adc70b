"""Devices of torch: which are here, and those that the threads of this process use."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from rlx.errors import MissingExtraError, OptionError

try:
    import torch
except ModuleNotFoundError as exc:
    raise MissingExtraError.of("tensors need torch", "torch", "torch") from exc

P = ParamSpec("P")
T = TypeVar("T")


def in_use() -> torch.device | None:
    """Return the accelerator that this process uses, without an index; asking one that nobody uses takes memory."""
    try:
        here = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6, on a machine without an accelerator
        return None
    if here is None:
        return None
    is_initialized = getattr(torch.get_device_module(here), "is_initialized", torch.accelerator.is_available)
    return here if is_initialized() else None


def available() -> torch.device | None:
    """Return the accelerator of this machine, without an index; None if torch can use none."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def device_named(device: torch.device | str) -> torch.device:
    """Return the device of a name; it may be missing here.

    Raises:
        OptionError: torch knows no device of this name.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as exc:
        raise OptionError(f"device {device!r}: expected one of torch's, such as 'cpu' or 'cuda:1'") from exc


def present(device: torch.device | str) -> torch.device:
    """Return a device with its number: "cuda" alone is another one in a thread with another current device.

    Raises:
        OptionError: this machine, or this build of torch, lacks it.
    """
    named = device_named(device)
    try:
        return torch.empty(0, device=named).device
    except (RuntimeError, AssertionError, NotImplementedError) as exc:
        said = str(exc).partition("\n")[0]
        raise OptionError(f"device {str(named)!r} is missing here: {said}") from exc


def as_here(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function for another thread, which then has this thread's device and stream.

    A new thread has device 0 and its default stream. On these, ``.to("cuda")`` would copy to the GPU of another rank,
    and to one stream while the user reads on another.
    """
    here = in_use()
    if here is None or here.type == "mps":  # which has one device, and one stream
        return function
    stream = torch.accelerator.current_stream()

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> T:
        before = torch.accelerator.current_stream()
        torch.accelerator.set_stream(stream)  # and its device
        try:
            return function(*args, **options)
        finally:
            torch.accelerator.set_stream(before)

    return run
