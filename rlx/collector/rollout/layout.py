"""The layout of a collection: the schema of its dataset, derived from the first steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.protocol import Environment
from rlx.collector.environment.space import Arrays, leaves, schema_of
from rlx.collector.rollout.policy_outputs import IS_INIT
from rlx.collector.rollout.steps import Steps
from rlx.errors import CollectError
from rlx.schema import Field, Role, Schema

REWARDS = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of some steps.

    Args:
        schema: every field that is kept; rewards are float64 where float32 would change one.
        infos: keys of ``info``, and whether they can be kept.
    """

    schema: Schema
    infos: Mapping[str, bool]


def layout_of(steps: Steps, environment: Environment, infos: Mapping[str, bool]) -> Layout:
    """Return the layout of steps.

    ``is_init`` is a field where the policy has a state: a module that is trained on slices reads it.

    Raises:
        CollectError: two arrays have one name.
        SchemaMismatchError: a name that a dataset could not hold.
    """
    schema = schema_of(environment.observation_space, environment.action_space)
    states = _new(steps.observation, leaves(environment.observation_space, "observation"))
    step = _new(steps.step, [*leaves(environment.action_space, "action"), IS_INIT])
    after = _new(steps.next, schema)
    if twice := sorted(states.keys() & step.keys() | states.keys() & after.keys() | step.keys() & after.keys()):
        raise CollectError(
            f"policy writes {twice[0]!r} both at the root and under 'next': a dataset holds one of them",
            hint=f"--drop next/{twice[0]}",
        )
    fields = {
        **_fields(states, Role.OBSERVATION),
        **_fields(step, Role.STEP),
        **_fields(after, Role.NEXT),
        **({IS_INIT: Field("bool", (1,), Role.STEP)} if states else {}),
    }
    made = np.arange(steps.length) < steps.counts[:, None]
    dtype = REWARDS[0] if fits_float32(steps.next["reward"][made]) else REWARDS[1]
    return Layout(_with_reward(Schema({**schema.fields, **fields}), dtype), infos)


def agreed(layouts: Sequence[Layout], reward: str | None = None) -> Layout:
    """Return the common layout of the steps of all workers.

    Args:
        layouts: one a worker; at least one.
        reward: dtype of rewards; the narrowest that holds all if not given.

    Raises:
        CollectError: they hold different fields.
    """
    rewards = {layout.schema["reward"].dtype for layout in layouts}
    dtype = reward or max(rewards, key=REWARDS.index)
    schemas = [_with_reward(layout.schema, dtype) for layout in layouts]
    for worker, schema in enumerate(schemas):
        if schema != schemas[0]:
            raise CollectError(
                f"worker {worker}'s steps hold {list(schema)}, expected those of worker 0: {list(schemas[0])}"
            )
    infos = {key: is_kept for layout in layouts for key, is_kept in layout.infos.items()}
    return Layout(schemas[0], infos)


def fits_float32(rewards: NDArray[Any]) -> bool:
    """Return whether float32 holds these exactly; NaN and infinities are held."""
    with np.errstate(over="ignore"):
        return np.array_equal(rewards.astype(np.float32).astype(rewards.dtype), rewards, equal_nan=True)


def _with_reward(schema: Schema, dtype: str) -> Schema:
    return Schema({**schema.fields, "reward": replace(schema["reward"], dtype=dtype)})


def _new(columns: Arrays, known: Any) -> Arrays:
    return {name: rows for name, rows in columns.items() if name not in known}


def _fields(columns: Arrays, role: Role) -> dict[str, Field]:
    return {name: Field.of(rows[0], role) for name, rows in columns.items()}
