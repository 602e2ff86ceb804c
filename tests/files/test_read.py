"""Whatever stands where a file of settings should be: its content, or one clear error, and never a wait without end."""

import json
import os
import subprocess
import sys

import pytest

from mlx_grpo_kit.files import check_regular, read_file, read_json
from mlx_grpo_kit.files.read import MAX_BYTES

# A read that hangs must not hang the tests: it happens in a process that is given ten seconds.
READ = """if True:
    import sys
    from pathlib import Path
    from mlx_grpo_kit.files import read, read_json
    exec(sys.argv[2])
    try:
        print(read_json(Path(sys.argv[1]), "config.json"))
    except (OSError, ValueError) as error:
        print(type(error).__name__, error)
"""


def read_elsewhere(folder, before=""):
    command = [sys.executable, "-c", READ, str(folder), before]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "ValueError" in read_elsewhere(tmp_path)
    with pytest.raises(ValueError, match=r"config.json is a pipe or a device; expected a file"):
        check_regular(tmp_path / "config.json")


def test_a_device_without_end_is_refused(tmp_path):
    (tmp_path / "config.json").symlink_to("/dev/zero")
    assert "config.json is a pipe or a device; expected a file" in read_elsewhere(tmp_path)


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match=r"config.json is a folder; expected a file"):
        read_json(tmp_path, "config.json")


def test_a_file_that_became_a_pipe_after_it_was_looked_at(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "config.json is a pipe or a device" in read_elsewhere(tmp_path, "read.check_regular = lambda path: None")


def test_the_size_has_a_limit(tmp_path):
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(MAX_BYTES + 1)  # a hole: nothing of it is on the disk
    with pytest.raises(ValueError, match=r"config.json has more than 67,108,864 bytes"):
        read_json(tmp_path, "config.json")
    (tmp_path / "small").write_bytes(b"12345")
    assert read_file(tmp_path / "small", max_bytes=5) == b"12345"
    with pytest.raises(ValueError, match="has more than 4 bytes"):
        read_file(tmp_path / "small", max_bytes=4)


def test_a_link_to_a_file_is_a_file(tmp_path):
    """The download cache of Hugging Face is made of links."""
    (tmp_path / "blob").write_text('{"a": 1}')
    (tmp_path / "config.json").symlink_to("blob")
    assert read_json(tmp_path, "config.json") == {"a": 1}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": 1', b"\xff\xfe{}", b'{"a": \xe9}', b'\xef\xbb\xbf{"a": 1}', b"[" * 100_000, b"\0" * 40,
     b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'{"a": ' + b"9" * 5000 + b"}", b"nul", b'{"a": 1}}'],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_what_is_not_json_is_one_error_that_names_the_file(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config.json is not valid JSON .*cut off or corrupt; copy it again"):
        read_json(tmp_path, "config.json")


@pytest.mark.parametrize("content", [[], 1, "text", None, True])
def test_what_is_json_and_no_object(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"config.json contains \w+; expected a JSON object"):
        read_json(tmp_path, "config.json")


def test_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere"):
        read_json(tmp_path / "nowhere", "config.json")
    with pytest.raises(FileNotFoundError, match=r"has no config.json; expected a Hugging Face model folder"):
        read_json(tmp_path, "config.json")
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "config.json")
