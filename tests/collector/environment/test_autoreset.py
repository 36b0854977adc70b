"""Autoreset modes of vector environments: declared, shown by their infos, given as an option, or refused."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

import rlx
from rlx.collector import Collector, MultiCollector
from rlx.engine.local_actors import InlineActors
from rlx.errors import CollectError

LENGTHS = np.array([2, 3])
MODES = list(AutoresetMode)


class Lanes(VectorEnv[Any, Any, Any]):
    """Two environments of 2 and 3 steps an episode that count their steps, by a mode that they need not declare.

    Args:
        does: the mode that it follows.
        declares: the mode that its metadata declares.
        has_final: whether its infos have ``final_obs`` in mode SAME_STEP.
        as_lists: whether all that it gives is in lists.
    """

    num_envs = 2
    single_observation_space = spaces.Box(0, 9, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(
        self, does: AutoresetMode, declares: Any = None, *, has_final: bool = True, as_lists: bool = False
    ) -> None:
        self.metadata: dict[str, Any] = {} if declares is None else {"autoreset_mode": declares}
        self._does, self._has_final, self._as_lists = does, has_final, as_lists
        self._t = np.zeros(2, int)
        self._ended = np.zeros(2, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        del seed
        which = (options or {}).get("reset_mask", np.ones(2, bool))
        self._t[which], self._ended[which] = 0, False
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        del actions
        is_reset = self._ended & (self._does == AutoresetMode.NEXT_STEP)
        self._t = np.where(is_reset, 0, self._t + 1)
        ended = (self._t == LENGTHS) & ~is_reset
        info: dict[str, Any] = {"t": self._t.copy()}
        if self._does == AutoresetMode.SAME_STEP and ended.any():
            if self._has_final:
                info["final_obs"] = self._seen()
            self._t = np.where(ended, 0, self._t)
        self._ended = ended
        given = self._seen(), np.ones(2), ended, np.zeros(2, bool)
        return (*(map(np.ndarray.tolist, given) if self._as_lists else given), info)

    def _seen(self) -> Any:
        return self._t[:, None].astype(np.float32)


def steps_of(make: Any, **options: Any) -> Any:
    with Collector(make, frames_per_batch=24, total_frames=24, **options) as collector:
        return collector.next()


def assert_right(batch: Any) -> None:
    t = np.arange(12)
    for env, length in enumerate(LENGTHS):
        assert batch["observation"][env, :, 0].tolist() == (t % length).tolist()
        assert batch["next", "observation"][env, :, 0].tolist() == (t % length + 1).tolist()
        assert batch["next", "done"][env, :, 0].tolist() == ((t + 1) % length == 0).tolist()


@pytest.mark.parametrize("as_lists", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_declared_mode(mode: AutoresetMode, as_lists: bool) -> None:
    for declared in (mode, mode.value, mode.name):
        assert_right(steps_of(lambda declared=declared: Lanes(mode, declared, as_lists=as_lists)))


def test_infos_show_the_mode(caplog: Any) -> None:
    assert_right(steps_of(lambda: Lanes(AutoresetMode.SAME_STEP)))
    assert caplog.messages == [
        "Lanes does not declare its autoreset mode: taken for SAME_STEP, as its infos have final_obs"
    ]


@pytest.mark.parametrize("mode", MODES)
def test_what_neither_declares_nor_shows_its_mode(mode: AutoresetMode) -> None:
    def make() -> Lanes:
        return Lanes(mode, has_final=False)

    expected = (
        "Lanes does not declare its autoreset mode, .*: an episode ended without final_obs, in step 2 of environment 0"
    )
    with pytest.raises(CollectError, match=expected) as error:
        steps_of(make)
    assert "`autoreset` next-step" in str(error.value.hint)
    assert 'metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}' in str(error.value.hint)


@pytest.mark.parametrize(("option", "mode"), [("next-step", MODES[0]), ("disabled", MODES[2]), ("same-step", MODES[1])])
def test_a_mode_given_as_an_option(option: Any, mode: AutoresetMode, tmp_path: Any) -> None:
    def make() -> Lanes:
        return Lanes(mode)

    assert_right(steps_of(make, autoreset=option))
    with MultiCollector(
        [make], frames_per_batch=24, total_frames=24, autoreset=option, actors=InlineActors()
    ) as collector:
        batch: Any = collector.next()
        assert_right(batch[0])
    report = rlx.collect(make, envs=2, steps=24, output=tmp_path / "set", autoreset=option)
    found: Any = rlx.open(report.dataset)[:]
    assert set(found["next", "observation"][found["next", "done"]].tolist()) == {2.0, 3.0}


def test_an_option_that_contradicts_the_declared_mode() -> None:
    expected = "Lanes is in autoreset mode next-step, which `autoreset` same-step contradicts"
    with pytest.raises(CollectError, match=expected):
        steps_of(lambda: Lanes(MODES[0], MODES[0]), autoreset="same-step")
    with pytest.raises(CollectError, match="CartPole-v1 is in autoreset mode same-step"):
        steps_of("CartPole-v1", autoreset="disabled")
    with pytest.raises(CollectError, match="`autoreset` 'never': expected next-step, same-step, disabled"):
        steps_of("CartPole-v1", autoreset="never")
    with pytest.raises(CollectError, match="Lanes declares autoreset mode 'never': expected"):
        steps_of(lambda: Lanes(MODES[0], "never"))


@pytest.mark.parametrize("declared", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_infos_that_contradict_the_mode(declared: AutoresetMode) -> None:
    with pytest.raises(
        CollectError, match=r"infos have another final_obs than it returned, .* in step 2 of environment 0"
    ):
        steps_of(lambda: Lanes(AutoresetMode.SAME_STEP, declared))


def test_an_episode_that_ends_in_its_reset() -> None:
    class Ending(Lanes):
        def step(self, actions: Any) -> Any:
            observation, reward, *_, info = super().step(actions)
            return observation, reward, np.ones(2, bool), np.zeros(2, bool), info

    with pytest.raises(CollectError, match="ends an episode in step 2 of environment 0, which only resets it"):
        steps_of(lambda: Ending(AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP))


def test_a_reset_of_more_than_it_should_reset() -> None:
    class Together(Lanes):
        def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
            del options
            return super().reset(seed=seed)

    with pytest.raises(
        CollectError, match=r"has reset environment 1 too: expected only those of options\['reset_mask'\]"
    ):
        steps_of(lambda: Together(AutoresetMode.DISABLED, AutoresetMode.DISABLED))


@pytest.mark.parametrize(
    ("final", "message"),
    [
        (None, "ended an episode without the final_obs .*, in step 2 of environment 0"),
        (np.full(2, None, object), "ended an episode without the final_obs"),
        ([], "gave final_obs that is not one observation for each of 2 environments: IndexError"),
        (3.0, "gave final_obs that is not one observation for each of 2 environments: TypeError"),
        (np.zeros((2, 4), np.float32), r"gave observation of float32\[4\], expected float32\[1\]"),
        (np.full((2, 1), "a"), r"gave observation of <U1\[1\], expected float32\[1\]"),
    ],
)
def test_last_observations_that_are_none(final: Any, message: str) -> None:
    class Wrong(Lanes):
        def step(self, actions: Any) -> Any:
            *outcome, info = super().step(actions)
            return (*outcome, info if final is None else {**info, "final_obs": final})

    with pytest.raises(CollectError, match=message):
        steps_of(lambda: Wrong(AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP, has_final=False))


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ((np.zeros((2, 1), np.float32), np.ones(3)), r"gave reward of float64\[3\], expected \[2\], in step 1"),
        ((np.zeros((2, 1), np.float32), ["1", "2"]), r"gave reward of <U1\[2\], expected \[2\]"),
        (
            (np.zeros((2, 1), np.float32), [1, 2], [0, 2]),
            "gave terminated 2, expected True or False, in step 1 of .* 1",
        ),
        ((np.zeros((2, 1), np.float32), [1, 2], [0, None]), r"gave terminated of object\[2\]"),
        ((np.zeros((3, 1), np.float32),), r"gave observation of float32\[3, 1\], expected float32\[2, 1\]"),
    ],
)
def test_results_of_another_shape_or_kind(results: Any, message: str) -> None:
    class Wrong(Lanes):
        def step(self, actions: Any) -> Any:
            return (*results, *super().step(actions)[len(results) :])

    with pytest.raises(CollectError, match=message):
        steps_of(lambda: Wrong(AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP))


def test_a_reset_of_all_into_the_same_array_is_refused() -> None:
    class Eager(Lanes):
        seen = np.zeros((2, 1), np.float32)

        def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
            del options
            return super().reset(seed=seed)

        def _seen(self) -> Any:
            self.seen[:, 0] = self._t
            return self.seen

    with pytest.raises(CollectError, match="has reset environment 1 too"):
        steps_of(lambda: Eager(AutoresetMode.DISABLED, AutoresetMode.DISABLED))
