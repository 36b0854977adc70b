"""The fields that every format must have for a step, whatever their names."""

from collections.abc import Mapping

from rlx.schema import Field, Role, is_action


def missing_field(fields: Mapping[str, Field]) -> str | None:
    """Return ``observation`` or ``action`` if no field is one; None if both are present.

    Example:
        >>> seen = Field("float32", (2,), Role.OBSERVATION)
        >>> missing_field({"pixels": seen, "agents/action": Field("int64", (), Role.STEP)})
        >>> missing_field({"observation": seen, "reaction": Field("int64", (), Role.STEP)})
        'action'
    """
    if not any(field.role == Role.OBSERVATION for field in fields.values()):
        return "observation"
    return None if any(map(is_action, fields)) else "action"
