"""Every verb that writes, on data small enough to run it hundreds of times, and what it writes undisturbed."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rlx.manifest import FILE_NAME, Manifest
from rlx.store.verification import verify
from rlx.testing.dataset_exporter import SAMPLES, random_block
from tests.factories import write_dataset
from tests.verbs.datasets import converted, tree, write_dopamine, write_rlu

WALK, PONG = "../data/walk", "../data/pong"
FORMATS = MappingProxyType(
    {
        "minari": (WALK, "out-v0"),
        "d4rl": (WALK, "out.hdf5"),
        "robomimic": (WALK, "out.hdf5"),
        "d3rlpy": (WALK, "out.h5"),
        "dopamine": (PONG, "out"),
        "lerobot": (WALK, "out"),
        "rlds": (WALK, "out"),
        "torchrl": (WALK, "out"),
        "parquet": (WALK, "out"),
        "npz": (WALK, "out"),
        "array_record": (WALK, "out"),
        "lance": (WALK, "out"),
        "mds": (WALK, "out"),
        "hf_parquet": (WALK, "out"),
    }
)


@dataclass(frozen=True, slots=True)
class Verb:
    """One command line.

    Args:
        arguments: of ``rlx``.
        outputs: what it writes, below the directory where it runs.
        again: what is added when it is run again.
        damaged: whether ``outputs`` is there before, and damaged: the copy of a dataset that has to be repaired.
        is_random: whether it gives other bytes of the same amount when it is resumed.
        grows: whether what it has written so far is kept, for the next run to resume.
    """

    arguments: Sequence[str]
    outputs: Sequence[str] = ("out",)
    again: Sequence[str] = ()
    damaged: bool = False
    is_random: bool = False
    grows: bool = False


_COLLECT = ("collect", "CartPole-v1", "--steps", "1500", "--shard-steps", "200", "--seed", "3", "-o", "out")
_SPLIT = ("split", WALK, "--fractions", "0.7,0.3", "-o", "out", "-o", "rest")
_DRAW = ("sample", WALK, "--seed", "1", "--batches", "20")
VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "collect": Verb(_COLLECT, again=["--resume"], is_random=True, grows=True),
        "collect --workers": Verb((*_COLLECT, "--workers", "2"), again=["--resume"], is_random=True, grows=True),
        "convert": Verb(("convert", "../data/dopamine", "out", "--jobs", "1"), grows=True),
        "convert --jobs": Verb(("convert", "../data/dopamine", "out", "--jobs", "2"), grows=True),
        "convert --to memmap": Verb(("convert", PONG, "out", "--to", "memmap", "--jobs", "1"), grows=True),
        "download": Verb(
            ("download", "Pong/5", "--source", "../data/rlu", "--shards", "0-3", "--jobs", "1", "-o", "out"), grows=True
        ),
        "preprocess": Verb(
            ("preprocess", PONG, "out", "--transform", "resize:height=42,width=42", "--num-workers", "1"), grows=True
        ),
        "merge": Verb(("merge", WALK, "../data/more", "-o", "out", "--jobs", "1"), grows=True),
        "merge --codec": Verb(
            ("merge", PONG, "../data/pong2", "-o", "out", "--codec", "lz4", "--jobs", "1"), grows=True
        ),
        "split": Verb((*_SPLIT, "--jobs", "1"), ("out", "rest"), grows=True),
        "split --by shard": Verb((*_SPLIT, "--by", "shard", "--jobs", "1"), ("out", "rest"), grows=True),
        "push": Verb(("push", PONG, "out", "--jobs", "2"), grows=True),
        "pull": Verb(("pull", PONG, "-o", "out", "--jobs", "2"), grows=True),
        "repair": Verb(("repair", "out"), damaged=True, grows=True),
        "doctor --fix": Verb(("doctor", "../data/more", "--fix", "-o", "out"), grows=True),
        "inspect --plot": Verb(("inspect", WALK, "--plot", "out.png"), ("out.png",)),
        **{
            f"convert --to {name}": Verb(("convert", source, out, "--to", name), (out,))
            for name, (source, out) in FORMATS.items()
        },
        **{
            f"sample -o .{name}": Verb((*_DRAW, "-o", f"out.{name}"), (f"out.{name}",))
            for name in ("npz", "pt", "h5", "zarr", "parquet", "jsonl")
        },
        **{
            f"view -o .{name}": Verb(("view", PONG, "-o", f"out.{name}"), (f"out.{name}",))
            for name in ("png", "gif", "mp4", "html")
        },
    }
)


def write_data(directory: Path) -> None:
    """What the verbs read."""
    walk = SAMPLES["vectors"]
    for name, first in (("walk", 0), ("more", 100)):
        blocks = [[random_block(walk, (30, 1, 17, 40), seed=first + shard)] for shard in range(5)]
        write_dataset(directory / name, blocks, schema=walk)
    write_rlu(directory / "rlu")
    write_dopamine(directory / "dopamine")
    for name in ("pong", "pong2"):
        converted(directory / "dopamine", directory / name)
    shutil.copytree(directory / "walk", directory / "damaged")
    for name in ("00001", "00003"):
        (directory / "damaged/shards" / name / "observation/c/0/0").write_bytes(b"damaged")


def prepared(verb: Verb, directory: Path, data: Path) -> Path:
    """A directory to run a verb in."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    if verb.damaged:
        shutil.copytree(data / "damaged", directory / "out")
    return directory


def written(verb: Verb, directory: Path) -> dict[str, str]:
    """What a verb has written: a digest of every file, or of what it collects at random, the steps."""
    found = {}
    for name in verb.outputs:
        path = directory / name
        if verb.is_random:
            assert verify(path).ok
            found[name] = str(Manifest.load(path).steps)
        elif (path / "_versions").is_dir():  # Lance's, where names of files, and what names them, are random
            found |= {f"{name}/{number}": one for number, one in enumerate(sorted(tree(path / "data").values()))}
        elif path.is_dir():
            found |= {f"{name}/{inner}": digest for inner, digest in tree(path).items()}
        else:
            found |= {inner: digest for inner, digest in tree(directory).items() if inner == name}
    return found


def check_kept(verb: Verb, directory: Path) -> None:
    """What an interrupted verb leaves is no damage: whole datasets or none, and whole files or none."""
    for name in verb.outputs:
        if (directory / name / FILE_NAME).exists() and not verb.damaged:
            assert verify(directory / name).ok, verify(directory / name).problems
