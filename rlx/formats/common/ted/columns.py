"""Names of a step's arrays where a format keeps them by their TED paths, joined by ``/``."""

from rlx.schema import Role, Schema

INDEX = "index"
TRAJECTORY = "collector/traj_ids"
EPISODE = "trajectories/episode"
FROM_RESET = "trajectories/from_reset"
CUT = "trajectories/cut"


def ted_paths(schema: Schema) -> dict[str, str]:
    """Return TED path of every field; of an observation, that of the observation before the step.

    Example:
        >>> ted_paths(Schema.of(observation=("uint8", (84, 84)), action=("int64", ())))["reward"]
        'next/reward'
    """
    return {name: f"next/{name}" if field.role == Role.NEXT else name for name, field in schema.fields.items()}
