"""A folder is replaced whole or not at all, whatever happens in between: exceptions, kills, full disks."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mlx_grpo_kit.files import MANIFEST, replaced_folder, whole_folder, write_file


def write(folder: Path, text: str) -> None:
    with replaced_folder(folder) as new:
        (new / "file").write_text(text)
        with replaced_folder(new / "inner") as inner:
            (inner / text).write_text(text)


def fail(folder: Path, error: type[BaseException]) -> None:
    with replaced_folder(folder) as new:
        (new / "file").write_text("half")
        raise error


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def whole(text: str) -> dict[str, str]:
    return {"file": text, f"inner/{text}": text}


def test_a_free_name_and_missing_parents(tmp_path):
    write(tmp_path / "a" / "b" / "target", "first")
    assert content(tmp_path) == {f"a/b/target/{name}": text for name, text in whole("first").items()}


def test_an_older_one_is_replaced_with_all_that_it_holds(tmp_path):
    write(tmp_path / "target", "first")
    write(tmp_path / "target", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert content(tmp_path / "target") == whole("second")


def test_others_may_read_it(tmp_path):
    write(tmp_path / "target", "first")
    assert (tmp_path / "target").stat().st_mode & 0o055 == 0o055 & ~current_umask()


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("existing", [True, False])
def test_an_exception_while_writing_changes_nothing(tmp_path, error, existing):
    if existing:
        write(tmp_path / "target", "first")
    with pytest.raises(error):
        fail(tmp_path / "target", error)
    assert content(tmp_path) == ({f"target/{name}": text for name, text in whole("first").items()} if existing else {})
    assert not [path for path in tmp_path.iterdir() if path.name != "target"]


def test_an_exception_between_the_two_renames_changes_nothing(tmp_path, monkeypatch):
    write(tmp_path / "target", "first")
    rename = Path.rename

    def full(self, target):
        if self.name == "new":
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "target", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert content(tmp_path / "target") == whole("first")


def test_a_disk_that_fails_to_flush_is_an_error(tmp_path, monkeypatch):
    def broken(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    write(tmp_path / "target", "first")
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write(tmp_path / "target", "second")
    assert content(tmp_path / "target") == whole("first")


def test_several_writers_of_one_folder_do_not_fail(tmp_path):
    """Each of them replaces whatever another one has put there; in the end it is one of theirs, whole."""
    errors = []

    def write_often(text):
        try:
            for _ in range(100):
                write(tmp_path / "target", text)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write_often, args=[text]) for text in ("first", "second", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert content(tmp_path / "target") in [whole(text) for text in ("first", "second", "third")]


# Kills. The process dies at its n-th fsync or rename, without any `except` or `finally`.


def kill_at(call: str, number: int, folder: Path) -> int:
    """Replace `folder` by "second" in a process that is gone just before its `number`-th `call`; -> how it ended."""
    script = f"""
import os, sys
from pathlib import Path
from mlx_grpo_kit.files.atomic import replaced_folder
left = {number}
def dying(original):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return original(*args, **kwargs)
    return call
with replaced_folder({str(folder)!r}) as new:
    (new / "file").write_text("second")
    with replaced_folder(new / "inner") as inner:
        (inner / "second").write_text("second")
    owner, name = (os, "fsync") if {call!r} == "fsync" else (Path, {call!r})
    setattr(owner, name, dying(getattr(owner, name)))
