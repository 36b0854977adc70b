"""RL Unplugged's Atari episodes.

``reader.find_runs`` finds the runs below a directory.
"""

import re

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

LAYOUT = (
    "expected RL Unplugged's layout: GAME/run_R-IIIII-of-NNNNN, a gzipped TFRecord of one episode per example with "
    "observations (PNG), actions, clipped_rewards and discounts, T of each"
)
URL = "https://storage.googleapis.com/rl_unplugged/atari_episodes_ordered"
# The same runs in files of the same names; the order of their episodes is unknown.
UNORDERED_URL = "https://storage.googleapis.com/rl_unplugged/atari_episodes"
RUNS = (1, 2, 3, 4, 5)
_GAMES = """
Alien Amidar Assault Asterix Atlantis BankHeist BattleZone BeamRider Boxing Breakout Carnival Centipede
ChopperCommand CrazyClimber DemonAttack DoubleDunk Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero
IceHockey Jamesbond Kangaroo Krull KungFuMaster MsPacman NameThisGame Phoenix Pong Pooyan Qbert Riverraid
RoadRunner Robotank Seaquest SpaceInvaders StarGunner TimePilot UpNDown VideoPinball WizardOfWor YarsRevenge
Zaxxon
"""
_GAMES_MISSING = """
AirRaid Asteroids Berzerk Bowling ElevatorAction JourneyEscape MontezumaRevenge Pitfall PrivateEye Skiing
Solaris Tennis Tutankham Venture
"""
GAMES = tuple(_GAMES.split())
# Games of the DQN Replay Dataset that RL Unplugged left out.
GAMES_MISSING = tuple(_GAMES_MISSING.split())
# Those that are not read follow from others: both rewards are clipped, and the returns are their sums.
FEATURES = frozenset(
    (
        *("actions", "checkpoint_idx", "clipped_episode_return", "clipped_rewards", "discounts", "episode_idx"),
        *("episode_return", "observations", "unclipped_rewards"),
    )
)
_FEWER_SHARDS = frozenset({"Carnival", "Gravitar", "StarGunner"})
FILE = re.compile(r"run_([1-5])-(\d{5})-of-(\d{5})")


def is_ordered(base: str) -> bool:
    """Return whether the episodes below a URL or directory are in the order of play, according to its name.

    Example:
        >>> is_ordered(URL), is_ordered(UNORDERED_URL), is_ordered("gs://mirror/rlu")
        (True, False, True)
    """
    return base.partition("?")[0].rstrip("/").rpartition("/")[2] != "atari_episodes"


def num_shards(game: str) -> int:
    """Return the number of shards of each run of a game: 50, or 49 for three games."""
    return 49 if game in _FEWER_SHARDS else 50


def shard_file(game: str, run: int, shard: int) -> str:
    """Return the name of a shard's file below the root.

    Example:
        >>> shard_file("Pong", 5, 0)
        'Pong/run_5-00000-of-00050'
    """
    return f"{game}/run_{run}-{shard:05d}-of-{num_shards(game):05d}"


FORMAT = Format(
    "rlu",
    __name__,
    reads="runs",
    layout=LAYOUT,
    signs=tuple(Sign(files=(f"{'*/' * depth}run_[1-5]-*-of-*",)) for depth in range(3)),
)
