"""Checks of rewards: shifted by a step, clipped or rounded."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.checks.check import Finding, Severity, Tally, Window
from rlx.checks.values import is_picture
from rlx.schema import Schema

_MIN_EPISODES = 5
_MAX_ELSEWHERE = 0.05
_MIN_EVENTS, _MAX_EVENTS = 8, 256
_MIN_CALM, _MAX_CALM, _CALM_A_WINDOW = 128, 2048, 256
_LAGS = (-2, -1, 0, 1, 2)
_REACH = 3
# Calibrated on fifteen Atari games; see RewardLag.
_SLOW = 0.02  # a pixel that changes in fewer of the steps without reward may be part of a display
_CHANCE = 0.1  # what changes less often at a lag is no display
_MIN_STRENGTH = 2.0  # pixels
_UNCLEAR, _EARLIER, _ABSENT = 0.25, 0.3, 0.2  # of the strongest lag
_EXACT_FLOAT32 = 2.0**24
# Atari games whose smallest reward is larger than 1: where all are 1, they were clipped.
_GAMES = """
Alien Asterix Assault BankHeist BattleZone BeamRider ChopperCommand CrazyClimber DemonAttack Frostbite Gopher Gravitar
Hero Jamesbond Kangaroo KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix PrivateEye Qbert Riverraid
RoadRunner Seaquest Solaris SpaceInvaders StarGunner TimePilot UpNDown WizardOfWor YarsRevenge Zaxxon
"""
# Rewards that pile up at an extreme, when these many next to it, within this share of the range, are rare.
_MIN_VALUES, _NEAR, _CLOSE, _MIN_PILE, _MAX_VALUES = 40, 5, 0.1, 10, 2**12
_LEAST = frozenset(_GAMES.split())


class FirstRewards:
    """A first reward that is the same in all episodes and rare elsewhere: rewards stored a step late."""

    def __init__(self) -> None:
        self._first: NDArray[np.generic] | None = None
        self._episodes = self._elsewhere = self._same_elsewhere = 0
        self._is_one_value = True

    def see(self, window: Window) -> None:
        """Process the next steps."""
        reward, position = window["reward"], window.position
        segment = window.trajectory - window.first
        first = (position == 0) & window.block.from_reset[segment]
        starts = reward[first]
        if len(starts):
            self._first = starts[:1].copy() if self._first is None else self._first
            self._is_one_value &= bool((starts == self._first).all())
            self._episodes += len(starts)
        if self._first is not None:
            rest = reward[position > 0]
            self._elsewhere += len(rest)
            self._same_elsewhere += int((rest == self._first).sum())

    def findings(self) -> Iterator[Finding]:
        """Yield a finding if all episodes begin with the same, otherwise rare, reward."""
        if self._first is None or not self._is_one_value or self._episodes < _MIN_EPISODES:
            return
        if self._elsewhere >= self._episodes and self._same_elsewhere < _MAX_ELSEWHERE * self._elsewhere:
            yield _shifted(
                f"every episode begins with reward {self._first[0]:g}, which is rare elsewhere", self._episodes, "late"
            )


@dataclass(slots=True)
class _DisplayChanges:
    """How often each number of an observation changed at each lag from a reward, and in steps far from any.

    Args:
        around: [lags, numbers] how often each changed in the step at each lag.
        calm: [numbers] how often each changed in steps far from any reward.
    """

    events: int = 0
    around: NDArray[np.int64] | None = None
    calm_steps: int = 0
    calm: NDArray[np.int64] | None = None

    def strength(self) -> dict[int, float] | None:
        """Return how many pixels of a display change at each lag; None without enough steps."""
        if self.events < _MIN_EVENTS or self.calm_steps < _MIN_CALM or self.around is None or self.calm is None:
            return None
        slow = self.calm < _SLOW * self.calm_steps
        rates = self.around[:, slow] / self.events
        return dict(zip(_LAGS, np.clip(rates - _CHANCE, 0, None).sum(axis=1).tolist(), strict=True))


class RewardLag:
    """Rewards that come a step before or after the display that shows them.

    The digits of a score seldom change, and when they do it is in the observation that follows the rewarded step, in
    some games one later. If they change before the rewarded step, or not in it at all, rewards are shifted. Games
    without a display, or where much else changes around rewards, give no answer.
    """

    def __init__(self, schema: Schema) -> None:
        self._changes = {name: _DisplayChanges() for name, field in schema.fields.items() if is_picture(field)}

    def see(self, window: Window) -> None:
        """Process the next steps."""
        if not self._changes or window.block.steps <= 2 * _REACH:
            return
        given = window["reward"] != 0
        alone, calm = ~given, ~given
        for distance in range(1, _REACH + 1):
            for step in (-distance, distance):
                # Steps near a reward, or near another trajectory, do not count.
                near = np.roll(given, step)
                same = np.roll(window.trajectory, step) == window.trajectory
                same[:distance] = same[-distance:] = False
                alone, calm = (alone | given) & ~near & same, calm & ~near & same
        events, calm_steps = np.flatnonzero(alone & given), np.flatnonzero(calm)
        row = np.arange(window.block.steps) + window.trajectory - window.first  # of the observation before each step
        for name, found in self._changes.items():
            rows = window[name].reshape(len(window[name]), -1)
            for step in events[: _MAX_EVENTS - found.events].tolist():
                near_rows = rows[row[step] + _LAGS[0] : row[step] + _LAGS[-1] + 2]
                changed = near_rows[1:] != near_rows[:-1]
                found.around = changed.astype(np.int64) if found.around is None else found.around + changed
                found.events += 1
            few = calm_steps[:: max(1, len(calm_steps) // _CALM_A_WINDOW)]
            for step in few[: min(_CALM_A_WINDOW, _MAX_CALM - found.calm_steps)].tolist():
                changed = rows[row[step] + 1] != rows[row[step]]
                found.calm = changed.astype(np.int64) if found.calm is None else found.calm + changed
                found.calm_steps += 1

    def findings(self) -> Iterator[Finding]:
        """Yield displays that change a step before or after the reward."""
        for name, found in self._changes.items():
            at = found.strength()
            if at is None:
                continue
            peak = max(at.values())
            if peak < _MIN_STRENGTH or at[-2] > _UNCLEAR * peak:
                continue
            if at[-1] > _EARLIER * peak:
                yield _shifted(f"{name} changes a step before them", found.events, "late")
            elif at[0] < _ABSENT * peak:
                yield _shifted(f"{name} changes a step after them", found.events, "early")


class ClippedRewards:
    """Rewards that were clipped to their sign, or that lost digits.

    Args:
        name: of the dataset or its environment: an Atari game is known by it.
    """

    def __init__(self, schema: Schema, notes: Mapping[str, Any], name: str) -> None:
        self._dtype = schema["reward"].dtype
        self._is_noted = "clip" in str(notes.get("rewards", ""))
        words = name.replace("/", " ").replace("-", " ").replace(":", " ").split()
        self._game = next((word for word in words if word in _LEAST), None)
        self._signs, self._others = 0, 0
        self._large = Tally()
        self._values: Counter[float] = Counter()

    def see(self, window: Window) -> None:
        """Process the next steps."""
        reward = window["reward"]
        self._count(reward[np.isfinite(reward)].astype(np.float64))
        given = reward[reward != 0]
        signs = int((np.abs(given) == 1).sum())
        self._signs, self._others = self._signs + signs, self._others + len(given) - signs
        if self._dtype in ("float16", "float32"):
            limit = _EXACT_FLOAT32 if self._dtype == "float32" else 2.0**11
            steps = np.flatnonzero(np.isfinite(reward) & (np.abs(reward.astype(np.float64)) >= limit))
            self._large.add(window.trajectory[steps], window.position[steps])

    def _count(self, rewards: NDArray[np.float64]) -> None:
        """Count values; only the extremes once there are too many."""
        values, counts = np.unique(rewards, return_counts=True)
        self._values.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(self._values) > _MAX_VALUES:
            ordered = sorted(self._values)
            kept = {*ordered[: _MAX_VALUES // 4], *ordered[-_MAX_VALUES // 4 :]}
            self._values = Counter({value: count for value, count in self._values.items() if value in kept})

    def _bounds(self) -> list[float]:
        """Return the extremes at which rewards pile up although those close to them are all different."""
        ordered = sorted(self._values)
        if len(ordered) < _MIN_VALUES:
            return []
        found = []
        for bound, near in ((ordered[0], ordered[1 : _NEAR + 1]), (ordered[-1], ordered[-_NEAR - 1 : -1])):
            is_close = max(abs(value - bound) for value in near) < _CLOSE * (ordered[-1] - ordered[0])
            usual = sorted(self._values[value] for value in near)[len(near) // 2]
            if is_close and self._values[bound] >= max(_MIN_PILE, 4 * usual):
                found.append(bound)
        return found

    def findings(self) -> Iterator[Finding]:
        """Yield findings of clipped or rounded rewards."""
        if bounds := self._bounds():
            yield Finding(
                "clipped",
                Severity.WARNING,
                f"rewards pile up at {' and '.join(f'{bound:g}' for bound in bounds)}, as clipped ones do",
                count=sum(self._values[bound] for bound in bounds),
                why="what was beyond is lost: returns are too small or too large",
                remedy="record rewards as the environment gives them, and clip them in learning",
                field="reward",
            )
        elif self._is_noted or (self._game and self._signs >= _MIN_EVENTS and not self._others):
            known = "as noted" if self._is_noted else f"{self._game} gives no reward of 1"
            yield Finding(
                "clipped",
                Severity.WARNING,
                f"rewards were clipped ({known})",
                count=self._signs,
                why="returns are not scores: compare them with other clipped returns only",
                remedy="usual for training; for evaluation, get unclipped rewards",
                field="reward",
            )
        if self._large.count:
            yield Finding(
                "rounded",
                Severity.WARNING,
                f"rewards are so large that {self._dtype} rounds them to whole numbers or more",
                why="differences between rewards are lost",
                remedy="record rewards as float64, or scale them before they are stored",
                field="reward",
                **self._large.of(),
            )


def _shifted(what: str, count: int, when: str) -> Finding:
    return Finding(
        "shifted",
        Severity.ERROR,
        f"rewards look a step {when}: {what}",
        count=count,
        why="every action is credited with the reward of its neighbour",
        remedy="shift the rewards back where the data were recorded; a step's reward is the result of its action",
        field="reward",
    )
