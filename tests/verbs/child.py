"""A verb in a process of its own, to be killed: ``python -m tests.verbs.child VERB SOURCE DST JOBS``.

Says ``ready`` when everything is imported and the verb begins.
"""

import sys
from pathlib import Path


def main(verb: str, source: str, destination: str, jobs: str) -> None:
    """Runs the verb; its error, if any, goes to stdout."""
    try:
        print("ready", flush=True)  # noqa: T201  (within: Ctrl-C may come before it has returned)
        if verb == "fetch":
            fetch(HttpFiles(source), Path(destination), jobs=int(jobs))
        elif verb == "pull":
            pull(source, Path(destination), jobs=int(jobs), progress=Silent())
        elif verb == "push":
            push(source, destination, jobs=int(jobs), progress=Silent())
        elif verb == "from_directory":
            from_directory(Path(source), Path(destination), jobs=int(jobs))
        else:
            converted(Path(source), Path(destination), jobs=int(jobs))
    except RlxError as exc:
        print(f"{type(exc).__name__}: {exc}; {exc.hint}", flush=True)  # noqa: T201
    except KeyboardInterrupt:
        print("interrupted", flush=True)  # noqa: T201


if __name__ == "__main__":  # Its workers import this module too: they need none of these.
    from rlx.errors import RlxError
    from rlx.files.http import HttpFiles
    from rlx.progress import Silent
    from rlx.verbs.pull import pull
    from rlx.verbs.push import push
    from tests.verbs.datasets import converted, fetch, from_directory

    main(*sys.argv[1:])
