"""A verb in a process of its own, to be killed: ``python -m tests.pipeline.child fetch|converted SOURCE DST JOBS``.

Says ``ready`` when everything is imported and the verb begins.
"""

import sys
from pathlib import Path

from rlx.errors import RlxError
from rlx.source.http import HttpBase
from tests.pipeline.datasets import converted, fetch, from_directory


def main(verb: str, source: str, destination: str, jobs: str) -> None:
    """Runs the verb; its error, if any, goes to stdout."""
    print("ready", flush=True)  # noqa: T201
    try:
        if verb == "fetch":
            fetch(HttpBase(source), Path(destination), jobs=int(jobs))
        elif verb == "from_directory":
            from_directory(Path(source), Path(destination), jobs=int(jobs))
        else:
            converted(Path(source), Path(destination), jobs=int(jobs))
    except RlxError as exc:
        print(f"{type(exc).__name__}: {exc}; {exc.hint}", flush=True)  # noqa: T201
    except KeyboardInterrupt:
        print("interrupted", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
