"""Checkpoints of every backend: what is in them, what is refused and why, and that a refusal changes nothing."""

import asyncio
import errno
import hashlib
import json
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import trio
import trio.testing

from mlx_grpo_kit.backends import TrainingError, newest_checkpoint, read_metadata
from mlx_grpo_kit.backends.arrays import as_numpy
from mlx_grpo_kit.files import MANIFEST, is_scratch
from tests.backends.frameworks import WIDTH
from tests.every import every

METADATA = "metadata.json"


def train(framework, backend, steps):
    """A few steps; -> their losses, and the weights afterwards."""
    losses = []
    for step in steps:
        losses.append(backend.forward_backward(framework.batch(step)).wait()["loss"])
        backend.optim_step().wait()
    weights = {name: as_numpy(array) for name, array in backend.get_weights().wait().items()}
    return losses, weights


def save(backend, step=3, metrics=None) -> Path:
    return trio.run(backend.save_checkpoint, step, metrics)


def load(backend, path):
    return trio.run(backend.load_checkpoint, path)


def assert_same(found, expected):
    assert found[0] == expected[0]
    for name in expected[1]:
        np.testing.assert_array_equal(found[1][name], expected[1][name])


@pytest.fixture
def saved(framework, backend):
    """A checkpoint after three steps."""
    train(framework, backend, range(3))
    return save(backend, 3, {"loss": 0.5})


