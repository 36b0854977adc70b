"""Makes ``scripts/sample_run``: a small run of Pong in RL Unplugged's layout, played at random.

    python -m scripts.make_sample

The same bytes come out every time: the emulator and the policy are seeded, and no file tells the date.
"""

from pathlib import Path

import ale_py
import cv2
import numpy as np
from numpy.typing import NDArray

from rlx.formats.rl_unplugged import shard_file
from scripts.rlu_writer import Episode, tf_example, write_shard

SAMPLE_RUN = Path(__file__).parent / "sample_run"
GAME, RUN = "Pong", 5
# Steps at which each shard's episodes are cut; None plays to the end.
SHARDS: tuple[tuple[int | None, ...], ...] = ((None,), (300, 200, 100), (None, 150))
_FRAMESKIP, _STICKY, _SEED = 4, 0.25, 5


class Emulator:
    """The Arcade Learning Environment with the DQN Replay Dataset's preprocessing."""

    def __init__(self, game: str, seed: int) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setInt("random_seed", seed)
        self._ale.setFloat("repeat_action_probability", _STICKY)
        self._ale.loadROM(str(ale_py.roms.get_rom_path(game)))
        self._actions = self._ale.getMinimalActionSet()
        self._policy = np.random.default_rng(seed)

    def play(self, checkpoint: int, number: int, max_steps: int | None) -> Episode:
        """One episode: to its end, or cut after that many steps."""
        self._ale.reset_game()
        observations = [self._frame([self._screen()])]
        actions: list[int] = []
        rewards: list[float] = []
        while not self._ale.game_over() and (max_steps is None or len(actions) < max_steps):
            actions.append(int(self._policy.integers(len(self._actions))))
            reward, screens = self._step(actions[-1])
            rewards.append(float(np.clip(reward, -1, 1)))
            observations.append(self._frame(screens))
        terminated = self._ale.game_over()
        return Episode(
            checkpoint,
            number,
            np.stack(observations),
            np.array([*actions, 0], np.int64),
            np.array([*rewards, 0], np.float32),
            terminated,
        )

    def _step(self, action: int) -> tuple[int, list[NDArray[np.uint8]]]:
        reward, screens = 0, []
        for _ in range(_FRAMESKIP):
            reward += self._ale.act(self._actions[action])
            screens.append(self._screen())
            if self._ale.game_over():
                break
        return reward, screens[-2:]

    def _screen(self) -> NDArray[np.uint8]:
        screen: NDArray[np.uint8] = self._ale.getScreenGrayscale()
        return screen

    def _frame(self, screens: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        brightest = np.max(screens, axis=0)
        return np.asarray(cv2.resize(brightest, (84, 84), interpolation=cv2.INTER_AREA), np.uint8)


def main() -> None:
    """Writes the sample run."""
    emulator = Emulator("pong", _SEED)
    for shard, cuts in enumerate(SHARDS):
        episodes = [emulator.play(shard, number, cut) for number, cut in enumerate(cuts)]
        path = SAMPLE_RUN / shard_file(GAME, RUN, shard)
        write_shard(path, (tf_example(episode.features()) for episode in episodes))
        steps = [len(episode.actions) - 1 for episode in episodes]
        print(f"{path.name}: episodes of {steps} steps, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
