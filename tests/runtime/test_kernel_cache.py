"""Compiled functions are kept where nobody else can put one, and nothing else in the process is told of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_grpo_kit.runtime import kernel_cache
from mlx_grpo_kit.runtime.blas import wheel_has_reference_blas

linux_cpu_wheel = pytest.mark.skipif(not wheel_has_reference_blas(), reason="this MLX is not the Linux CPU wheel")
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is done")
root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")

PROBE = """if True:
    import os, tempfile
    before = dict(os.environ), tempfile.gettempdir()
    from mlx_grpo_kit.runtime import blas
    from mlx_grpo_kit.runtime import mx
    x = mx.linspace(0, 1, 8)
    print(mx.abs(mx.compile(lambda x: mx.exp(x) * 0.7 + x)(x) - (mx.exp(x) * 0.7 + x)).max().item() < 1e-5)
    print((dict(os.environ), tempfile.gettempdir()) == before)
    print(blas.kernels)
    print(*(path.name for path in blas.kernels.glob("mlx/*/cpu/*.so")) if blas.kernels else "")
"""


def probe(**variables):
    """Compile a function in a fresh process; -> the folder, the files there, what was said on stderr."""
    temporary = ("TMPDIR", "TMP", "TEMP", "TEMPDIR", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in temporary} | variables
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    right, unchanged, folder, kernels = done.stdout.splitlines()
    assert (right, unchanged) == ("True", "True")
    return folder, kernels.split(), done.stderr


@pytest.fixture
def shared(tmp_path):
    """A folder for temporary files that everybody may write to, as /tmp is."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    return tmp_path / "shared"


@linux_cpu_wheel
@pytest.mark.parametrize("name", [None, "TEMP"])
def test_the_kits_own_folder_serves_mlx_and_nobody_else_is_told(tmp_path, shared, name):
    folder, kernels, said = probe(HOME=str(tmp_path), **({name: str(shared)} if name else {}))
    assert folder.startswith(str(tmp_path / ".cache" / "mlx_grpo_kit"))
    assert len(kernels) == 1
    assert said == ""
    assert list(shared.iterdir()) == []
    assert (tmp_path / ".cache" / "mlx_grpo_kit").stat().st_mode & 0o777 == 0o700


@linux_cpu_wheel
def test_what_lies_in_a_shared_folder_is_neither_run_nor_in_the_way(tmp_path, shared):
    """MLX itself would load the file, and would fail where the folder belongs to somebody else."""
    _, [kernel], _ = probe(HOME=str(tmp_path / "first"))
    version = next((tmp_path / "first").glob(".cache/mlx_grpo_kit/*/mlx/*")).name
    (shared / "mlx" / version / "cpu").mkdir(parents=True)
    (shared / "mlx" / version / "cpu" / kernel).write_text("not a library")
    assert probe(HOME=str(tmp_path / "second"), TMPDIR=str(shared))[1] == [kernel]
    assert (shared / "mlx" / version / "cpu" / kernel).read_text() == "not a library"


