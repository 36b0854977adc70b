"""The papers that describe where a dataset's steps came from."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlx.errors import SourceNotFoundError
from rlx.files.atomic import write_file
from rlx.files.beneath import check_entries
from rlx.files.location import Location
from rlx.manifest import Manifest
from rlx.store.layout import CITATION

# BibTeX of papers, by what the notes of a source call them.
_PAPERS: Mapping[str, str] = {
    "Gulcehre et al. 2020": """\
@inproceedings{gulcehre2020rl,
  title = {{RL Unplugged}: A Suite of Benchmarks for Offline Reinforcement Learning},
  author = {Gulcehre, Caglar and Wang, Ziyu and Novikov, Alexander and others},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {33},
  year = {2020},
  eprint = {2006.13888},
  archivePrefix = {arXiv}
}""",
    "Agarwal et al. 2020": """\
@inproceedings{agarwal2020optimistic,
  title = {An Optimistic Perspective on Offline Reinforcement Learning},
  author = {Agarwal, Rishabh and Schuurmans, Dale and Norouzi, Mohammad},
  booktitle = {International Conference on Machine Learning},
  year = {2020},
  eprint = {1907.04543},
  archivePrefix = {arXiv}
}""",
    "Fu et al. 2020": """\
@misc{fu2020d4rl,
  title = {{D4RL}: Datasets for Deep Data-Driven Reinforcement Learning},
  author = {Fu, Justin and Kumar, Aviral and Nachum, Ofir and Tucker, George and Levine, Sergey},
  year = {2020},
  eprint = {2004.07219},
  archivePrefix = {arXiv}
}""",
}
_MAX_BYTES = 2**21
_NEXT = re.compile(r"\n\s*\n(?=[@%])")
_IN_CARD = re.compile(r"^(?P<fence>```+)\w*\s+(?P<entries>@\w+\{.*?)^(?P=fence)", re.MULTILINE | re.DOTALL)


def citations(manifest: Manifest, location: Location) -> list[str]:
    """Return BibTeX entries that a dataset was published with, then of the papers that its notes name."""
    return [*given_citations(manifest, location), *known_citations(manifest)]


def given_citations(manifest: Manifest, location: Location) -> list[str]:
    """Return the entries of the file beside a dataset's manifest that its notes do not name; none without a file.

    Raises:
        FileAccessError: it is a link, which would publish a file from elsewhere.
    """
    if location.directory is not None:
        check_entries(location.directory, lambda name: name == CITATION)
    try:
        content, _ = location.get(CITATION, max_bytes=_MAX_BYTES)
    except SourceNotFoundError:
        return []
    known = known_citations(manifest)
    return [entry for entry in _entries(_text(content)) if entry not in known]


def card_citations(card: Path) -> list[str]:
    """Return the BibTeX entries that the card of a dataset on the hub shows, each in a fenced block.

    Args:
        card: its ``README.md``, which need not exist.
    """
    if not card.is_file() or card.stat().st_size > _MAX_BYTES:
        return []
    return [entry for block in _IN_CARD.finditer(_text(card.read_bytes())) for entry in _entries(block["entries"])]


def write_citations(path: Path, entries: Sequence[str]) -> None:
    """Write entries, if there are any, beside the manifest of a dataset, where ``given_citations`` finds them."""
    if entries:
        write_file(path / CITATION, ["\n\n".join([*dict.fromkeys(entries), ""]).encode()])


def _text(content: bytes) -> str:
    return content.decode(errors="replace").replace("\r\n", "\n")


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in _NEXT.split(text.strip()) if entry.strip()]


def known_citations(manifest: Manifest) -> list[str]:
    """Return BibTeX of the papers that the notes of a dataset name; an unknown paper as a comment.

    Example:
        >>> [entry.partition("{")[2].partition(",")[0] for entry in known_citations(rlx.open("Pong/5").manifest)]
        ['agarwal2020optimistic', 'gulcehre2020rl']
    """
    noted = manifest.notes.get("citation")
    if not isinstance(noted, str):
        return []
    papers = [paper.strip() for paper in noted.split(";")]
    return [
        next((entry for name, entry in _PAPERS.items() if paper.startswith(name)), f"% {' '.join(paper.split())}")
        for paper in papers
        if paper
    ]
