"""The result of ``rlx.open``: a dataset that can be read and transformed."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rlx.pipeline.options import Options
from rlx.progress import Progress, Silent
from rlx.store import dataset as stored
from rlx.store.codec import Codec

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from rlx.transform.protocol import Learner, Selection, Transform


class Dataset(stored.Dataset):
    """A dataset at rest. It has the arguments of ``rlx.store.dataset.Dataset`` and is read as that tells."""

    def __reduce__(self) -> tuple[object, ...]:
        _, arguments, *_ = super().__reduce__()
        return _reopen, arguments

    def preprocess(
        self,
        destination: str | os.PathLike[str],
        fn: "Callable[[TensorDictBase], TensorDictBase] | str | None" = None,
        *,
        transforms: "Sequence[str | Transform | Learner | Selection]" = (),
        per: str = "block",
        chunk_size: int = 1024,
        steps: int | None = None,
        num_workers: int | None = None,
        store: str = "zarr",
        codec: str | None = None,
        overwrite: bool = False,
        engine: str = "local",
        ray_address: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Return this dataset changed by transforms, and then by a function.

        It is what ``rlx preprocess`` writes; where that was interrupted, this goes on. The result does not depend on
        who does the work.

        Args:
            destination: the new dataset's directory.
            fn: what makes new steps of steps, a TED TensorDict: a function, or ``module:name`` or ``file.py:name``. See
                ``rlx.transform.function.Function`` for what it may do.
            transforms: as ``--transform`` takes them, or themselves.
            per: whether ``fn`` gets a ``block`` of steps [n], a whole ``trajectory`` [n], or a ``step`` [].
            chunk_size: steps in a block at most.
            steps: use only the first ``steps`` steps.
            num_workers: processes; one a core by default. 1 is this process.
            store: ``zarr`` or ``memmap``.
            codec: as ``--codec`` takes it; what suits the store by default.
            overwrite: whether to start afresh where there is a dataset.
            engine: ``local`` or ``ray``.
            ray_address: of the Ray cluster.
            progress: receives ``steps``, ``shards``, ``bytes read`` and ``bytes written``.

        Raises:
            TransformError: a transform is unknown, does not suit, or a function fails; names the trajectory.
            DatasetExistsError: the destination was made otherwise, is this dataset, or lies in it.
            PartialError: a worker died; finished shards are kept.
        """
        from rlx.pipeline.preprocess import preprocess  # noqa: PLC0415  (most datasets are only read)
        from rlx.pipeline.recipe import Recipe  # noqa: PLC0415
        from rlx.transform.code import Code  # noqa: PLC0415
        from rlx.transform.function import Function, Per  # noqa: PLC0415
        from rlx.transform.registry import parse  # noqa: PLC0415

        changes = [parse(one) if isinstance(one, str) else one for one in transforms]
        if fn is not None:
            code = Code.named(fn) if isinstance(fn, str) else Code.of(fn)
            changes.append(Function(code, Per(per), chunk_size))
        options = Options(
            store=store,
            codec=None if codec is None else Codec.parse(codec),
            jobs=num_workers,
            overwrite=overwrite,
            engine=engine,
            ray_address=ray_address,
        )
        preprocess(self.path, Path(destination), Recipe(changes, steps), options, progress=progress or Silent())
        return type(self)(destination)


def _reopen(*arguments: str | Path | int) -> Dataset:
    """Return a dataset in another process, as ``rlx.store.dataset`` reopens it there."""
    path, *cache_bytes = arguments
    return Dataset(path, partial=True, **({"cache_bytes": cache_bytes[0]} if cache_bytes else {}))  # type: ignore[arg-type]