@linux_cpu_wheel
def test_a_library_that_a_kill_left_half_written_is_made_again(tmp_path):
    """MLX would find it, fail to load it, and never write another in its place."""
    folder, [kernel], _ = probe(HOME=str(tmp_path))
    [library] = Path(folder).glob(f"mlx/*/cpu/{kernel}")
    whole = library.read_bytes()
    kernel_cache._remove_cut_off(Path(folder))
    assert library.read_bytes() == whole
    for content in (b"", whole[:30], whole[:64], whole[: len(whole) // 2], whole[:-1], b"\0" * len(whole)):
        library.write_bytes(content)
        kernel_cache._remove_cut_off(Path(folder))
        assert library.exists(), "another process may just be writing it"
        os.utime(library, (1, 1))
        kernel_cache._remove_cut_off(Path(folder))
        assert not library.exists()
    library.write_bytes(whole[:4096])
    os.utime(library, (1, 1))
    assert probe(HOME=str(tmp_path))[1] == [kernel]
    assert library.stat().st_size == len(whole)


@linux
def test_one_file_that_gives_trouble_leaves_the_rest_of_the_cache_in_use(tmp_path, monkeypatch):
    """MLX writes a library under another name and renames it, so a listed file may be gone a moment later."""
    (tmp_path / "mlx" / "1" / "cpu").mkdir(parents=True)
    cut_off = tmp_path / "mlx" / "1" / "cpu" / "cut-off.so"
    cut_off.touch()
    os.utime(cut_off, (1, 1))
    (tmp_path / "mlx" / "1" / "cpu" / "a-folder.so").mkdir()
    names = ["gone.so", "a-folder.so", "cut-off.so"]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: (tmp_path / "mlx" / "1" / "cpu" / name for name in names))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tmp_path.chmod(0o700)
    assert kernel_cache.use_private_folder()[0] == tmp_path
    assert not cut_off.exists()


@linux_cpu_wheel
def test_a_folder_for_temporary_files_that_is_the_users_alone_is_good_enough(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    folder, kernels, said = probe(TMPDIR=str(tmp_path / "mine"), HOME=str(tmp_path))
    assert (folder, len(kernels), said) == (str(tmp_path / "mine"), 1, "")
    assert not (tmp_path / ".cache").exists()


@linux_cpu_wheel
def test_without_a_folder_functions_run_uncompiled_and_that_is_said(tmp_path, shared):
    (tmp_path / "file").touch()
    folder, kernels, said = probe(HOME=str(tmp_path / "file"), TMPDIR=str(shared))
    assert (folder, kernels, list(shared.iterdir())) == ("None", [], [])
    assert said.count("RuntimeWarning") == 1
    assert "run uncompiled" in said
    assert "Not a directory" in said
    assert "export XDG_CACHE_HOME=" in said


@linux
class TestWhoseFolder:
    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        kernel_cache._cache_folder()
        return tmp_path / "cache"

    def test_it_is_found_again(self, cache):
        assert kernel_cache._cache_folder().parent == cache / "mlx_grpo_kit"

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o701])
    def test_one_that_is_open_to_others_is_refused(self, cache, mode):
        (cache / "mlx_grpo_kit").chmod(mode)
        with pytest.raises(OSError, match="mlx_grpo_kit is open to other users"):
            kernel_cache._cache_folder()

    def test_a_link_is_refused(self, cache):
        (cache / "mlx_grpo_kit").rename(cache / "elsewhere")
        (cache / "mlx_grpo_kit").symlink_to("elsewhere")
        with pytest.raises(OSError, match="mlx_grpo_kit is no folder of its own"):
            kernel_cache._cache_folder()

    def test_a_file_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        (tmp_path / "mlx_grpo_kit").touch()
        with pytest.raises(OSError, match="mlx_grpo_kit"):
            kernel_cache._cache_folder()

    def test_a_folder_above_that_everybody_may_write_to_is_refused(self, cache):
        cache.chmod(0o777)
        with pytest.raises(OSError, match="everybody can write to"):
            kernel_cache._cache_folder()
        cache.chmod(0o1777)  # nobody can move what others have there
        kernel_cache._cache_folder()

    @root
    def test_somebody_elses_is_refused(self, cache):
        os.chown(cache / "mlx_grpo_kit", 12345, -1)
        with pytest.raises(OSError, match="mlx_grpo_kit belongs to another user"):
            kernel_cache._cache_folder()
        os.chown(cache / "mlx_grpo_kit", 0, -1)
        os.chown(cache, 12345, -1)
        with pytest.raises(OSError, match=r"above .*, belongs to another user"):
            kernel_cache._cache_folder()

    def test_no_home(self, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        with pytest.raises(OSError, match="no home folder"):
            kernel_cache._cache_folder()


def test_other_systems_keep_theirs(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert kernel_cache.use_private_folder()[0] is None
