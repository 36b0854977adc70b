"""Names of the arrays of steps: TED paths, joined by ``/``."""

from rlx.schema import Role, Schema

INDEX = "index"
TRAJECTORY = "collector/traj_ids"
MASK = "collector/mask"
EPISODE = "trajectories/episode"
FROM_RESET = "trajectories/from_reset"
CUT = "trajectories/cut"
INIT = "is_init"
TERMINATED, TRUNCATED, DONE = "next/terminated", "next/truncated", "next/done"
# Fields that a scan reads besides the observations, if present.
SCANNED = (TERMINATED, TRUNCATED, DONE, TRAJECTORY, EPISODE, FROM_RESET, CUT, MASK)


def ted_paths(schema: Schema) -> dict[str, str]:
    """Return TED path of every field; of an observation, that of the observation before the step.

    Example:
        >>> ted_paths(Schema.of(observation=("uint8", (84, 84)), action=("int64", ())))["reward"]
        'next/reward'
    """
    return {name: f"next/{name}" if field.role == Role.NEXT else name for name, field in schema.fields.items()}
