"""``rlx.preprocess``: transforms of a dataset into a new one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack, overload

from rlx.errors import OptionError, PartialError, TransformError, TransformOptionError
from rlx.files.urls import check_path
from rlx.progress import Progress, receiver
from rlx.verbs.arguments import FunctionUnit, Options, StoreName, StrPath, WriteArguments, chosen_codec
from rlx.verbs.options import (
    Argument,
    CodecOption,
    EngineOption,
    Option,
    OverwriteOption,
    RayAddressOption,
    StoreOption,
    check,
    dataset_names,
    recorded,
    transform_names,
)

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from rlx.transform.protocol import Learner, Selection, Transform
    from rlx.verbs.recipe import Preview, Recipe
    from rlx.verbs.report import Report

    AnyTransform = str | Transform | Learner | Selection
    Transforms = AnyTransform | Sequence[AnyTransform]
    StepFunction = Callable[[TensorDictBase], TensorDictBase]


class PreprocessArguments(WriteArguments, total=False):
    """Arguments of ``preprocess`` beside the transforms and the function."""

    per: FunctionUnit
    chunk_size: int
    steps: int | None
    num_workers: int | None
    store: StoreName


class _PreprocessArguments(PreprocessArguments, total=False):
    transform: "Transforms | None"
    fn: "str | StepFunction | None"


@overload
def preprocess(
    source: StrPath,
    destination: StrPath,
    *,
    dry_run: Literal[False] = False,
    **arguments: Unpack[_PreprocessArguments],
) -> "Report": ...


@overload
def preprocess(
    source: StrPath,
    destination: StrPath | None = None,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[_PreprocessArguments],
) -> "Preview": ...


def preprocess(
    source: Annotated[
        StrPath,
        Argument(
            "Path of a dataset, or its id below $RLX_HOME.", metavar="SRC", default=False, completes=dataset_names
        ),
    ],
    destination: Annotated[
        StrPath | None, Argument("Directory of the new dataset.", metavar="DST", default=False, recorded=False)
    ] = None,
    *,
    transform: Annotated[
        "Transforms | None",
        Option(
            "Transform to apply; repeatable, applied in order.",
            metavar="NAME[:k=v,...]",
            completes=transform_names,
            is_list=True,
        ),
    ] = None,
    fn: Annotated[
        "str | StepFunction | None",
        Option("module:name or file.py:name of a function of steps, applied last.", metavar="NAME"),
    ] = None,
    per: Annotated[FunctionUnit, Option("Unit that the function is called with.")] = "block",
    chunk_size: Annotated[int, Option("Maximum number of steps per block.", least=1)] = 1024,
    steps: Annotated[int | None, Option("Number of steps to read, from the first.", least=1, default="all")] = None,
    num_workers: Annotated[
        int | None, Option("Worker processes.", least=1, default="one per core", recorded=False)
    ] = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    store: StoreOption = "zarr",
    codec: CodecOption = None,
    overwrite: OverwriteOption = False,
    dry_run: Annotated[
        bool, Option("Show the first new step and the estimated size; write nothing.", recorded=False)
    ] = False,
    progress: Progress | None = None,
) -> "Report | Preview":
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
    given = dict(locals())
    check(preprocess, given)
    transforms = listed(transform)
    if not transforms and fn is None:
        raise OptionError("no transform given: expected `transform` or `fn`")
    if destination is None and not dry_run:
        raise OptionError("no destination given: expected one, or `dry_run`")
    from rlx.home import locate
    from rlx.store.dataset_writer import claimed
    from rlx.verbs.ingest import Ingest
    from rlx.verbs.inputs import opened_parent
    from rlx.verbs.recipe import preview
    from rlx.verbs.report import RECIPE, check_apart
    from rlx.verbs.transformed import transform_shard, unfinished

    recipe = _recipe(transforms, fn, per, chunk_size, steps)
    command = ""
    if isinstance(fn, str | None) and all(isinstance(one, str) for one in transforms):
        of_fn = {"per": per if fn is not None else "block", "chunk_size": chunk_size if fn and per == "block" else 1024}
        command = recorded(preprocess, given, transform=transforms or None, codec=chosen_codec(codec), **of_fn)
    options = Options(
        store=store,
        codec=chosen_codec(codec),
        jobs=num_workers,
        overwrite=overwrite,
        engine=engine,
        ray_address=ray_address,
        command=command,
    )
    path = locate(source)
    if dry_run or destination is None:
        return preview(path, recipe, options)
    place = Path(check_path("destination", destination, "a directory"))
    check_apart(path, place)
    dataset = opened_parent(path)
    transformed = recipe.applied(dataset)
    progress = receiver(progress)
    ingest = Ingest(
        transformed,
        path,
        options,
        progress,
        parents=[dataset],
        recipe={RECIPE: recipe.to_json()},
        renumbers=True,
        work=transform_shard,
    )
    with claimed(place, overwrite=overwrite) as claim:
        left = [transformed.inputs[number] for number in ingest.pending(ingest.check_resumable(claim.place))]
        progress.expect("steps", sum(shard_input.steps for shard_input in left))
        progress.expect("bytes read", sum(shard_input.bytes for shard_input in left))
        try:
            return ingest.run(claim)
        except PartialError as exc:
            hint = exc.hint and exc.hint.replace("`jobs`", "`num_workers`")  # as this command calls it
            raise PartialError(f"{exc}{unfinished(claim.place)}", hint=hint) from exc


def listed(transform: "Transforms | None") -> "list[AnyTransform]":
    """Return one transform, several or None as a list."""
    if transform is None:
        return []
    if isinstance(transform, str) or not isinstance(transform, Sequence):
        return [transform]
    return list(transform)


def _recipe(
    transforms: "Sequence[AnyTransform]",
    fn: "str | StepFunction | None",
    per: str,
    chunk_size: int,
    steps: int | None,
) -> "Recipe":
    from rlx.transform.code import Code
    from rlx.transform.functions import Function, Per
    from rlx.transform.protocol import Learner, Selection, Transform
    from rlx.transform.registry import parse
    from rlx.verbs.recipe import Recipe

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
