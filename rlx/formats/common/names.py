"""Names that mean something else in a format: such a field gets another name in the file, and its own when rlx reads
the file again.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from rlx.block import Block
from rlx.errors import ExportError
from rlx.schema import Schema

# Their first part decides how readers see a field.
_KINDS = frozenset({"observation", "action", "info"})
_MAX_STEM = 80  # of the 100 characters of a part


def names_in_file(schema: Schema, taken: Callable[[Schema], Collection[str]]) -> dict[str, str]:
    """Return the name in a file of every field that cannot keep its own there.

    Args:
        taken: returns the fields of a schema whose names the format cannot use for them.

    Raises:
        ExportError: the format has no name for a field.

    Example:
        >>> schema = Schema.of(observation=("uint8", (84, 84)), action=("int64", ()))
        >>> schema = Schema({**schema.fields, "final/rewards": schema["action"]})
        >>> names_in_file(schema, lambda schema: [name for name in schema if name.startswith("final/")])
        {'final/rewards': 'final_rewards_'}
    """
    names: dict[str, str] = {}
    for name in taken(schema):
        first, _, rest = name.partition("/")
        kind, stem = (f"{first}/", rest) if rest and first in _KINDS else ("", name)
        candidate = kind + stem.replace("/", "_")[:_MAX_STEM] + "_"
        used = {*schema, *names.values()}
        while candidate in used:
            candidate += "_"
        names[name] = candidate
    if still := taken(renamed_schema(schema, names)):
        raise ExportError(f"the format has no name for {', '.join(still)}", hint="`to` npz holds any name")
    return names


def renamed_schema(schema: Schema, names: Mapping[str, str]) -> Schema:
    """Return the schema with other names for some fields."""
    return Schema({names.get(name, name): field for name, field in schema.fields.items()})


def renamed_block(block: Block, names: Mapping[str, str]) -> Block:
    """Return the block with other names for some fields."""
    return replace(block, data={names.get(name, name): rows for name, rows in block.data.items()}) if names else block
