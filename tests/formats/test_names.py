"""Any field name, in any format, comes back or is named: see ``rlx.testing.round_trip``."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.formats.registry import writable
from rlx.progress import Silent
from rlx.schema import FLAGS, REQUIRED, RESERVED, Field, Role, Schema
from rlx.testing.dataset_exporter import random_block
from rlx.testing.round_trip import check_there_and_back
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.factories import write_dataset

# What formats call their own things, parts of which meet in paths.
_OWN = """
rewards actions observations raw_video sequence_length rlx final/observation final/x timestamp frame_index cut length
episode_index task task_index next.done next.reward is_first is_last is_terminal discount terminals timeouts
next_observations episode_terminals version columns num_episodes observations_0 rewards_0/x terminated_1 a_0/b a obs
next_obs dones states infos info/a infos/b b metadata/trajectories/length meta.json/x shape device/x x/_type is_init
provenance.json/x steps data mask/x file pixels.memmap/x pixels params/loc params.loc params_loc params_loc_ A/B A.B
terminations observation.state observation.images.x action.x discrete_action env_args add_count storage_metadata.json/x
""".split()  # noqa: SIM905  (a list would have a line for each)
_words = st.sampled_from([part for name in _OWN for part in name.split("/")]) | st.from_regex(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", fullmatch=True
)
_names = st.sampled_from(_OWN) | st.lists(_words, min_size=1, max_size=3).map("/".join)


def named(names: list[str], *, is_discrete: bool, first: int = 0) -> Schema:
    """A schema with fields of these names, of every dtype and role in turn."""
    action = ("int64", ()) if is_discrete else ("float32", (2,))
    chosen = dict(Schema.of(("float32", (3,)), action).fields)
    for number, name in enumerate(names, first):
        kinds = [role for role in Role if role == Role.OBSERVATION or not name.startswith("observation/")]
        field = Field(["float32", "int64", "bool"][number % 3], (), kinds[number // 3 % len(kinds)])
        if name.split("/")[0] not in {*RESERVED, *REQUIRED, "observation", "action"} and not _conflicts(name, chosen):
            chosen[name] = field
    return Schema({**chosen, **FLAGS})


def _conflicts(name: str, others: dict[str, Field]) -> bool:
    return any(f"{one}/".startswith(f"{two}/") for other in others for one, two in ((name, other), (other, name)))


@pytest.mark.parametrize("format", writable("datasets"))
@pytest.mark.parametrize("first", [0, 3, 6])
def test_names_of_the_formats_themselves(format: str, first: int, tmp_path: Path) -> None:
    names = [name for name in _OWN if format != "lance" or "." not in name]
    schema = named(names, is_discrete=format == "dopamine", first=first)
    check_there_and_back(schema, random_block(schema, (3, 2)), format, tmp_path)


@pytest.mark.parametrize("format", writable("datasets"))
@settings(max_examples=3, deadline=None)
@given(names=st.lists(_names, min_size=1, max_size=12, unique=True), first=st.integers(0, 8))
def test_any_names(format: str, names: list[str], first: int) -> None:
    schema = named(names, is_discrete=format == "dopamine", first=first)
    with TemporaryDirectory() as directory:
        check_there_and_back(schema, random_block(schema, (3, 2)), format, Path(directory))


def test_a_reserved_name_is_said_and_another_is_in_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schema = named(["rewards", "rewards_"], is_discrete=True)
    dataset = write_dataset(tmp_path / "data", [[random_block(schema)]], schema=schema)
    report = export(dataset.path, tmp_path / "out", "array_record", progress=Silent())
    assert report.names == {"rewards": "rewards__"}
    assert report.to_json()["names"] == report.names
    assert [record.getMessage() for record in caplog.records] == [
        "ArrayRecord reserves the name rewards: the field is rewards__ there"
    ]
    assert set(open_source(tmp_path / "out", None)[0].schema) == set(schema)
