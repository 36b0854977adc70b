"""The card of a dataset on the hub, for people, and its Croissant description, for tools."""

import csv
import hashlib
import io
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.errors import MissingExtraError, SamplingError
from rlx.files.urls import TAG
from rlx.manifest import VERSION
from rlx.store.dataset import Dataset
from rlx.store.foreign_types import in_words
from rlx.store.layout import CITATION
from rlx.store.statistics import EpisodeStatistics
from rlx.verbs.citation import known_citations
from rlx.wording import number, pasteable, plural, size, without_paths

logger = logging.getLogger(__name__)
NAME, CROISSANT, TABLE = "README.md", "croissant.json", "trajectories.csv"
_LICENSE = re.compile(r"^(?:license|  \"license\"): (\".*\"),?$", re.MULTILINE)
_PLOTS, _FRAMES = "images/overview.png", "images/frames.png"
PICTURES = {_PLOTS: "Returns, lengths, rewards and actions", _FRAMES: "Frames of episodes"}
# A card without it is somebody's own, and stays.
MARK = "<!-- Written by rlx push, which replaces it. Remove this line to keep your own text. -->"
_TABLE_SAYS = "The trajectories; rlx.open reads their steps."
_CROISSANT = "http://mlcommons.org/croissant/1.0"
# Notes that the card has in other places.
_SHOWN = ("citation", "origin", VERSION)
# A licence given with the push replaces what the source said of it.
_LICENSES = ("licence", "license")
_BACKTICKS = re.compile("`+")
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+){0,2})")
# Columns of the table of trajectories: type and meaning.
_COLUMNS = {
    "trajectory": ("sc:Integer", "Number of the trajectory."),
    "start": ("sc:Integer", "Row of its first step."),
    "length": ("sc:Integer", "Its number of steps."),
    "return": ("sc:Float", "Sum of its rewards."),
    "terminated": ("sc:Boolean", "Whether it ended in a terminal state."),
    "truncated": ("sc:Boolean", "Whether a time limit ended it."),
    "whole": ("sc:Boolean", "Whether it reaches from a reset to an end that the environment gave."),
}


