"""The record of tries: counts of mistakes and hints, which a reader can read, stop and hand in."""

import json
import os

import pytest

from mlx_grpo_kit.cli import main
from mlx_grpo_kit.course import check, hint, solution, tries
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.tries import NO_NAME, Tries, most_frequent, read_tries, tries_file


def recorded():
    return read_tries(tries_file().read_bytes())[1]


def named(id, number=0):
    return find(id).mistakes[number]


def test_a_result_names_its_mistake():
    exercise = find("01.1")
    for mistake in exercise.mistakes:
        assert exercise.examine(mistake.wrong).mistake == mistake.name
    assert exercise.examine(exercise.solution).mistake == NO_NAME
    assert exercise.examine(lambda f, x, h: 0.0).mistake == NO_NAME
    value = find("01.3")
    assert value.examine(value.mistakes[0].wrong).mistake == value.mistakes[0].name


def test_tries_hints_and_solutions_are_counted():
    mistake = named("01.1")
    check("01.1", ...)
    check("01.1", mistake.wrong)
    check("01.1", mistake.wrong)
    check("01.1", lambda f, x, h: 0.0)
    hint("01.1"), hint("01.1"), hint("01.1", 1)
    solution("01.1")
    check("01.1", find("01.1").solution)
    assert recorded() == {"01.1": Tries(1, 3, {mistake.name: 2, NO_NAME: 1}, 2, 1)}
    assert "01.1  passed 1, failed 3, hints 2, solution 1" in repr(tries())
    assert f"{mistake.name} (2)" in repr(tries())


def test_nothing_but_counts_is_stored():
    check("01.1", lambda f, x, h: "my own words")
    assert "my own words" not in tries_file().read_text()


def test_a_reader_can_switch_it_off_and_on():
    check("01.1", named("01.1").wrong)
    assert "not recorded" in repr(tries(keep=False))
    check("01.1", named("01.1").wrong)
    hint("01.1")
    assert recorded() == {}
    tries(keep=True)
    hint("01.1", 2)
    assert recorded() == {"01.1": Tries(hints=2)}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"{}", b'{"version": 1}', b'{"version": -1, "kept": true, "exercises": {}}',
        b'{"version": 1, "kept": 1, "exercises": {}}', b'{"version": 1, "kept": true, "exercises": {"01.1": {}}}',
        b'{"version": 1, "kept": true, "exercises": {"01.1": {"passed": "1", "failed": 0, "mistakes": {}, '
        b'"hints": 0, "solution": 0}}}', b"[" * 100_000, b"\xff",
    ],
)  # fmt: skip
def test_a_damaged_record_is_kept_aside(content):
    tries_file().write_bytes(content)
    note = check("01.1", named("01.1").wrong)
    assert recorded()["01.1"].failed == 1
    aside = tries_file().with_name("tries.json.damaged")
    assert aside.exists() == bool(content)
    assert ("Your record of tries was damaged" in note.text) == bool(content)
    if content:
        assert aside.read_bytes() == content


def test_the_record_of_a_newer_version_is_left_alone():
    content = b'{"version": 2, "what": "ever"}'
    tries_file().write_bytes(content)
    assert not check("01.1", named("01.1").wrong)
    assert tries_file().read_bytes() == content
    with pytest.raises(ValueError, match="version 2, and this kit reads version 1"):
        tries()


def test_check_works_where_nothing_can_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLX_GRPO_KIT_PROGRESS", str(tmp_path / "file" / "progress.json"))
    assert "gave 0, expected 6.1" in check("01.1", lambda f, x, h: 0.0).text
    assert hint("01.1").look == "hint"


def test_the_mistakes_of_a_class(tmp_path, capsys):
    one = {"01.1": Tries(failed=5, mistakes={"a": 4, "b": 1}), "14.1": Tries(failed=1, mistakes={NO_NAME: 1})}
    two = {"01.1": Tries(failed=1, mistakes={"b": 1}), "02.1": Tries(passed=1)}
    assert most_frequent([one, two]) == [("01.1", "b", 2, 2), ("01.1", "a", 1, 4), ("14.1", NO_NAME, 1, 1)]
    files = [tmp_path / "ada.json", tmp_path / "bad.json"]
    check("01.1", named("01.1").wrong)
    os.replace(tries_file(), files[0])
    files[1].write_text(json.dumps("no"))
    assert main(["mistakes", *map(str, files)]) == 0
    out, err = capsys.readouterr()
    assert named("01.1").name in out
    assert "1 record\n" in out
    assert "bad.json is left out" in err
    assert main(["mistakes", str(files[1])]) == 2
