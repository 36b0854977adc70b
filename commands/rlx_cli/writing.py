"""Conversion of command-line options into the library's write options."""

from typing import TYPE_CHECKING

from rlx_cli.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.pipeline.options import Options
    from rlx.store.codec import Codec


def write_options(
    *,
    store: str,
    codec: "Codec | None",
    shards: "Sequence[int] | None",
    jobs: int | None,
    overwrite: bool,
    keep_source: bool = False,
    command: str = "",
    engine: str = "local",
    ray_address: str | None = None,
) -> "Options":
    """Return the library's write options.

    Raises:
        UsageError: ``ray_address`` is given without engine "ray".
    """
    from rlx.pipeline.options import Options

    if ray_address is not None and engine != "ray":
        raise UsageError(
            "--ray-address requires --engine ray", hint=f"add --engine ray: --engine ray --ray-address {ray_address}"
        )
    return Options(
        store=store,
        codec=codec,
        shards=shards,
        jobs=jobs,
        overwrite=overwrite,
        keep_source=keep_source,
        command=command,
        engine=engine,
        ray_address=ray_address,
    )
