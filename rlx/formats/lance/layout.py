"""Names in a Lance dataset, and the package that reads and writes it."""

from types import ModuleType

from rlx.errors import MissingExtraError

VERSIONS, DATA = "_versions", "data"
LAYOUT = (
    "expected a Lance dataset of a row a step: columns observation, action, next/reward, next/terminated, "
    "next/truncated, numbers or lists of as many numbers in every row; --from lance:observation=NAME,... names others"
)


def lance() -> ModuleType:
    """Return the package ``lance``.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import lance  # noqa: PLC0415  (an extra)
    except ImportError as exc:
        raise MissingExtraError("lance needs pylance, which is not installed", hint="pip install 'rlx[lance]'") from exc
    module: ModuleType = lance
    return module
