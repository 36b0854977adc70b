"""Shell completion of datasets, games, runs and transforms."""

from collections.abc import Iterable


def datasets(incomplete: str) -> list[str]:
    """Return ids of the datasets below $RLX_HOME; the shell adds paths."""
    from rlx.home import dataset_ids

    return _beginning(dataset_ids(), incomplete)


def games(incomplete: str) -> list[str]:
    """Return the games of downloadable runs."""
    from rlx.formats.rl_unplugged.layout import GAMES

    return _beginning(GAMES, incomplete)


def runs(incomplete: str) -> list[str]:
    """Return downloadable runs: ``Pong/5``."""
    from rlx.formats.rl_unplugged.layout import GAMES, RUNS

    return _beginning((f"{game}/{run}" for game in GAMES for run in RUNS), incomplete)


def transforms(incomplete: str) -> list[str]:
    """Return names of transforms."""
    from rlx.transform.registry import TRANSFORMS

    return _beginning(TRANSFORMS, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that start with this text, ignoring case."""
    return [name for name in names if name.lower().startswith(incomplete.lower())]
