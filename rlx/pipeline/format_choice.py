"""A format that a user names, and how it is to be read: ``torchrl:time_dim=0``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from rlx.errors import SourceError


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format and its options.

    Args:
        name: of the format; None to find it out.
        options: values by name, as they were written.

    Example:
        >>> FormatChoice.parse("torchrl:time_dim=0")
        FormatChoice(name='torchrl', options={'time_dim': '0'})
        >>> FormatChoice.parse("npz"), FormatChoice.parse(None).name
        (FormatChoice(name='npz', options={}), None)
    """

    name: str | None
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Return the choice that ``FORMAT`` or ``FORMAT:option=value,...`` means.

        Raises:
            SourceError: an option has no value.
        """
        if text is None:
            return cls(None)
        name, _, rest = text.partition(":")
        options = {}
        for part in filter(None, rest.split(",")):
            option, is_given, value = part.partition("=")
            if not (option and is_given and value):
                raise SourceError(f"{text!r}: expected FORMAT:option=value, found {part!r}")
            options[option] = value
        return cls(name, options)

    def read(self, known: Mapping[str, type[int] | type[str]]) -> dict[str, int | str]:
        """Return the options in their own types.

        Args:
            known: type of every option that the format has.

        Raises:
            SourceError: the format has no such option, or the value is not of its type.
        """
        found: dict[str, int | str] = {}
        for option, value in self.options.items():
            if option not in known:
                expected = f"expected {', '.join(known)}" if known else "it has none"
                raise SourceError(f"--from {self.name} has no option {option!r}: {expected}")
            try:
                found[option] = known[option](value)
            except ValueError as exc:
                raise SourceError(f"--from {self.name}: {option}={value}: expected a whole number") from exc
        return found
