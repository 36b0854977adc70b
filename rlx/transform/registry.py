"""Transforms by name, and the parser of ``NAME[:k=v,...]``."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

from rlx.errors import PluginError, TransformError
from rlx.plugins import plugins
from rlx.transform.protocol import Learner, Selection, Transform
from rlx.wording import did_you_mean


class _Transforms(Mapping[str, Any]):
    """Transforms by name; each is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        found = (plugin := plugins("rlx.transforms")[name]).load(type)
        if not is_dataclass(found):
            raise PluginError(f"{plugin} is no dataclass, whose fields are its parameters")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(plugins("rlx.transforms"))

    def __len__(self) -> int:
        return len(plugins("rlx.transforms"))


# Frozen dataclasses: their fields are the parameters. A field ``text`` gets everything after the colon.
TRANSFORMS: Mapping[str, Any] = _Transforms()
_TEXT = "text"
_KINDS: Mapping[Any, str] = {int: "a whole number", float: "a number", float | None: "a number", bool: "true or false"}


def parse(text: str) -> Transform | Learner | Selection:
    """Return the transform that a text names: ``NAME[:k=v,...]``, with the items of a list joined by ``+``.

    Raises:
        TransformError: the name or a parameter is unknown, missing or invalid.

    Example:
        >>> parse("clip_reward:low=0"), parse("sign_reward")
        (RewardClip(low=0.0, high=1.0), RewardSign())
    """
    name, _, given = text.partition(":")
    kind = TRANSFORMS.get(name)
    if kind is None:
        raise TransformError(f"transform {name!r} is unknown: {_nearest(name, list(TRANSFORMS))}")
    parameters = fields(kind)
    if any(parameter.name == _TEXT for parameter in parameters):
        values: dict[str, Any] = {_TEXT: given}
    else:
        values = _values(text, given, kind, parameters)
    missing = [one.name for one in parameters if one.name not in values and one.default is MISSING]
    if missing:
        raise TransformError(f"transform {text!r}: {missing[0]} is missing: expected {_usage(name)}")
    try:
        made: Transform | Learner | Selection = kind(**values)
    except TransformError as exc:
        raise TransformError(f"transform {text!r}: {exc}", hint=exc.hint) from exc
    return made


def described(transform: Transform | Learner | Selection) -> str:
    """Return the text of a transform, for ``parse``.

    Example:
        >>> described(parse("clip_reward:low=-2")), described(parse("sign_reward"))
        ('clip_reward:low=-2.0', 'sign_reward')
    """
    name = next((name for name in TRANSFORMS if _is_a(transform, name)), None)
    if name is None:
        return str(transform)
    values = {one.name: (getattr(transform, one.name), one.default) for one in fields(TRANSFORMS[name])}
    if _TEXT in values:
        return f"{name}:{values[_TEXT][0]}"
    given = ",".join(f"{key}={_written(value)}" for key, (value, default) in values.items() if value != default)
    return f"{name}:{given}" if given else name


def _is_a(transform: object, name: str) -> bool:
    try:
        return isinstance(transform, TRANSFORMS[name])
    except PluginError:  # of a package that nobody asked for
        return False


def _values(text: str, given: str, kind: type, parameters: Sequence[Field[Any]]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for setting in filter(None, given.split(",")):
        key, equals, value = setting.partition("=")
        if key not in {one.name for one in parameters}:
            raise TransformError(
                f"transform {text!r}: parameter {key!r} is unknown: {_nearest(key, [p.name for p in parameters])}"
            )
        if not equals or key in values:
            raise TransformError(f"transform {text!r}: {setting!r}: expected {key}=VALUE, once")
        values[key] = _value(text, key, value, hints[key])
    return values


def _value(text: str, key: str, value: str, kind: Any) -> Any:
    if kind is str:
        return value
    if kind not in _KINDS:
        return tuple(value.split("+"))
    found = (
        {"true": True, "false": False}.get(value.lower())
        if kind is bool
        else _number(value, int if kind is int else float)
    )
    if found is None:
        raise TransformError(f"transform {text!r}: {key} is {value!r}, expected {_KINDS[kind]}")
    return found


def _number(value: str, kind: type[int] | type[float]) -> float | None:
    try:
        number = kind(value)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _nearest(name: str, names: Sequence[str]) -> str:
    return did_you_mean(name, names) or (f"expected one of {', '.join(names)}" if names else "it takes none")


def _usage(name: str) -> str:
    wanted = [one.name for one in fields(TRANSFORMS[name]) if one.default is MISSING]
    return f"{name}:..." if wanted == [_TEXT] else f"{name}:{','.join(f'{one}=...' for one in wanted)}"


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