@dataclass(frozen=True, slots=True)
class Card:
    """The description of a dataset at an address of the hub.

    Args:
        page: URL of the repository for browsers.
        table_url: URL of the table of trajectories for browsers.
        license: identifier of its licence, such as ``cc-by-4.0``; None if nobody has said.
        citation: BibTeX of its authors; None if nobody has said.
    """

    dataset: Dataset
    url: str
    page: str
    table_url: str
    license: str | None = None
    citation: str | None = None

    def files(self) -> dict[str, bytes]:
        """Return the files of the card by name; the same dataset gives the same bytes."""
        table = self._table()
        files = {TABLE: table, CROISSANT: self._croissant(table), **self._pictures()}
        if citations := self._citations():
            files[CITATION] = "\n\n".join(citations).encode() + b"\n"
        files[NAME] = self._text(files).encode()
        return files

    def _citations(self) -> list[str]:
        given = [self.citation.strip()] if self.citation else []
        return [*given, *known_citations(self.dataset.manifest)]

    def _table(self) -> bytes:
        found = self.dataset.trajectories
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        columns = [found.start, found.length, found.returns, found.terminated, found.truncated, found.whole]
        for row in zip(range(len(found)), *(column.tolist() for column in columns), strict=True):
            writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in row])
        return text.getvalue().encode()

    def _pictures(self) -> dict[str, bytes]:
        # Pillow is an extra, and vectors alone have no frames.
        from rlx.viewer.episode import notable
        from rlx.viewer.files import contact_sheet
        from rlx.viewer.overview import plots_png

        try:
            return {
                _PLOTS: plots_png(self.dataset),
                _FRAMES: contact_sheet(self.dataset, notable(self.dataset)),
            }
        except MissingExtraError as exc:
            logger.warning("the card has no images: %s", exc)
        except SamplingError:  # an empty dataset
            pass
        return {}

    def _text(self, files: Mapping[str, bytes]) -> str:
        manifest = self.dataset.manifest
        pictures = [f"![{alt}]({name})" for name, alt in PICTURES.items() if name in files]
        return (
            "\n\n".join(
                [
                    self._front_matter(),
                    MARK,
                    f"# {_plain(manifest.id)}",
                    self._summary(),
                    *pictures,
                    "## Use",
                    f"```python\nimport rlx  # pip install 'rlx[hub]'\n\n"
                    f'dataset = rlx.open("{self.url}")\n'
                    f"batch = dataset.sample(batch_size=128).batch\n```",
                    *self._version(),
                    f"`rlx pull {self.url}` copies it, `rlx view {self.url}` shows it in a browser.",
                    "## Fields",
                    _rows(("field", "dtype", "shape", "space"), self._fields()),
                    *self._notes(),
                    *self._made(),
                    *self._cited(),
                ]
            )
            + "\n"
        )

    def _version(self) -> list[str]:
        version = self.dataset.manifest.version
        if version is None:
            return []
        return [
            f"This is version `{_plain(version)}`: `@{_plain(version)}` reads it whatever is pushed later. "
            "Without it, the newest state is read."
        ]

    def _front_matter(self) -> str:
        manifest = self.dataset.manifest
        lines = [
            *([f"license: {json.dumps(self.license)}"] if self.license else []),
            f"pretty_name: {json.dumps(manifest.id)}",
            "task_categories:",
            "- reinforcement-learning",
            "tags:",
            f"- {TAG}",
            "- reinforcement-learning",
            "- offline-rl",
            "size_categories:",
            f"- {_size_category(manifest.steps)}",
            "configs:",
            "- config_name: trajectories",
            f"  data_files: {TABLE}",
        ]
        return "\n".join(["---", *lines, "---"])

    def _summary(self) -> str:
        manifest = self.dataset.manifest
        found = EpisodeStatistics.of(manifest.shards)
        said = [
            f"{plural(manifest.steps, 'step')} in {plural(manifest.trajectories, 'trajectory')}, "
            f"{plural(len(manifest.shards), 'shard')}, {size(manifest.bytes)} "
            f"(raw: {size(manifest.schema.raw_bytes(manifest.steps, manifest.trajectories))})."
        ]
        if found.whole:
            returns, lengths = (moments.summary() for moments in (found.returns, found.lengths))
            said.append(
                f"Whole episodes: {found.whole:,}, with a mean return of {number(returns['mean'])} "
                f"({number(returns['min'])} to {number(returns['max'])}) and a mean length of "
                f"{number(lengths['mean'])}."
            )
        if missing := manifest.missing:
            said.append(f"Not complete: {plural(len(missing), 'shard')} of {len(manifest.planned)} missing.")
        return " ".join(said)

    def _fields(self) -> list[Sequence[str]]:
        return [
            (name, str(field.dtype), " x ".join(map(str, field.shape)) or "scalar", in_words(field.space))
            for name, field in ((name, self.dataset.schema[name]) for name in self.dataset.schema)
        ]

    def _notes(self) -> list[str]:
        notes = {name: text for name, text in self.dataset.manifest.notes.items() if isinstance(text, str)}
        hidden = (*_SHOWN, *(_LICENSES if self.license else ()))
        said = [
            f"- {_cell(name).replace('_', ' ')}: {_cell(without_paths(note))}"
            for name, note in notes.items()
            if name not in hidden
        ]
        return ["## Notes", "\n".join(said)] if said else []

    def _made(self) -> list[str]:
        commands = [step["command"] for step in self.dataset.manifest.lineage if isinstance(step.get("command"), str)]
        if not commands:
            return []
        shown = without_paths("\n".join(map(pasteable, commands)))
        return ["## How it was made", _fenced("sh", shown)]

    def _cited(self) -> list[str]:
        citations = self._citations()
        return ["## Citation", *(_fenced("bibtex", citation) for citation in citations)] if citations else []

    def _croissant(self, table: bytes) -> bytes:
        manifest = self.dataset.manifest
        described: dict[str, Any] = {
            "@context": _CONTEXT,
            "@type": "sc:Dataset",
            "conformsTo": _CROISSANT,
            "name": manifest.id,
            "description": self._summary(),
            "url": self.page,
            **({"version": semantic} if (semantic := _semantic(manifest.version)) else {}),
            **({"license": self.license} if self.license else {}),
            **({"citeAs": "\n\n".join(citations)} if (citations := self._citations()) else {}),
            "keywords": ["reinforcement learning", TAG],
            "distribution": [
                {
                    "@type": "cr:FileObject",
                    "@id": TABLE,
                    "name": TABLE,
                    "description": _TABLE_SAYS,
                    "contentUrl": self.table_url,
                    "encodingFormat": "text/csv",
                    "sha256": hashlib.sha256(table).hexdigest(),
                }
            ],
            "recordSet": [
                {
                    "@type": "cr:RecordSet",
                    "@id": "trajectories",
                    "name": "trajectories",
                    "description": "One record per trajectory.",
                    "field": [
                        {
                            "@type": "cr:Field",
                            "@id": f"trajectories/{name}",
                            "name": f"trajectories/{name}",
                            "description": meaning,
                            "dataType": kind,
                            "source": {"fileObject": {"@id": TABLE}, "extract": {"column": name}},
                        }
                        for name, (kind, meaning) in _COLUMNS.items()
                    ],
                }
            ],
        }
        return json.dumps(described, indent=2, ensure_ascii=False).encode() + b"\n"


