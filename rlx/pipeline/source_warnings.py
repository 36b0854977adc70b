"""Warnings about a source, before it is read."""

import logging

from rlx.formats.common.fields import not_taken
from rlx.formats.common.rows.episodes import STEPS_WITHOUT_OUTCOME
from rlx.formats.common.source import Source
from rlx.quantities import plural

logger = logging.getLogger(__name__)
_MAX_NAMED = 20


def warn(source: Source) -> None:
    """Log which parts of a source are not taken, and which differ from the environment's."""
    notes = source.notes
    if keys := [f"{key} ({reason})" for key, reason in not_taken(notes).items()]:
        named = ", ".join([*keys[:_MAX_NAMED], *(["..."] if len(keys) > _MAX_NAMED else [])])
        logger.warning("%s: %s not taken: %s", source.id, plural(len(keys), "entry"), named)
    if count := notes.get(STEPS_WITHOUT_OUTCOME):
        whose = plural(count, "episode")
        logger.warning("%s: left out: the last steps of %s, as what they led to is not recorded", source.id, whose)
    lossy = notes.get("lossy_jpeg")
    for name in lossy if isinstance(lossy, list) else []:  # what a file says of itself may be anything
        logger.warning("%s: %s went through JPEG, which is lossy, before it came here", source.id, name)
