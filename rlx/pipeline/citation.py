"""The papers that describe where a dataset's steps came from."""

import re
from collections.abc import Mapping

from rlx.errors import SourceNotFoundError
from rlx.files.location import Location
from rlx.manifest import Manifest
from rlx.store.layout import CITATION

RL_UNPLUGGED = """\
@inproceedings{gulcehre2020rl,
  title = {{RL Unplugged}: A Suite of Benchmarks for Offline Reinforcement Learning},
  author = {Gulcehre, Caglar and Wang, Ziyu and Novikov, Alexander and others},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {33},
  year = {2020},
  eprint = {2006.13888},
  archivePrefix = {arXiv}
}"""
DQN_REPLAY = """\
@inproceedings{agarwal2020optimistic,
  title = {An Optimistic Perspective on Offline Reinforcement Learning},
  author = {Agarwal, Rishabh and Schuurmans, Dale and Norouzi, Mohammad},
  booktitle = {International Conference on Machine Learning},
  year = {2020},
  eprint = {1907.04543},
  archivePrefix = {arXiv}
}"""
# What the notes of a source call them.
_PAPERS: Mapping[str, str] = {
    "Gulcehre et al. 2020": RL_UNPLUGGED,
    "Agarwal et al. 2020": DQN_REPLAY,
}


_MAX_BYTES = 2**21
_NEXT = re.compile(r"\n\s*\n(?=[@%])")


def citations(manifest: Manifest, location: Location) -> list[str]:
    """Return BibTeX entries that a dataset was published with, then of the papers that its notes name."""
    return [*given_citations(manifest, location), *known_citations(manifest)]


def given_citations(manifest: Manifest, location: Location) -> list[str]:
    """Return the entries of the file beside a dataset's manifest that its notes do not name; none without a file."""
    try:
        content, _ = location.get(CITATION, max_bytes=_MAX_BYTES)
    except SourceNotFoundError:
        return []
    text = content.decode(errors="replace").replace("\r\n", "\n").strip()
    known = known_citations(manifest)
    return [entry.strip() for entry in _NEXT.split(text) if entry.strip() and entry.strip() not in known]


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
