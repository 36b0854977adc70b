"""URLs as they may be shown and recorded: without user names, passwords, tokens and signatures."""

import re

# Who is named may hold a slash that should have been quoted: then what follows the first colon is no port.
_WHO = r"(?:[^/\s@:]*:(?!\d*(?:[/?#\s'\"]|$))[^\s'\"]*@|[^/\s'\"]*@)?"
_URL = re.compile(rf"(?<=\w)://{_WHO}([^\s?#'\"<>]*)(?:[?#][^\s'\"<>]*)?")
# Of a URL without its host, as libraries quote it.
_SIGNED = re.compile(
    r"([?&](?:x-(?:amz|goog|ms)-[\w-]+|[\w.-]*(?:token|signature|sig|secret|password|credential|key))=)[^&\s'\"]+", re.I
)
HIDDEN = "***"


def without_secrets(text: str) -> str:
    """Return a text in whose URLs nobody is named and nothing is signed.

    Example:
        >>> without_secrets("https://me:secret@host/set?token=secret is no directory")
        'https://host/set is no directory'
        >>> without_secrets("https://me:a/b@host/set"), without_secrets("s3://bucket/a@b")
        ('https://host/set', 's3://bucket/a@b')
        >>> without_secrets("no answer to /set?page=1&X-Amz-Signature=secret")
        'no answer to /set?page=1&X-Amz-Signature=***'
    """
    if "://" in text:
        text = _URL.sub(r"://\1", text)
    return _SIGNED.sub(rf"\1{HIDDEN}", text) if "=" in text else text


class QuotedError(Exception):
    """An error of another library, without the secrets in what it says."""


def harmless(exc: BaseException) -> BaseException:
    """Return an exception that may be shown as the cause of another: itself, unless it quotes secrets."""
    shown = without_secrets(str(exc))
    return exc if shown == str(exc) else QuotedError(f"{type(exc).__name__}: {shown}")
