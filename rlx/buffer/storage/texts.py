"""Texts of stored steps: each distinct one is kept once, and a step refers to it by a number of four bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, TensorDictBase

from rlx.buffer.index.continuity import Leaves, Path
from rlx.buffer.storage.step_schema import parted
from rlx.errors import SchemaMismatchError
from rlx.store.leaf import to_leaf, to_rows

_SPARE = 1024  # texts that may be kept though no step refers to them


class Texts:
    """The distinct texts of a storage.

    Attributes:
        paths: the leaves that are text.

    Example:
        >>> from tensordict import TensorDict
        >>> texts = Texts()
        >>> texts.leaves(TensorDict({"task": ["pick", "place", "pick"]}, [3]), settled=False)["task",].tolist()
        [0, 1, 0]
        >>> len(texts)
        2
    """

    def __init__(self) -> None:
        self.paths: frozenset[Path] = frozenset()
        self._codes: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._free: list[int] = []
        self._used = 0  # codes that were in use when last counted

    def __len__(self) -> int:
        return len(self._texts)

    def leaves(self, steps: TensorDictBase, *, settled: bool) -> dict[Path, torch.Tensor]:
        """Return the leaves of steps, texts as numbers.

        Args:
            steps: steps.
            settled: whether it is known which leaves are text.

        Raises:
            SchemaMismatchError: a leaf is neither numbers nor text, or text where others have numbers.
        """
        found, given = parted(steps)
        if settled:
            for path in given.keys() ^ self.paths:
                if path in found:
                    raise SchemaMismatchError(f"key {'/'.join(path)!r}: expected text, found {found[path].dtype}")
                if path in given:
                    raise SchemaMismatchError(f"key {'/'.join(path)!r}: expected no text here, found some")
        rows = {path: _rows(path, leaf) for path, leaf in given.items()}
        if not settled:
            self.paths = frozenset(given)
        return found | {path: torch.from_numpy(self._encoded(texts)) for path, texts in rows.items()}

    def _encoded(self, texts: NDArray[Any]) -> NDArray[np.int32]:
        codes = [self._code(text) for text in texts.reshape(-1).tolist()]
        return np.array(codes, np.int32).reshape(texts.shape)

    def _code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._free.pop() if self._free else len(self._texts)
            self._codes[text], self._texts[code] = code, text
        return code

    def decoded(self, leaves: Leaves) -> dict[Path, Any]:
        """Return leaves with the texts that numbers stand for."""
        return {path: self._decoded(leaf) if path in self.paths else leaf for path, leaf in leaves.items()}

    def _decoded(self, codes: torch.Tensor) -> Any:
        if not codes.numel():
            return NonTensorData("", batch_size=codes.shape)
        texts = np.empty(codes.numel(), object)
        texts[:] = [self._texts[code] for code in codes.reshape(-1).tolist()]
        return to_leaf(texts.reshape(tuple(codes.shape)))

    @property
    def is_full(self) -> bool:
        """Whether enough texts were added to check which are still used."""
        return len(self._texts) > 2 * self._used + _SPARE

    def keep(self, codes: Sequence[torch.Tensor]) -> None:
        """Forget all texts but those that these numbers stand for."""
        used = set(np.unique(np.concatenate([leaf.numpy(force=True).reshape(-1) for leaf in codes])).tolist())
        for code in [code for code in self._texts if code not in used]:
            del self._codes[self._texts.pop(code)]
            self._free.append(code)
        self._used = len(used)

    def state_dict(self) -> dict[str, Any]:
        """Return the leaves that are text, and the texts with their numbers."""
        return {"paths": [list(path) for path in sorted(self.paths)], "texts": list(self._texts.items())}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Texts":
        """Return the texts whose ``state_dict`` this is."""
        texts = cls()
        texts.paths = frozenset(tuple(path) for path in state["paths"])
        texts._texts = {int(code): str(text) for code, text in state["texts"]}
        texts._codes = {text: code for code, text in texts._texts.items()}
        texts._free = sorted(set(range(max(texts._texts, default=-1) + 1)) - texts._texts.keys(), reverse=True)
        return texts


def _rows(path: Path, leaf: Any) -> NDArray[Any]:
    try:
        return to_rows(leaf)
    except SchemaMismatchError as exc:
        raise SchemaMismatchError(f"{'/'.join(path)}: {exc}") from exc
