"""The wiring of ``rlx``: its commands, and the translation of errors into messages and exit codes."""

import inspect as inspect_module
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import wraps
from types import FunctionType, MappingProxyType
from typing import Annotated, Any, cast

import typer

from rlx.errors import FileAccessError, MissingExtraError, OptionError, RlxError
from rlx.files.disk import file_error
from rlx.plugins import OWN, Plugin, added, plugins
from rlx.wording import did_you_mean
from rlx_cli.options import DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output, abandon, abandon_if_failed, results_apart, secure
from rlx_cli.report import ERROR, INTERRUPTED, PIPE_CLOSED, USAGE, UsageError, exit_code

# Messages of pydantic, which validates Typer's values, and rlx's words for them.
_PYDANTIC: Mapping[str, str] = MappingProxyType(
    {
        "Value error, ": "",
        "Input should be (less than or equal to|at most) ": "expected at most ",
        "Input should be (greater than or equal to|at least) ": "expected at least ",
        "Input should be a valid integer[^,]*(, unable to parse string as an integer)?": "expected a whole number",
        "Input should be a valid number[^,]*(, unable to parse string as a number)?": "expected a number",
        "Input should be ": "expected ",
    }
)
_NOT_MAPPED = "failed to map segment"  # a library of torch does not fit under ulimit -v
_CHOICE = re.compile(r"'([^']*)' is not one of (.*)")
# Typer does not export the root of its usage errors.
_TyperUsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
# Output.of reads these from the command line; declared for every command, they are also accepted after it.
_OUTPUT_OPTIONS = (("_json", JsonOption), ("_quiet", QuietOption), ("_debug", DebugOption))


def with_output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that also accepts ``--json``, ``--quiet`` and ``--debug``."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        with redirect_stdout(sys.stderr):  # what the user's code prints; results go to Output's stream
            command(**{name: value for name, value in arguments.items() if name not in dict(_OUTPUT_OPTIONS)})

    taken = inspect_module.signature(command)
    added = [
        inspect_module.Parameter(name, inspect_module.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in _OUTPUT_OPTIONS
    ]
    run.__dict__["__signature__"] = taken.replace(parameters=[*taken.parameters.values(), *added])
    run.__annotations__ = {**command.__annotations__, **dict(_OUTPUT_OPTIONS)}
    return run


for _name, _value in OWN["rlx.commands"].items():
    app.command(_name)(with_output_options(Plugin("rlx.commands", _name, _value, "rlx").load(FunctionType)))


def add_plugins(app: typer.Typer, word: str) -> None:
    """Add the commands of other packages; only the one that is called is imported."""
    for plugin in plugins("rlx.commands").values():
        if plugin.name == word and not plugin.is_own:
            app.command(word)(with_output_options(plugin.load(FunctionType)))
        elif not plugin.is_own:
            app.command(plugin.name, help=f"A command of {plugin.package}.")(_not_loaded)


def _not_loaded() -> None:
    """Stand for a command that is listed, and not called."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from rlx import __version__

        typer.echo("\n".join([f"rlx {__version__}", *added()]))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def rlx(
    ctx: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Download, collect, convert, inspect and sample reinforcement-learning data.

    \b
    Examples:
      rlx download Pong/5          download a DQN run on Atari, or resume it
      rlx inspect Pong/5 --stats   show its contents and statistics
      rlx view Pong/5              show its episodes
      rlx sample Pong/5            draw a batch
      rlx verify Pong/5            verify checksums
      rlx doctor Pong/5            check flags, rewards, duplicates

    Datasets are named by a path, or by an id below $RLX_HOME (~/.local/share/rlx).
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(USAGE)


def main() -> None:
    """Run the command of ``sys.argv``, and exit."""
    secure()
    with results_apart():
        code = _ended()
    sys.exit(code)


def _ended() -> int:
    """Run the command; return its exit code."""
    output = Output.of(sys.argv[1:])
    try:
        code = _run(output)
        sys.stdout.flush()
    except BrokenPipeError:
        abandon(sys.stdout.fileno())
        code = PIPE_CLOSED
    except OSError as exc:
        abandon(sys.stdout.fileno())
        code = _fail(Output(debug=output.debug, secrets=output.secrets), file_error(exc, "stdout"))
    return code


def _run(output: Output) -> int:
    try:
        with output.logging():
            if (word := _word()) not in OWN["rlx.commands"]:
                add_plugins(app, word)
            # Typer returns the code of an Exit, which Ctrl-C becomes as well, or None.
            code: int = app(standalone_mode=False, prog_name="rlx", obj=output) or 0
    except OptionError as error:
        usage = UsageError(str(error), hint=error.hint or _help())
        usage.__cause__ = error
        return _fail(output, usage)
    except RlxError as error:
        cause = error.__cause__ if isinstance(error, MissingExtraError) else None
        return _fail(output, _no_memory(cause) if isinstance(cause, ImportError) and _lacks_memory(cause) else error)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None  # Typer has ended with 1
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:  # perhaps of stdout
            abandon_if_failed()
        if (translated := _translated(error)) is None:  # a bug: show its traceback, with secrets hidden
            output.trace(error)
            return ERROR
        return _fail(output, translated)
    if code == INTERRUPTED:
        output.say("error", "interrupted")
    return code


def _fail(output: Output, error: RlxError) -> int:
    output.fail(error)
    return exit_code(error)


def _translated(error: Exception) -> RlxError | None:
    """Return the ``RlxError`` of an error that the user can fix; None for a bug."""
    if isinstance(error, _TyperUsageError):
        return _usage_error(error)
    if isinstance(error, OSError):
        return _system_error(error)
    if isinstance(error, MemoryError) or _lacks_memory(error):
        return _no_memory(error)
    return _path_error(error) if isinstance(error, RuntimeError) else None


def _lacks_memory(error: Exception) -> bool:
    return isinstance(error, ImportError) and _NOT_MAPPED in str(error)


def _system_error(error: OSError) -> RlxError:
    translated = file_error(error)
    translated.__cause__ = error
    return translated


def _path_error(error: RuntimeError) -> RlxError | None:
    """Return the error of a path that pathlib cannot resolve; None for any other error."""
    said = str(error)
    if said.startswith("Symlink loop"):
        name = said.partition(" from ")[2].strip("'\"")
        return FileAccessError(f"{name}: too many levels of symbolic links", hint="ls -ld shows where each leads")
    if said.startswith("Could not determine home directory"):
        return FileAccessError("this user has no home directory", hint="set HOME, or RLX_HOME for the datasets")
    return None


def _no_memory(error: Exception) -> RlxError:
    said = f": {error}" if str(error) else ""
    translated = RlxError(
        f"not enough memory{said}", hint="use a smaller batch or fewer workers, or raise the limit: ulimit -v unlimited"
    )
    translated.__cause__ = error
    return translated


def _usage_error(error: Exception) -> UsageError:
    message: str = error.format_message()  # type: ignore[attr-defined]
    invalid: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if "Input should be" in message and invalid:
        message += f", found {invalid[0]['input']}"
    for pattern, words in _PYDANTIC.items():
        message = re.sub(pattern, words, message)
    choice = _CHOICE.search(message)
    suggestion = did_you_mean(choice[1], re.findall("'([^']*)'", choice[2])) if choice else None
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=suggestion or _help())


def _help() -> str:
    """Return the command that shows the help of the given command."""
    word = _word()
    return " ".join(["rlx", *([word] if word in plugins("rlx.commands") else []), "--help"])


def _word() -> str:
    """Return the command that is called."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")
