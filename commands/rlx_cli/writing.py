"""What the options of a command that writes datasets mean to the library."""

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
    """The library's options.

    Raises:
        UsageError: there is an address, and no cluster is asked for.
    """
    from rlx.pipeline.options import Options

    if ray_address is not None and engine != "ray":
        raise UsageError("--ray-address is for --engine ray", hint=f"--engine ray --ray-address {ray_address}")
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
