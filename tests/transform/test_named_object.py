from pathlib import Path

import pytest

from rlx.errors import CollectError, TransformError
from rlx.transform.code import load_object


def test_of_a_module_and_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("answer = 42\n")
    assert load_object(f"{tmp_path}/mine.py:answer", TransformError) == 42
    assert load_object("os.path:join", TransformError)("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("answer", "'answer': expected module:name or file.py:name"),
        (":answer", "expected module:name"),
        ("{dir}/none.py:answer", "none.py does not exist"),
        ("{dir}/broken.py:answer", "broken.py cannot be imported: ZeroDivisionError"),
        ("{dir}/mine.py:question", "mine.py has no 'question'"),
        ("no.such.module:answer", "no.such.module cannot be imported: ModuleNotFoundError"),
    ],
)
@pytest.mark.parametrize("kind", [TransformError, CollectError])
def test_what_is_not_there(tmp_path: Path, text: str, message: str, kind: type[TransformError | CollectError]) -> None:
    (tmp_path / "mine.py").write_text("answer = 42\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(kind) as caught:
        load_object(text.format(dir=tmp_path), kind)
    assert message in str(caught.value)


def test_a_mistyped_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("answer = 42\n")
    with pytest.raises(TransformError, match="has no 'anwser'") as caught:
        load_object(f"{tmp_path}/mine.py:anwser", TransformError)
    assert caught.value.hint == "did you mean answer?"


def test_a_module_that_python_does_not_find_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent_of_mine.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CollectError, match="cannot be imported") as caught:
        load_object("agent_of_mine:answer", CollectError)
    assert str(caught.value.hint).startswith("agent_of_mine.py:NAME ")