def foreign_files(there: Mapping[str, bytes]) -> set[str]:
    """Return which of the files at a location no push has written.

    The set is empty if the card is rlx's own, or absent. Otherwise the Croissant description of an earlier push tells
    which files it wrote.
    """
    if NAME not in there or MARK.encode() in there[NAME]:
        return set()
    own = set[str]()
    try:
        described = json.loads(there[CROISSANT])
        [table] = described["distribution"]
        if table["description"] == _TABLE_SAYS:
            own.add(CROISSANT)
            if TABLE in there and table["sha256"] == hashlib.sha256(there[TABLE]).hexdigest():
                own.add(TABLE)
            if there.get(CITATION) == f"{described.get('citeAs')}\n".encode():
                own.add(CITATION)
    except (KeyError, TypeError, ValueError):  # another program's, or none
        pass
    return set(there) - own


def stated_license(card: str) -> str | None:
    """Return the licence that a card, or its Croissant description, states."""
    found = _LICENSE.search(card)
    return json.loads(found[1]) if found else None


def _semantic(version: str | None) -> str | None:
    """Return a version as Croissant wants it: ``2.0.0`` for ``v2``; None if it has other parts than numbers."""
    found = _NUMBERS.fullmatch(version or "")
    return found and ".".join([*found[1].split("."), "0", "0"][:3])


def _size_category(count: int) -> str:
    names = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    place = max(len(str(count)) - 3, 0)
    if place == 0:
        return f"n<{names[0]}"
    return f"{names[place - 1]}<n<{names[place]}" if place < len(names) else f"n>{names[-1]}"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Return untrusted text of a dataset without control characters, HTML and fences."""
    return _printable(text).replace("<", "&lt;").replace("```", "'''")


def _fenced(language: str, text: str) -> str:
    """Return untrusted text as a block of code, in a fence that no line of the text closes."""
    kept = _printable(text)
    fence = "`" * max([3, *(len(run) + 1 for run in _BACKTICKS.findall(kept))])
    return f"{fence}{language}\n{kept}\n{fence}"


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable() or letter == "\n")


_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