"""
    return subprocess.run([sys.executable, "-c", script], check=False, cwd=Path(__file__).parents[2]).returncode


@pytest.mark.parametrize(
    ("call", "number", "survives"),
    [
        ("write_text", 0, "first"),  # the list
        ("fsync", 0, "first"),
        ("fsync", 5, "first"),
        ("rename", 0, "first"),
        ("rename", 1, "second"),  # the old one is already out of the way: the new one is whole, and found
        ("unlink", 0, "second"),  # the old one is deleted
        ("unlink", 3, "second"),
        ("rmdir", 1, "second"),
        ("rmdir", 2, "second"),
        ("fsync", 6, "second"),
    ],
)
def test_a_kill_leaves_the_old_one_or_the_new_one(tmp_path, call, number, survives):
    target = tmp_path / "target"
    write(target, "first")
    assert kill_at(call, number, target) == -9
    assert content(whole_folder(target)) == whole(survives)
    assert content(whole_folder(target)) == whole(survives), "reading does not change it"

    # The next writer clears up, and if it fails itself, what was readable stays so.
    with pytest.raises(KeyboardInterrupt):
        fail(target, KeyboardInterrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert content(target) == whole(survives)
    write(target, "third")
    assert content(tmp_path) == {f"target/{name}": text for name, text in whole("third").items()}


def test_clearing_up_leaves_other_folders_and_living_writers_alone(tmp_path):
    write(tmp_path / "best", "first")
    write(tmp_path / "best.old", "first")
    assert kill_at("rename", 1, tmp_path / "best.old") == -9
    with replaced_folder(tmp_path / "best") as slow:
        (slow / "file").write_text("slow")
        write(tmp_path / "best", "fast")
        assert (slow / "file").exists()
    assert content(tmp_path / "best") == {"file": "slow"}
    assert content(whole_folder(tmp_path / "best.old")) == whole("second")


def test_whole_folder_of_what_never_was(tmp_path):
    assert whole_folder(tmp_path / "target") == tmp_path / "target"
    assert whole_folder(str(tmp_path)) == tmp_path


# What must not be replaced.


def test_a_file_is_not_replaced(tmp_path):
    (tmp_path / "target").write_text("mine")
    with pytest.raises(FileExistsError, match="target is a file; expected a folder to write, or a new name"):
        write(tmp_path / "target", "first")
    assert content(tmp_path) == {"target": "mine"}


def test_a_folder_with_something_else_in_it_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match=r"contains thesis.tex, which the kit did not write.*Choose another"):
        write(tmp_path, "first")
    assert content(tmp_path) == {"thesis.tex": "mine"}


def write_meanwhile(folder: Path, place: str) -> None:
    with replaced_folder(folder) as new:
        (new / "file").write_text("second")
        (folder / place).write_text("mine")


@pytest.mark.parametrize("place", ["thesis.tex", "inner/thesis.tex"])
def test_what_is_put_there_while_the_new_one_is_written_is_not_deleted(tmp_path, place):
    write(tmp_path / "target", "first")
    with pytest.raises(FileExistsError, match=f"contains {place}, which the kit did not write"):
        write_meanwhile(tmp_path / "target", place)
    assert content(tmp_path) == {f"target/{name}": text for name, text in (whole("first") | {place: "mine"}).items()}


def test_what_only_looks_like_a_leftover_stays(tmp_path):
    foreign = tmp_path / ".target.12345678.tmp" / "new"
    foreign.mkdir(parents=True)
    (foreign / "thesis.tex").write_text("mine")
    write(tmp_path / "target", "first")
    assert (foreign / "thesis.tex").read_text() == "mine"


def test_a_name_that_is_not_utf_8(tmp_path):
    with pytest.raises(ValueError, match="is not UTF-8, and MLX cannot open other names"):
        write(tmp_path / os.fsdecode(b"caf\xe9"), "first")
    assert not list(tmp_path.iterdir())


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_file(tmp_path / "file", b"first")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'$"):
        write_file(tmp_path / "file", b"second")
    assert content(tmp_path) == {"file": "first"}


def test_a_link_in_the_place_of_a_file_on_its_way_is_not_followed(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / ".file.new").symlink_to("thesis.tex")
    write_file(tmp_path / "file", b"first")
    (tmp_path / ".file.new").write_bytes(b"what a killed process left")
    write_file(tmp_path / "file", b"second")
    assert content(tmp_path) == {"file": "second", "thesis.tex": "mine"}
    assert not (tmp_path / "file").is_symlink()


def test_an_empty_folder_is_replaced(tmp_path):
    (tmp_path / "target").mkdir()
    write(tmp_path / "target", "first")
    assert content(tmp_path / "target") == whole("first")


def test_a_link_stays_a_link(tmp_path):
    write(tmp_path / "step-1", "first")
    (tmp_path / "latest").symlink_to("step-1")
    write(tmp_path / "latest", "second")
    assert (tmp_path / "latest").is_symlink()
    assert content(tmp_path / "step-1") == whole("second")


def test_a_name_with_wildcards(tmp_path):
    target = tmp_path / "run[1]*"
    write(target, "first")
    assert kill_at("rename", 1, target) == -9
    assert content(whole_folder(target)) == whole("second")
