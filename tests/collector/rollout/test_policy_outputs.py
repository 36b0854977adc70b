"""Everything that a policy writes is kept, and its state is carried."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential

from rlx.collector import Collector, SerialEnv
from rlx.collector.environment.gym_env import open_environment
from rlx.collector.policy.protocol import FunctionPolicy, Situation
from rlx.collector.policy.tensordict import TensorDictPolicy
from rlx.collector.rollout.loop import Rollout
from rlx.errors import CollectError
from tests.collector.environments import Counter
from tests.collector.memory import Head, Remembering, actor, arrays, counting, recurrent
from tests.collector.walks import Walk

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


def lanes(mode: AutoresetMode = AutoresetMode.SAME_STEP, count: int = 2) -> Any:
    return SyncVectorEnv([partial(Walk, lane) for lane in range(count)], autoreset_mode=mode)


def collected(policy: Any, source: Any = lanes, **options: Any) -> list[Any]:
    torch.manual_seed(3)
    with Collector(source, policy, **{"frames_per_batch": 40, "total_frames": 120, **options}) as collector:
        return list(collector)


def joined(batches: list[Any]) -> Any:
    return torch.cat(batches, -1)


def test_an_actor_keeps_its_log_probs() -> None:
    policy = actor()
    for batch in collected(policy):
        assert batch["action_log_prob"].shape == (2, 20)
        assert batch["logits"].dtype == torch.float32
        expected = policy[0](TensorDict({"observation": batch["observation"]}, batch.shape))["logits"]
        assert torch.allclose(batch["logits"], expected, atol=1e-5)
        log_probs = expected.log_softmax(-1).gather(-1, batch["action"][..., None])[..., 0]
        assert torch.allclose(batch["action_log_prob"], log_probs, atol=1e-5)


def test_a_function_of_arrays_keeps_a_dict() -> None:
    batch = joined(collected(arrays))
    assert torch.equal(batch["value"], torch.from_numpy(batch["observation"].numpy().sum(-1)))
    assert batch["params", "scale"].dtype == torch.int16
    assert batch["params", "scale"].shape == (2, 60, 2)


def test_a_plain_module_keeps_a_dict() -> None:
    class Plain(torch.nn.Module):
        def forward(self, observation: torch.Tensor) -> Any:
            return torch.zeros(len(observation), dtype=torch.int64), {"next": {"guess": observation + 1}}

    batch = joined(collected(Plain()))
    assert torch.equal(batch["next", "guess"], batch["observation"] + 1)


def test_a_pair_of_actions_is_no_dict_of_more() -> None:
    def pair(observation: Any) -> Any:
        return np.zeros(len(observation)), {"a": np.ones(len(observation))}

    situation = Situation(np.zeros((2, 3)), np.ones(2, bool), {})
    assert list(FunctionPolicy(pair)(situation).step) == ["a"]
    space = spaces.Tuple([spaces.Discrete(2), spaces.Dict(a=spaces.Discrete(2))])
    assert not FunctionPolicy(pair, space)(situation).step


@pytest.mark.parametrize("mode", MODES)
def test_a_function_of_tensordicts_carries_its_state(mode: AutoresetMode) -> None:
    batch = joined(collected(counting, partial(lanes, mode)))
    age = torch.zeros(2, dtype=torch.int64)
    for t in range(batch.shape[1]):
        age = torch.where(batch["is_init"][:, t, 0], 0, age)
        assert (batch["clock"][:, t] == 10 + age).all()
        assert (batch["next", "clock"][:, t] == 11 + age).all()
        assert (batch["said", "count"][:, t] == 10 + age).all()
        age += 1
    assert batch["is_init"].sum() > 6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [None, 3])
def test_a_cell_remembers_within_an_episode_alone(mode: AutoresetMode, limit: int | None) -> None:
    """The batches are what the module gives, step by step, from zeros at the start of every episode."""
    policy: Any = recurrent()
    with Collector(partial(lanes, mode), policy, frames_per_batch=14, total_frames=140, max_frames_per_traj=limit) as c:
        batches = [batch.clone() for batch in c if batch is not None]
    batch = joined(batches)
    ids = batch["collector", "traj_ids"]
    starts = torch.ones_like(ids, dtype=torch.bool)
    starts[:, 1:] = ids.diff(dim=1) != 0
    assert torch.equal(batch["is_init"][..., 0], starts)
    assert not batch["next", "is_init"].any()
    h = torch.zeros(2, 5)
    for t in range(batch.shape[1]):
        h = torch.where(starts[:, t, None], 0, h)
        assert torch.equal(batch["h"][:, t], h)
        with torch.no_grad():
            h = policy[0].module(batch["observation"][:, t], h)
        assert torch.allclose(batch["next", "h"][:, t], h, atol=1e-6)
        h = batch["next", "h"][:, t]


def test_the_state_goes_on_under_new_weights() -> None:
    policy = recurrent()
    with Collector(lanes, policy, frames_per_batch=2, total_frames=200) as collector:
        after = None
        for batch in collector:
            assert batch is not None
            if after is not None:
                assert torch.equal(batch["h"], torch.where(batch["is_init"], 0, after))
            after = batch["next", "h"].clone()
            collector.update_policy_weights_({name: 2 * value for name, value in policy.state_dict().items()})


def test_whole_episodes_start_from_zeros() -> None:
    (batch, *_) = collected(recurrent(), frames_per_batch=None, trajs_per_batch=3)
    assert batch["is_init"][:, 0].all()
    assert not batch["is_init"][:, 1:].any()
    assert not batch["h"][:, 0].any()
    mask = batch["collector", "mask"][:, 1:]
    assert torch.equal(batch["h"][:, 1:][mask], batch["next", "h"][:, :-1][mask])


def test_a_module_is_called_once_a_step_and_its_draws_are_its_own() -> None:
    calls: list[int] = []

    class Counted(Remembering):
        def forward(self, observation: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            calls.append(id(self))
            return super().forward(observation, h) + torch.rand(())

    cell = Counted()
    policy = TensorDictSequential(
        TensorDictModule(cell, in_keys=["observation", "h"], out_keys=[("next", "h")]),
        TensorDictModule(lambda h: h.argmax(-1) % 4, in_keys=[("next", "h")], out_keys=["action"]),
    )
    torch.manual_seed(5)
    with Collector(lanes, policy, frames_per_batch=2, total_frames=2) as collector:
        (batch,) = collector
    assert batch is not None
    assert calls.count(id(cell)) == 1, "shapes are found with a copy"
    torch.manual_seed(5)
    with torch.no_grad():
        expected = Remembering.forward(cell, batch["observation"][:, 0], torch.zeros(2, 5)) + torch.rand(())
    assert torch.equal(batch["next", "h"][:, 0], expected)


def test_initial_values_of_the_module() -> None:
    policy: Any = recurrent()
    policy[0].initial_state = {"h": torch.arange(5.0)}
    batch = joined(collected(policy))
    assert (batch["h"][batch["is_init"][..., 0]] == torch.arange(5.0)).all()


def test_a_state_of_unknown_shape() -> None:
    def never(_observation: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        raise ValueError(h.shape)

    policy = TensorDictModule(never, in_keys=["observation", "h"], out_keys=[("next", "h")])
    with pytest.raises(CollectError, match="the shape of the policy's state 'h' is unknown") as error:
        collected(policy)
    assert "initial_state" in str(error.value.hint)


def test_a_key_that_nobody_supplies() -> None:
    policy = TensorDictModule(lambda goal: goal, in_keys=["goal"], out_keys=["action"])
    with pytest.raises(CollectError, match="reads 'goal', which is not supplied: there are 'observation', 'is_init'"):
        collected(policy)

    def function(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", td["goal"])

    with pytest.raises(CollectError, match=r"reads a key that is not supplied: .*goal.*; there are 'observation'"):
        collected(function)


def test_flags_are_there_for_who_reads_them() -> None:
    policy = TensorDictModule(lambda done: done[..., 0].long(), in_keys=["done"], out_keys=["action"])
    assert not joined(collected(policy))["action"].any()


def test_random_at_first_keeps_keys_and_state() -> None:
    first, second, _ = collected(recurrent(), init_random_frames=40)
    assert set(first.keys(True)) == set(second.keys(True))
    assert first["action_log_prob"].isnan().all()
    assert not second["action_log_prob"].isnan().any()
    assert torch.equal(second["h"][:, 0], torch.where(second["is_init"][:, 0], 0, first["next", "h"][:, -1]))


@pytest.mark.parametrize(
    ("drop", "gone"),
    [
        (["logits"], {"logits"}),
        (["h"], {"h", ("next", "h")}),
        ([("next", "extra"), "said"], {("next", "extra"), "said", ("said", "x")}),
    ],
)
def test_some_keys_are_left_out(drop: Any, gone: set[Any]) -> None:
    more = TensorDictModule(lambda h: (h, h), in_keys=[("next", "h")], out_keys=[("said", "x"), ("next", "extra")])
    policy = TensorDictSequential(recurrent(), more)
    whole, less = joined(collected(policy)), joined(collected(policy, drop=drop))
    assert set(whole.keys(True)) - set(less.keys(True)) == gone
    assert all(torch.equal(whole[key], less[key]) for key in less.keys(True, True))


def test_an_unknown_key_to_leave_out() -> None:
    with pytest.raises(CollectError, match=r"drop 'logit': the policy writes logits, action_log_prob"):
        collected(actor(), drop=["logit"])
    with pytest.raises(CollectError, match="drop 'logits': expected a list of keys"):
        collected(actor(), drop="logits")


def unannotated(td: Any) -> Any:
    return td.set("action", torch.ones(td.shape, dtype=torch.int64)).set("extra", td["observation"] * 2)


@pytest.mark.parametrize("function", [unannotated, lambda td: unannotated(td)])
def test_a_function_that_does_not_say_what_it_takes(function: Any) -> None:
    batch = joined(collected(function))
    assert torch.equal(batch["extra"], 2 * batch["observation"])


def test_a_function_of_arrays_that_fails_shows_its_own_error() -> None:
    def broken(observation: Any) -> Any:
        raise RuntimeError(f"no way, {type(observation).__name__}")

    with pytest.raises(CollectError, match="policy failed: RuntimeError: no way, ndarray"):
        collected(broken)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"value": np.zeros(())}, r"writes float64\[\] as 'value', expected numbers or texts \[2, ...\]"),
        ({"done": np.zeros(2)}, "writes 'done', which means something else"),
        ({"observation": np.zeros(2)}, "writes 'observation', which means something else"),
        ({"is_init": np.zeros(2)}, "writes 'is_init', which means something else"),
        ({"value": np.zeros(2, complex)}, r"writes complex128\[2\] as 'value'"),
        ({"next": {"reward": np.zeros(2)}}, "writes 'reward', which means something else"),
    ],
)
def test_what_cannot_be_kept(more: Any, message: str) -> None:
    with pytest.raises(CollectError, match=message):
        collected(lambda observation: (np.zeros(len(observation), np.int64), more))


def _writes(**named: Any) -> Any:
    """A function of TensorDicts that writes what functions of them return."""

    def act(td: TensorDictBase) -> TensorDictBase:
        for key, value in named.items():
            td[key] = value(td)
        return td

    return act


def _observed(td: TensorDictBase) -> Any:
    return td["observation"]


def _zeros(td: Any) -> torch.Tensor:
    return torch.zeros(td.shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (_observed, "gave a Tensor: expected a TensorDict with 'action'"),
        (_writes(action=_zeros, **{"a/b": _zeros}), r"writes \('a/b',\): expected keys without '/'"),
        (_writes(value=_zeros), "writes no 'action'"),
        (lambda seen: (np.zeros(len(seen), np.int64), {"next": 3}), "gave a int as 'next': expected a dict"),
    ],
)
def test_outputs_of_another_form(policy: Any, message: str) -> None:
    with pytest.raises(CollectError, match=message):
        collected(policy)


def test_a_key_that_a_policy_writes_in_its_first_step_alone() -> None:
    calls = iter(range(9))

    def act(td: TensorDictBase) -> TensorDictBase:
        if next(calls) == 0:
            td["value"] = _zeros(td)
        return td.set("action", _zeros(td))

    with pytest.raises(CollectError, match="did not write 'value', as it did in its first step"):
        collected(act)


def test_a_policy_that_changes_its_mind() -> None:
    widths = iter([1, 1, 2])

    def growing(observation: Any) -> Any:
        return np.zeros(2, np.int64), {"value": np.zeros((len(observation), next(widths)))}

    with pytest.raises(CollectError, match=r"writes float64\[2, 2\] as 'value', expected float64\[2, 1\]"):
        collected(growing)


def test_a_policy_that_overwrites_what_it_is_given() -> None:
    policy = TensorDictSequential(
        TensorDictModule(lambda x: x * 2, in_keys=["observation"], out_keys=["observation"]),
        TensorDictModule(Head(3), in_keys=["observation"], out_keys=["logits"]),
        TensorDictModule(lambda x: x.argmax(-1), in_keys=["logits"], out_keys=["action"]),
    )
    with pytest.raises(CollectError, match="overwrites 'observation', which it is given"):
        collected(policy)


def test_every_step_starts_an_episode_or_not() -> None:
    (batch,) = collected(None, Counter, frames_per_batch=9, total_frames=9)
    assert batch["is_init"][:, 0].tolist() == [True, False, False, True, False, False, False, False, True]
    (batch,) = collected(None, SerialEnv(2, Counter), frames_per_batch=10, total_frames=10)
    assert batch["is_init"].shape == (2, 5, 1)


def test_a_rollout_that_is_stopped_before_its_first_step_after_new_episodes() -> None:
    def act(td: Any) -> Any:
        td["action"] = torch.zeros(td.shape, dtype=torch.int64)
        td["next", "h"] = td.get("h", torch.zeros(len(td), 2)) + 1
        return td

    environment = open_environment(lanes)
    policy = TensorDictPolicy(act)
    rollout = Rollout(environment, [0, 1])
    assert rollout.run(policy, 3).observation["h"].any()
    rollout.restart([2, 3])
    stopped = rollout.run(policy, 3, should_stop=lambda: True)
    assert stopped.counts.tolist() == [0, 0]
    assert not stopped.observation["h"][:, 0].any()
    assert rollout.run(policy, 1).observation["h"][:, 0].tolist() == [[0, 0], [0, 0]]
    environment.close()


def test_fewer_keys_than_in_the_first_step() -> None:
    more = iter([{"value": np.zeros(2)}, {}])
    with pytest.raises(CollectError, match=r"policy writes \[\] in step, expected \['value'\] as before"):
        collected(lambda observation: (np.zeros(len(observation), np.int64), next(more)))


def test_a_state_of_another_shape_than_it_starts_with() -> None:
    def act(td: TensorDictBase) -> TensorDictBase:
        td["next", "h"] = torch.zeros(len(td), 3)
        return td.set("action", _zeros(td))

    act.initial_state = {"h": torch.zeros(2)}  # type: ignore[attr-defined]
    with pytest.raises(CollectError, match=r"policy writes its state 'h' as float32\[2, 3\], expected float32\[2, 2\]"):
        collected(act)


def test_a_state_whose_shape_never_settles() -> None:
    policy = TensorDictModule(
        lambda _, h: torch.cat([h, h], -1), in_keys=["observation", "h"], out_keys=[("next", "h")]
    )
    with pytest.raises(CollectError, match="the shape of the policy's state 'h' is unknown"):
        collected(policy)


class Layered(torch.nn.Module):
    """A GRU of two layers, with its state [n, layers, hidden], and a clock of its own."""

    initial_state: Any = {"clock": torch.tensor(7)}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(3, 5, num_layers=2, batch_first=True)

    def forward(self, observation: torch.Tensor, h: torch.Tensor, clock: torch.Tensor) -> Any:
        assert h.shape[1:] == (2, 5)
        out, after = self.gru(observation[:, None], h.transpose(0, 1).contiguous())
        return out[:, 0].argmax(-1) % 4, after.transpose(0, 1), clock + 1


def test_a_state_of_several_layers_beside_one_that_is_declared() -> None:
    policy = TensorDictModule(
        Layered(), in_keys=["observation", "h", "clock"], out_keys=["action", ("next", "h"), ("next", "clock")]
    )
    batch = joined(collected(policy))
    assert batch["h"].shape == (2, 60, 2, 5)
    starts = batch["is_init"][..., 0]
    assert (batch["clock"][starts] == 7).all()
    assert not batch["h"][starts].any()
    assert (batch["next", "clock"] == batch["clock"] + 1).all()


def test_an_output_that_numpy_does_not_have() -> None:
    act = _writes(action=_zeros, value=lambda td: torch.zeros(td.shape, dtype=torch.bfloat16))
    with pytest.raises(CollectError, match=r"policy writes .*bfloat16"):
        collected(act)