def reseal(folder: Path) -> None:
    """Make metadata.json agree with what is there: what somebody would do who writes such a folder himself."""
    metadata = json.loads((folder / METADATA).read_text())
    for name in metadata["files"]:
        content = (folder / name).read_bytes()
        metadata["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / METADATA).write_text(json.dumps(metadata))
    (folder / MANIFEST).unlink(missing_ok=True)


class TestWhatIsSaved:
    def test_going_on_from_it_is_going_on(self, framework, backend, saved, tmp_path):
        expected = train(framework, backend, range(3, 6))
        backend.forward_backward(framework.batch()).wait()  # a gradient of these weights
        assert load(backend, saved)["step"] == 3
        assert (backend.current_step, backend.weight_version) == (3, 1)
        assert_same(train(framework, backend, range(3, 6)), expected)

        other = framework.make(tmp_path / "other")
        train(framework, other, [7])
        load(other, saved)
        assert (other.current_step, other.weight_version) == (3, 1)
        assert_same(train(framework, other, range(3, 6)), expected)
        assert other.current_step == 6

    def test_one_that_has_not_taken_a_step_takes_it_too(self, framework, saved, tmp_path):
        other = framework.make(tmp_path / "other")
        load(other, str(saved))
        train(framework, other, [1])

    def test_names_and_metadata(self, framework, backend, saved):
        assert saved == backend.checkpoint_dir / "step_0003"
        tops = {name.partition("/")[0] for name in framework.files}
        assert {path.name for path in saved.iterdir()} == {*tops, METADATA, MANIFEST}
        metadata = read_metadata(saved)
        assert metadata == json.loads((saved / METADATA).read_text())
        assert metadata.keys() == {
            "step", "current_step", "weight_version", "timestamp", "metrics", "files", "backend", "optimizer",
        }  # fmt: skip
        assert (metadata["step"], metadata["weight_version"], metadata["metrics"]) == (3, 1, {"loss": 0.5})
        assert time.time() - 100 < metadata["timestamp"] <= time.time()
        assert metadata["files"].keys() >= set(framework.files)
        assert {name.partition("/")[0] for name in metadata["files"]} == tops
        for name, entry in metadata["files"].items():
            content = (saved / name).read_bytes()
            assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def test_it_is_what_the_operations_before_it_lead_to_however_it_is_awaited(self, framework, backend):
        """Submitted in order with them, also where nobody awaits it."""
        paths = []
        for step in (1, 2, 3, 4):
            backend.forward_backward(framework.batch(step))
            backend.optim_step()
            paths.append(backend.save_checkpoint(step))
            expected = backend.get_weights()

        async def both(future):
            return await future, await future.result()

        assert trio.run(both, paths[0]) == asyncio.run(both(paths[0])) == (paths[0].wait(),) * 2
        assert asyncio.run(paths[1]) == asyncio.run(paths[1]) == paths[1].wait()
        loading = backend.load_checkpoint(paths[2].wait())
        assert loading.wait()["step"] == 3
        path = backend.checkpoint_dir / "step_0004"
        backend.load_checkpoint(path)
        weights = backend.get_weights().wait()
        for name, array in expected.wait().items():
            np.testing.assert_array_equal(as_numpy(weights[name]), as_numpy(array))
        assert trio.run(backend.load_checkpoint, path)["weight_version"] == 4

    @pytest.mark.parametrize(("step", "name"), [(0, "step_0000"), (np.int64(7), "step_0007"), (12345, "step_12345")])
    def test_the_folder_is_named_after_the_step(self, backend, step, name):
        path = save(backend, step)
        assert path.name == name
        assert type(read_metadata(path)["step"]) is int

    def test_weight_version_counts_what_is_in_place(self, framework, backend, tmp_path):
        assert [read_metadata(save(backend, step))["weight_version"] for step in (1, 2, 2)] == [1, 2, 3]
        assert backend.weight_version == 3
        load(backend, backend.checkpoint_dir / "step_0001")
        assert backend.weight_version == 1

    def test_the_number_in_its_name_is_the_callers_and_the_steps_done_are_the_backends(self, framework, backend, saved):
        path = save(backend, 100)
        train(framework, backend, [3])
        assert load(backend, path)["step"] == 100
        assert backend.current_step == 3
        backend.forward_backward(framework.batch())
        assert backend.optim_step().wait()["step"] == 4

    def test_one_from_before_current_step_was_saved_is_read(self, backend, saved):
        path = save(backend, 7)
        metadata = json.loads((path / METADATA).read_text())
        del metadata["current_step"]
        (path / METADATA).write_text(json.dumps(metadata))
        reseal(path)
        load(backend, path)
        assert backend.current_step == 7

    def test_what_a_loss_function_returns_besides_numbers_is_left_out(self, framework, tmp_path):
        """A [512, 4096] array of log-probabilities, for example, would be a file that is too large to be read."""

        def loss_fn(logits, labels, loss_mask):
            return framework.loss_fn(logits, labels, loss_mask), {"logps": logits, "entropy": logits.mean()}

        backend = framework.make(tmp_path, loss_fn)
        metrics = backend.forward_backward(framework.batch()).wait()
        path = save(backend, 1, metrics | {"large": np.zeros((512, 4096), np.float32)})
        assert (path / METADATA).stat().st_size < 10_000
        assert newest_checkpoint(tmp_path) == path
        assert load(backend, path)["metrics"].keys() == {"loss", "grad_norm", "entropy"}
        with pytest.raises(ValueError, match=r"The metrics take .* bytes, most of them for 'text'; expected at most"):
            save(backend, 2, {"text": "x" * 2**20, "loss": 1.0})
        save(backend, 2)

    def test_metrics_become_plain_numbers(self, framework, backend):
        metrics = {
            "numpy": np.float64(0.5), "long": np.longdouble(0.25), "torch": torch.tensor(2.0),
            "own": framework.array(np.float32(3)), "array": np.array([1.0, math.nan]),
            "own array": framework.array(np.ones(3, np.float32)), "list": [1, math.nan], "nan": math.nan,
            "inf": np.float32("inf"), "count": np.int32(4), "flag": True,
            "nested": {"text": "addition", "nothing": None},
        }  # fmt: skip
        found = read_metadata(save(backend, 1, metrics))["metrics"]
        expected = {"numpy": 0.5, "long": 0.25, "torch": 2.0, "own": 3.0, "list": [1, None], "nan": None, "inf": None}
        expected |= {"count": 4, "flag": True, "nested": {"text": "addition", "nothing": None}}
        assert found == expected
        assert save(backend, 2, backend.forward_backward(framework.batch()).wait()).exists()

    def test_saving_comes_in_its_turn(self, framework, backend, tmp_path):
        """What was submitted before it is in the checkpoint; what comes after it is not."""

        async def main():
            async with trio.open_nursery() as nursery:
                backend.forward_backward(framework.batch())
                backend.optim_step()
                nursery.start_soon(backend.save_checkpoint, 1)
                await trio.testing.wait_all_tasks_blocked(0.001)
                backend.forward_backward(framework.batch())
                backend.optim_step()

        trio.run(main)
        reference = framework.make(tmp_path / "reference")
        _, expected = train(framework, reference, [0])
        load(backend, backend.checkpoint_dir / "step_0001")
        assert_same(train(framework, backend, []), ([], expected))


class TestSavesThatAreRefused:
    @every(
        ("step", "metrics", "error", "words"),
        [
            (-1, {}, ValueError, "step is -1"),
            (1.0, {}, TypeError, r"step is 1\.0; expected a whole number"),
            (True, {}, TypeError, "step is True"),
            (1, {"loss": object()}, TypeError, r"metrics\['loss'\] is of type object"),
            (1, {1: 2.0}, TypeError, "metrics has the key 1"),
            (1, {"loss": 1j}, TypeError, r"metrics\['loss'\] is of type complex"),
            (1, {"loss": np.complex64(1j)}, TypeError, r"metrics\['loss'\] is of type complex"),
            (1, [0.5], TypeError, "metrics have type list; expected a dictionary"),
        ],
    )
    def test_at_the_call(self, backend, step, metrics, error, words):
        with pytest.raises(error, match=words):
            save(backend, step, metrics)
        assert backend.weight_version == 0
        assert not list(backend.checkpoint_dir.iterdir())

    def test_two_backends_may_save_one_step_into_one_folder(self, framework, backend):
        other = framework.make(backend.checkpoint_dir)
        for _ in range(10):
            futures = [each.save_checkpoint(1) for each in (backend, other)]
            paths = [future.wait() for future in futures]
            assert read_metadata(paths[0])["step"] == 1
        assert [path.name for path in backend.checkpoint_dir.iterdir()] == ["step_0001"]

    def test_a_folder_of_somebody_elses(self, framework, backend):
        (backend.checkpoint_dir / "step_0001").mkdir()
        (backend.checkpoint_dir / "step_0001" / "thesis.tex").touch()
        with pytest.raises(FileExistsError, match=r"thesis\.tex"):
            save(backend, 1)
        assert backend.weight_version == 0
        train(framework, backend, [1])
        assert read_metadata(save(backend, 2))["weight_version"] == 1

    def test_a_disk_that_is_full_while_the_framework_writes(self, framework, backend, saved):
        """A limit on the size of files stands for it. torch.save raises RuntimeError then, and orbax ValueError."""
        resource = pytest.importorskip("resource")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        train(framework, backend, [3])
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            with pytest.raises(OSError, match="step_0004") as raised:
                save(backend, 4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not isinstance(raised.value, TrainingError)
        # orbax's threads may still write into the folder that is being removed; the next save clears it.
        assert [path.name for path in backend.checkpoint_dir.iterdir() if not is_scratch(path)] == ["step_0003"]
        assert backend.weight_version == 1
        train(framework, backend, [4])
        assert read_metadata(save(backend, 4))["weight_version"] == 2
        assert sorted(path.name for path in backend.checkpoint_dir.iterdir()) == ["step_0003", "step_0004"]

    def test_a_full_disk(self, framework, backend, saved, monkeypatch):
        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save(backend, 3)
        monkeypatch.undo()
        assert backend.weight_version == 1
        assert read_metadata(saved)["weight_version"] == 1
        train(framework, backend, [1])


class TestLoadsThatAreRefused:
    """Each time the backend stays as it was, to the bit, and goes on."""

    @pytest.fixture
    def refuse(self, framework, backend, saved, tmp_path):
        """(path, error, words): the load is refused so."""
        twin = framework.make(tmp_path / "twin")
        train(framework, twin, range(3))

        def refuse(path, error=ValueError, words=None):
            with pytest.raises(error, match=words) as raised:
                load(backend, path)
            assert not isinstance(raised.value, TrainingError)
            assert (backend.current_step, backend.weight_version) == (3, 1)

        yield refuse
        assert_same(train(framework, backend, range(3, 6)), train(framework, twin, range(3, 6)))

    def test_a_hundred_flipped_bits(self, framework, saved, refuse):
        random = np.random.default_rng(0)
        for name in [*framework.files, METADATA]:
            content = bytearray((saved / name).read_bytes())
            for place in random.integers(0, len(content) * 8, 30).tolist():
                content[place // 8] ^= 1 << place % 8
                (saved / name).write_bytes(content)
                refuse(saved)
                content[place // 8] ^= 1 << place % 8
            (saved / name).write_bytes(content)
        read_metadata(saved)

    def test_cut_off_emptied_lengthened(self, framework, saved, refuse):
        for name in [*framework.files, METADATA]:
            content = (saved / name).read_bytes()
            for changed in (b"", content[:1], content[: len(content) // 2], content[:-1], content + b"\0"):
                (saved / name).write_bytes(changed)
                refuse(saved)
            (saved / name).write_bytes(content)

    def test_a_lost_file(self, framework, saved, refuse):
        for name in framework.files:
            (saved / name).rename(saved / "away")
            refuse(saved, ValueError, "away is not part of this checkpoint")
            (saved / "away").rename(saved.parent / "away")
            refuse(saved, FileNotFoundError, f"lacks {name}")
            (saved.parent / "away").rename(saved / name)

    def test_files_of_another_checkpoint(self, framework, backend, saved, refuse, tmp_path):
        other = framework.make(tmp_path / "another")
        train(framework, other, [9])
        another = save(other)
        different = [name for name in framework.files if (another / name).read_bytes() != (saved / name).read_bytes()]
        assert different
        for name in different:
            content = (saved / name).read_bytes()
            shutil.copy(another / name, saved / name)
            refuse(saved, ValueError, f"{name} differs from the saved file: its sha256|bytes; .* were saved")
            (saved / name).write_bytes(content)

    def test_two_files_in_each_others_place(self, framework, saved, refuse):
        first, second = framework.files[:2]
        (saved / first).rename(saved / "aside")
        (saved / second).rename(saved / first)
        (saved / "aside").rename(saved / second)
        refuse(saved)
        reseal(saved)
        refuse(saved)

    @pytest.mark.parametrize("which", ["model", METADATA])
    def test_links_pipes_and_folders_in_the_place_of_a_file(self, framework, saved, refuse, which):
        name = framework.files[0] if which == "model" else which
        aside = saved.parent / "aside"
        (saved / name).rename(aside)
        (saved / name).symlink_to(aside)
        refuse(saved, ValueError, f"{name} is a link")
        (saved / name).unlink()
        os.mkfifo(saved / name)
        refuse(saved, ValueError, f"{name} is a pipe")
        (saved / name).unlink()
        (saved / name).mkdir()
        refuse(saved, (ValueError, FileNotFoundError))

    def test_a_link_to_the_whole_folder_is_followed(self, backend, saved, tmp_path):
        (tmp_path / "latest").symlink_to(saved)
        assert load(backend, tmp_path / "latest")["step"] == 3

    def test_what_is_no_checkpoint(self, saved, refuse, tmp_path):
        refuse(tmp_path / "nowhere", FileNotFoundError, "There is no folder .*nowhere")
        (tmp_path / "empty").mkdir()
        refuse(tmp_path / "empty", FileNotFoundError, r"is not a checkpoint: it has no metadata\.json")
        (tmp_path / "file").touch()
        refuse(tmp_path / "file", FileNotFoundError, "There is no folder")
        os.mkfifo(tmp_path / "pipe")
        refuse(tmp_path / "pipe", FileNotFoundError, "There is no folder")
        refuse(saved.parent, FileNotFoundError, "is not a checkpoint")

    @every(
        ("change", "words"),
        [
            ({"step": -1}, "'step': -1"),
            ({"step": True}, "'step': True"),
            ({"step": "3"}, "'step': '3'"),
            ({"current_step": -1}, "'current_step': -1"),
            ({"weight_version": 1.5}, "'weight_version': 1.5"),
            ({"files": []}, "'files'"),
            ({"files": {"../outside": {"size": 1, "sha256": ""}}}, "outside"),
            ({"files": {"/etc/passwd": {"size": 1, "sha256": ""}}}, "passwd"),
            ({"files": {"model": 3}}, "'model'"),
            ({"metrics": None}, "'metrics'"),
            ({"backend": "Another"}, "with the backend Another; this one is "),
            ({"optimizer": "Lion"}, "with the optimizer Lion; this one is "),
        ],
    )
    def test_metadata_that_was_never_written_so(self, saved, refuse, change, words):
        before = {name: (saved / name).read_text() for name in (METADATA, MANIFEST)}
        (saved / METADATA).write_text(json.dumps(json.loads(before[METADATA]) | change))
        refuse(saved, ValueError, r"metadata\.json is not what was saved")
        (saved / MANIFEST).unlink()
        refuse(saved, ValueError, words)
        for name, text in before.items():
            (saved / name).write_text(text)

    def test_metadata_that_lacks_something_or_is_no_json(self, saved, refuse):
        (saved / MANIFEST).unlink()
        metadata = json.loads((saved / METADATA).read_text())
        for key in metadata.keys() - {"current_step"}:
            (saved / METADATA).write_text(json.dumps({name: metadata[name] for name in metadata if name != key}))
            refuse(saved, ValueError, f"lacks '{key}'")
        for text in ("", "[]", "{", "null", "\xff", '{"step": NaN}'):
            (saved / METADATA).write_text(text, encoding="latin-1")
            refuse(saved, ValueError, r"metadata\.json")

    def test_another_model(self, framework, refuse, tmp_path):
        wider = framework.make(tmp_path / "wider", width=WIDTH + 1)
        train(framework, wider, [0])
        refuse(save(wider), ValueError, r"Weight '.*' has shape .*; this backend's has ")

    def test_another_optimizer(self, framework, refuse, tmp_path):
        other = framework.make(tmp_path / "sgd", optimizer="sgd")
        train(framework, other, [0])
        words = (
            "was saved with the optimizer SGD; this one is AdamW|The optimizer's '.*' (is missing|is not one of|has )"
        )
        refuse(save(other), ValueError, words)

    def test_without_the_kits_own_list_it_is_as_good(self, backend, saved):
        (saved / MANIFEST).unlink()
        assert load(backend, saved)["step"] == 3


def test_what_a_killed_save_has_left_goes_with_the_next_save_of_any_step(backend):
    folder = backend.checkpoint_dir
    old, new = [save(backend, 2).rename(folder / name) for name in ("old", "new")]
    unfinished, between = folder / ".step_0001.abcdefgh.tmp", folder / ".step_0002.abcdefgh.tmp"
    for scratch in (unfinished, between):
        scratch.mkdir()
        (scratch / MANIFEST).touch()
    (unfinished / "new").mkdir()
    (unfinished / "new" / "half").write_bytes(b"half")
    for path in (old, new):
        path.rename(between / path.name)
    save(backend, 5)
    assert sorted(path.name for path in folder.iterdir()) == ["step_0002", "step_0005"]
    assert load(backend, folder / "step_0002")["weight_version"] == 2


class TestNewestCheckpoint:
    def test_steps_are_numbers_and_what_is_not_whole_is_passed_over(self, framework, backend):
        folder = backend.checkpoint_dir
        assert newest_checkpoint(folder) is None
        assert newest_checkpoint(folder / "nowhere") is None
        for step in (2, 999, 9999, 10000):
            save(backend, step)
        (folder / "step_20000").mkdir()
        (folder / "step_30000").touch()
        (folder / "notes").mkdir()
        assert newest_checkpoint(folder) == folder / "step_10000"
        with (folder / "step_10000" / framework.files[1]).open("ab") as file:
            file.write(b"\0")
        assert newest_checkpoint(str(folder)) == folder / "step_9999"

    def test_one_that_was_being_replaced_when_the_process_was_killed(self, backend):
        """Between the two renames the old one is out of the way and the new one, whole, not yet in its place."""
        folder = backend.checkpoint_dir
        old, new = save(backend, 5), save(backend, 6)
        scratch = folder / ".step_0005.abcdefgh.tmp"
        scratch.mkdir()
        (scratch / MANIFEST).touch()
        old.rename(scratch / "old")
        shutil.copytree(new, scratch / "new")
        shutil.rmtree(new)
        assert newest_checkpoint(folder) == folder / "step_0005"
        assert load(backend, folder / "step_0005")["step"] == 6
