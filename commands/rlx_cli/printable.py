"""Sanitising of untrusted text for a terminal: control characters are escaped, passwords hidden."""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from rlx.secrets_in_urls import HIDDEN, without_secrets

# Of Unicode: control characters, what changes the direction of text, line separators, and lone surrogates, which
# stand for bytes of a file name that are not UTF-8. Tabs and line feeds are what lines are made of.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LINES = re.compile("[\t\n]")
_SHORTEST = 4  # a shorter secret would stand in ordinary words


def printable(text: str) -> str:
    """Return text with control characters, except tabs and line feeds, escaped.

    Example:
        >>> printable("a\x1b[31mred\\u202e")
        'a\\\\x1b[31mred\\\\u202e'
    """
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """Return text with control characters, including tabs and line feeds, escaped.

    Example:
        >>> one_line("a\\nerror: b")
        'a\\\\nerror: b'
    """
    return _LINES.sub(_escape, printable(text))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class Secrets:
    """Passwords and signatures in the URLs of a command line, to be hidden.

    Args:
        arguments: of the command line.

    Example:
        >>> secrets = Secrets(["--source", "https://me:pass%20word@host/set?sig=a1b2c3"])
        >>> secrets.hidden("no /set?sig=a1b2c3 for pass word at https://you@other/x?y=z")
        'no /set?sig=*** for *** at https://other/x'
    """

    def __init__(self, arguments: Iterable[str]) -> None:
        found: set[str] = set()
        for argument in arguments:
            _, separator, rest = argument.partition("://")
            if separator:
                found.update(_secrets_of(f"x://{rest}"))
        self._found = sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)

    def hidden(self, text: str) -> str:
        """Return text with the secrets hidden, and URLs without credentials and queries."""
        text = without_secrets(text)
        for secret in self._found:
            text = text.replace(secret, HIDDEN)
        return text

    def hidden_in(self, document: Any) -> Any:
        """Return a JSON document with the secrets hidden in every text."""
        if isinstance(document, str):
            return self.hidden(document)
        if isinstance(document, dict):
            return {self.hidden_in(key): self.hidden_in(value) for key, value in document.items()}
        return [self.hidden_in(value) for value in document] if isinstance(document, list | tuple) else document


def _secrets_of(url: str) -> set[str]:
    try:
        parts = urlsplit(url)
        password = parts.password or ""
    except ValueError:
        return set()
    values = [value for _, value in parse_qsl(parts.query)]
    return {password, unquote(password), parts.query, parts.fragment, *values}
