"""``rlx.preprocess``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, overload

from rlx.errors import OptionError, TransformError, TransformOptionError
from rlx.files.urls import check_path
from rlx.home import locate
from rlx.progress import Progress, receiver
from rlx.store.codec import Codec
from rlx.transform.code import Code
from rlx.transform.functions import CHUNK_STEPS, Function, Per
from rlx.transform.protocol import Learner, Selection, Transform
from rlx.transform.registry import parse
from rlx.verbs.arguments import (
    Engine,
    FunctionUnit,
    Store,
    StrPath,
    WriteArguments,
    check_choice,
    check_number,
    chosen_codec,
    command_line,
    write_options,
)
from rlx.verbs.preprocess import Preview, Recipe, preview
from rlx.verbs.preprocess import preprocess as preprocess_dataset
from rlx.verbs.report import Report

if TYPE_CHECKING:
    from tensordict import TensorDictBase

AnyTransform = str | Transform | Learner | Selection
Transforms = AnyTransform | Sequence[AnyTransform]
StepFunction = Callable[["TensorDictBase"], "TensorDictBase"]


class _PreprocessArguments(WriteArguments, total=False):
    transform: Transforms | None
    fn: str | StepFunction | None
    per: FunctionUnit
    chunk_size: int
    steps: int | None
    num_workers: int | None
    store: Store


@overload
def preprocess(
    source: StrPath,
    destination: StrPath,
    *,
    dry_run: Literal[False] = False,
    **arguments: Unpack[_PreprocessArguments],
) -> Report: ...


@overload
def preprocess(
    source: StrPath,
    destination: StrPath | None = None,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[_PreprocessArguments],
) -> Preview: ...


def preprocess(
    source: StrPath,
    destination: StrPath | None = None,
    *,
    transform: Transforms | None = None,
    fn: str | StepFunction | None = None,
    per: FunctionUnit = "block",
    chunk_size: int = CHUNK_STEPS,
    steps: int | None = None,
    num_workers: int | None = None,
    engine: Engine = "local",
    ray_address: str | None = None,
    store: Store = "zarr",
    codec: str | Codec | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Report | Preview:
    """Transform a dataset into a new one; call it again to resume.

    The result does not depend on the number of workers.

    Args:
        source: the dataset's directory, or its id below ``$RLX_HOME``.
        destination: the new dataset's directory; only dry_run needs none.
        transform: transforms, applied in order: texts such as ``resize:height=42,width=42``, or instances.
        fn: function of steps, a TED TensorDict, that returns the new ones, or its name: ``module:name`` or
            ``file.py:name``. It is applied last; see ``rlx.transform.functions.Function`` for what it may do.
        per: unit that fn is called with: a ``block`` of steps [n], a whole ``trajectory`` [n], or a ``step`` [].
        chunk_size: maximum number of steps per block.
        steps: number of steps to read, from the first; all by default.
        num_workers: worker processes; one per core by default, 1 is this process.
        engine: where workers run: ``local``, or ``ray`` for a Ray cluster.
        ray_address: address of the Ray cluster; ``$RAY_ADDRESS`` or a new local cluster by default.
        store: ``zarr`` or ``memmap``.
        codec: such as ``zstd:level=19``; ``zstd-dict`` for zarr and ``none`` for memmap by default.
        overwrite: start afresh; an existing dataset stays until the new one is complete.
        dry_run: return the first new step and the estimated size; write nothing.
        progress: reports ``steps``, ``shards``, ``bytes read`` and ``bytes written``.

    Returns:
        The new dataset. With dry_run, the preview of it.

    Raises:
        TransformOptionError: a transform is unknown or has wrong options.
        TransformError: a transform does not suit the dataset, or the function fails on a trajectory, which is named.
        DatasetNotFoundError: source does not exist.
        DatasetExistsError: destination is source, or was written with other arguments.
        CorruptDatasetError: source is damaged.
        OptionError, CodecError: an argument is unknown or conflicts with another.
        EngineError: the Ray cluster cannot be joined, or its workers cannot run rlx.
        PartialError: a worker process died; call it again to resume.

    Example:
        >>> rlx.preprocess("cartpole", "long", transform="filter:length > 20", num_workers=1).steps > 0
        True
        >>> def halve(steps):
        ...     steps["next", "reward"] /= 2
        ...     return steps
        >>> _ = rlx.preprocess("cartpole", "half", fn=halve, num_workers=1)
        >>> rlx.open("half")[0]["next", "reward"]
        tensor([0.5000])
    """
    given = listed(transform)
    check_choice("per", per, FunctionUnit)
    check_choice("store", store, Store)
    check_number("chunk_size", chunk_size, 1)
    check_number("steps", steps, 1)
    check_number("num_workers", num_workers, 1)
    if not given and fn is None:
        raise OptionError("no transform given: expected `transform` or `fn`")
    if destination is None and not dry_run:
        raise OptionError("no destination given: expected one, or `dry_run`")
    recipe = _recipe(given, fn, per, chunk_size, steps)
    chosen = {
        "transform": given or None,
        "fn": fn,
        "per": per if fn is not None and per != "block" else None,
        "chunk-size": chunk_size if fn is not None and per == "block" and chunk_size != CHUNK_STEPS else None,
        "steps": steps,
        "store": None if store == "zarr" else store,
        "codec": chosen_codec(codec),
    }
    is_named = all(isinstance(one, str) for one in given) and (fn is None or isinstance(fn, str))
    options = write_options(
        store=store,
        codec=codec,
        jobs=num_workers,
        overwrite=overwrite,
        engine=engine,
        ray_address=ray_address,
        command=command_line("preprocess", [str(source)], chosen) if is_named else "",
    )
    if dry_run or destination is None:
        return preview(locate(source), recipe, options)
    path = Path(check_path("destination", destination, "a directory"))
    return preprocess_dataset(locate(source), path, recipe, options, progress=receiver(progress))


def listed(transform: Transforms | None) -> list[AnyTransform]:
    """Return one transform, several or None as a list."""
    if transform is None:
        return []
    if isinstance(transform, str) or not isinstance(transform, Sequence):
        return [transform]
    return list(transform)


def _recipe(
    transforms: Sequence[AnyTransform],
    fn: str | StepFunction | None,
    per: str,
    chunk_size: int,
    steps: int | None,
) -> Recipe:
    try:
        changes = [parse(one) if isinstance(one, str) else one for one in transforms]
        for one in changes:
            if not isinstance(one, Transform | Learner | Selection):
                message = f"transform {one!r}: expected a text or a transform"
                raise TransformOptionError(message, hint="`fn` takes a function")
        if fn is not None:
            changes.append(Function(Code.named(fn) if isinstance(fn, str) else Code.of(fn), Per(per), chunk_size))
        return Recipe(changes, steps)
    except TransformError as exc:
        raise TransformOptionError(str(exc), hint=exc.hint) from exc
