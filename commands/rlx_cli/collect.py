"""``rlx collect``: collect steps of an environment into a dataset."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlx.api.arguments import write_options
from rlx.api.lineage import command_line
from rlx_cli.exit_codes import UsageError
from rlx_cli.options import (
    CodecOption,
    DebugOption,
    EngineOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RayAddressOption,
    StoreOption,
)
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports

_DEFAULT_ENV = "ALE/Pong-v5"
_DEFAULT_STEPS = 10_000
_SHARD_STEPS = 100_000


class RewardDtype(StrEnum):
    """How rewards are stored."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


def collect(
    ctx: typer.Context,
    env: Annotated[
        str,
        typer.Argument(metavar="[ENV]", help="Gymnasium id, or module:name or file.py:name of an environment factory."),
    ] = _DEFAULT_ENV,
    destination: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Dataset directory.", show_default="$RLX_HOME/ENV"),
    ] = None,
    envs: Annotated[int, typer.Option("--envs", min=1, max=2**16, metavar="N", help="Environments per worker.")] = 4,
    workers: Annotated[int, typer.Option("--workers", min=1, max=2**12, metavar="N", help="Worker processes.")] = 1,
    sync: Annotated[
        bool,
        typer.Option("--sync/--async", help="Equal shares per worker, reproducible from the seed; or work on demand."),
    ] = True,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", help="Exact number of steps.", show_default=f"{_DEFAULT_STEPS:,}"),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, metavar="N", help="Number of whole episodes, instead of --steps.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="Policy: random, module:name, file.py:name, file.pt2, or file.pt:module:factory.",
        ),
    ] = "random",
    epsilon: Annotated[
        float, typer.Option("--epsilon", min=0, max=1, metavar="P", help="Probability of a random action.")
    ] = 0.0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Mode of the policy's distribution instead of a sample."),
    ] = False,
    drop: Annotated[
        str | None,
        typer.Option("--drop", metavar="KEY,...", help="Policy outputs to drop, such as logits,next/value."),
    ] = None,
    info: Annotated[
        str | None,
        typer.Option("--info", metavar="KEY,...|all", help="Info entries to keep, as next/info/KEY."),
    ] = None,
    reward_dtype: Annotated[
        RewardDtype | None,
        typer.Option(
            "--reward-dtype",
            help="Reward dtype; float32 rounds.",
            show_default="float32, or float64 if float32 would change a reward",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Random seed.")] = 0,
    shard_steps: Annotated[
        int,
        typer.Option(
            "--shard-steps", min=1, metavar="N", help="Steps per shard; at most this many are lost in a crash."
        ),
    ] = _SHARD_STEPS,
    step_timeout: Annotated[
        float | None,
        typer.Option(
            "--step-timeout",
            min=0.001,
            metavar="SECONDS",
            help="Time limit of a step or reset; a worker that exceeds it is replaced.",
            show_default="no limit",
        ),
    ] = None,
    store: StoreOption = "zarr",
    codec: CodecOption = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume until --steps or --episodes is reached, with fresh seeds.")
    ] = False,
    overwrite: OverwriteOption = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Collect steps of an environment into a dataset.

    \b
    Examples:
      rlx collect
      rlx collect ALE/Breakout-v5 --envs 8 --workers 4 --steps 1000000
      rlx collect CartPole-v1 --episodes 100 --policy agent.py:act -o cartpole
      rlx collect CartPole-v1 --policy agent.pt:agent:Actor --drop logits
      rlx collect ALE/Breakout-v5 --steps 1000000 --info lives --resume

    Keeps all policy outputs, such as log-probs and hidden states. Atari games use the preprocessing of the DQN Replay
    Dataset. Episodes that --steps cuts are flagged truncated.
    """
    from rlx.collector.dataset_collector import Budget, Collection
    from rlx.collector.policy.spec import PolicySpec
    from rlx.home import home
    from rlx.pipeline.collect import collect as collect_steps

    output: Output = ctx.obj
    if steps is not None and episodes is not None:
        raise UsageError("--steps and --episodes are mutually exclusive", hint="rlx collect --help")
    if destination is None and ":" in env:
        raise UsageError(f"{env} has no id to derive a directory from: -o is required", hint="rlx collect ENV -o DIR")
    budget = Budget(episodes=episodes) if episodes is not None else Budget(steps=steps or _DEFAULT_STEPS)
    chosen: dict[str, object] = {"steps": budget.steps, "episodes": episodes, "envs": envs}
    if workers > 1:
        chosen |= {"workers": workers, "async": None if sync else True}
    chosen |= {
        "policy": policy,
        "epsilon": epsilon or None,
        "deterministic": deterministic or None,
        "drop": drop,
        "info": info,
    }
    chosen |= {"reward-dtype": None if reward_dtype is None else reward_dtype.value, "seed": seed}
    chosen["shard-steps"] = None if shard_steps == _SHARD_STEPS else shard_steps
    chosen["step-timeout"] = step_timeout
    command = command_line("collect", [env], chosen)
    options = write_options(
        store=store,
        codec=codec,
        shards=None,
        jobs=None,
        overwrite=overwrite,
        command=command,
        engine=engine,
        ray_address=ray_address,
    )
    collection = Collection(
        *(env, budget, envs, PolicySpec(policy, epsilon, deterministic), seed, shard_steps, resume, workers, sync),
        drop=_listed(drop),
        info_keys="all" if info == "all" else _listed(info),
        reward=None if reward_dtype is None else reward_dtype.value,
        step_timeout=step_timeout,
    )
    path = destination or home() / env
    if code := _code(env, policy):
        output.say("note", f"this runs code of {' and '.join(code)}")
    with (
        resumable(path, hint="run the same command with --resume"),
        showing(output, f"collect {env}") as progress,
    ):
        report = collect_steps(collection, path, options, progress)
    show_reports(output, [report], as_list=False)


def _code(env: str, policy: str) -> list[str]:
    """What a user's own code is read from: modules, files of Python, and exported modules, which are programs too."""
    named = [name for name in (env, policy) if ":" in name or name.endswith((".pt", ".pt2"))]
    return list(dict.fromkeys(name.rpartition(":")[0].rpartition(".pt:")[2] or name for name in named))


def _listed(keys: str | None) -> list[str]:
    return [key for key in (keys or "").split(",") if key]
