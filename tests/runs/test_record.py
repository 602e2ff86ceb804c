"""The record of a run: the same after saving and loading, small, readable if damaged, and loaded without MLX."""

import json
import math
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.runs.record import COMPLETIONS, METRICS, RunRecord


def completion(group=0, prompt="1+1=", **others):
    values = dict(completion="2", completion_ids=[4, 1], logps=[-0.123456789, -2e-8], entropies=[0.5, 0.0])
    values |= dict(finished=True, rewards={"correct": 1.0, "format": None}, reward=1.0, advantage=0.70710678)
    return SimpleNamespace(problem=None, prompt=prompt, group=group, **values | others)


def train_step(number, reward=0.5, groups=4, size=8, changes=None):
    rows = [completion(group, f"{group % 2}+1=") for group in range(groups) for _ in range(size)]
    return SimpleNamespace(
        step=number, metrics={"reward": reward, "kl": math.nan}, completions=rows, changes=changes or {}
    )


@pytest.fixture
def record():
    record = RunRecord("tiny learns addition", 9)
    for number in range(1, 6):
        record.add(train_step(number, number / 10, changes={"learning_rate": 1e-4} if number == 3 else None))
    return record


def same(left: RunRecord, right: RunRecord) -> bool:
    def content(record):
        steps = [
            (step.step, repr(step.metrics), step.changes, [*map(asdict, step.completions)]) for step in record.steps
        ]
        return record.title, record.max_steps, steps

    return content(left) == content(right)


def test_a_step_keeps_its_first_groups_whole(record):
    rows = record.at(2).completions
    assert [row.group for row in rows] == [0] * 8 + [1] * 8
    for keep, count in ((None, 32), (0, 0), (1, 8), (8, 8), (23, 16), (24, 24)):
        other = RunRecord(keep=keep)
        other.add(train_step(1))
        assert len(other.at(1).completions) == count, keep


def test_completions_without_groups_are_grouped_by_prompt():
    record = RunRecord(keep=3)
    rows = [SimpleNamespace(prompt=prompt, completion="x") for prompt in "aabbc"]
    record.add(SimpleNamespace(step=1, metrics={}, completions=rows))
    assert [row.prompt for row in record.at(1).completions] == ["a", "a"]
    assert record.at(1).completions[0].reward is None


def test_the_record_equals_the_run():
    record = RunRecord(is_correct=lambda problem, text: text == "2")
    rows = [completion(), completion(completion="3", reward=math.nan, entropies=[math.nan, 1.0])]
    record.add(
        SimpleNamespace(step=4, metrics={"reward": 1.0}, completions=rows), {"reward": 1.0, "eval/accuracy": 0.5}
    )
    right, wrong = record.at(4).completions
    assert (right.correct, wrong.correct) == (True, False)
    assert right.logps == [-0.123457, -2e-8]
    assert right.rewards == {"correct": 1.0, "format": None}
    assert (right.reward, right.advantage, right.completion_ids, right.finished) == (1.0, 0.70710678, [4, 1], True)
    assert wrong.reward is None
    assert math.isnan(wrong.entropies[0])
    assert record.at(4).metrics == {"reward": 1.0, "eval/accuracy": 0.5}


def test_a_record_is_the_same_after_saving_and_loading(record, tmp_path):
    record.save(tmp_path / "run")
    loaded = RunRecord.load(tmp_path / "run")
    assert same(loaded, record)
    assert loaded.damaged == []
    assert loaded.at(3).changes == {"learning_rate": 1e-4}
    assert loaded.column("reward") == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert all(map(math.isnan, loaded.column("kl")))
    record.add(train_step(6))
    record.save(tmp_path / "run")  # over the previous one
    assert len(RunRecord.load(tmp_path / "run")) == 6


def test_files_are_json_lines_that_anything_can_read(record, tmp_path):
    record.save(tmp_path / "run")
    metrics = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert metrics[2] == {"step": 3, "reward": 0.3, "kl": None, "changes": {"learning_rate": 1e-4}}
    first = json.loads((tmp_path / "run" / COMPLETIONS).read_text().splitlines()[0])
    assert (first["step"], len(first["completions"])) == (1, 16)
    assert first["completions"][0]["logps"] == [-0.123457, -2e-8]


def test_files_of_others_are_never_replaced(record, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine.txt"):
        record.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_rewound_run(record, tmp_path):
    record.add(train_step(3, 0.9, changes={"rewound_from": 5}))
    assert record.column("reward") == [0.1, 0.2, 0.9]
    [abandoned] = record.abandoned
    assert [step.step for step in abandoned] == [3, 4, 5]
    record.add(train_step(2, 0.7))
    record.save(tmp_path / "run")
    loaded = RunRecord.load(tmp_path / "run")
    assert same(loaded, record)
    branches = [[(step.step, step.metrics["reward"], step.changes) for step in branch] for branch in loaded.abandoned]
    first = [(3, 0.3, {"learning_rate": 1e-4}), (4, 0.4, {}), (5, 0.5, {})]
    assert branches == [first, [(2, 0.2, {}), (3, 0.9, {"rewound_from": 5})]]
    assert "branch" not in loaded.abandoned[0][0].metrics
    with pytest.raises(KeyError, match="no step 4; it has 1 to 2"):
        record.at(4)


def test_an_unpaired_surrogate_becomes_a_question_mark(tmp_path):
    record = RunRecord("a \ud83d title")
    step = train_step(1)
    step.completions[0].completion, step.completions[1].completion = "\ud83d", "\U0001f600"
    record.add(step)
    record.save(tmp_path / "run")
    for each in (record, RunRecord.load(tmp_path / "run")):
        assert each.title == "a ? title"
        assert [one.completion for one in each.at(1).completions[:3]] == ["?", "\U0001f600", "2"]


@pytest.mark.parametrize(
    "line",
    [
        *("garbage", "[]", "{}", '{"step": "2"}', '{"step": true}'),
        '{"step": 2, "reward": "high", "completions": [{"prompt": 1}]}',
        '{"step": 1e999, "completions": []}',
        '{"step": 2, "reward": NaN, "completions": [{"prompt": "", "completion": "", "logps": [NaN]}]}',
        '{"step": 2, "reward": 1' + "0" * 400 + ', "completions": [{"prompt": "", "completion": "", "reward": 1e999}]}',
        '{"step": 2, "changes": 3, "completions": {}}',
        "[" * 100_000,
    ],
)
@pytest.mark.parametrize("name", [METRICS, COMPLETIONS])
def test_a_line_that_cannot_be_read_is_named_and_the_others_are_kept(record, tmp_path, name, line):
    record.save(tmp_path / "run")
    file = tmp_path / "run" / name
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], "", line, *lines[2:]]))  # the last line has no end either
    loaded = RunRecord.load(tmp_path / "run")
    assert loaded.damaged == [f"Line 4 of {file} cannot be read and is left out."]
    assert same(loaded, record)


@pytest.mark.parametrize("name", [METRICS, COMPLETIONS])
def test_a_kill_at_any_position_of_a_file(record, tmp_path, name):
    record.save(tmp_path / "run")
    file = tmp_path / "run" / name
    content = file.read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(content) if byte == ord("\n"))]
    for length in range(0, len(content), max(len(content) // 97, 1)):
        file.write_bytes(content[:length])
        loaded = RunRecord.load(tmp_path / "run")
        whole = content[: length + 1].count(b"\n")  # a line that lacks only its end counts as a line
        if name == METRICS:
            assert [step.step for step in loaded.steps] == [*range(1, whole + 1)]
        else:
            assert [bool(step.completions) for step in loaded.steps] == [number <= whole for number in range(1, 6)]
        at_an_end = length in starts or length + 1 in starts
        assert loaded.damaged == [f"Line {whole + 1} of {file} is cut off and is left out."] * (not at_an_end)


def test_a_folder_that_is_not_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"contains no metrics.jsonl; expected the folder of a run"):
        RunRecord.load(tmp_path)
    (tmp_path / METRICS).mkdir()
    with pytest.raises(ValueError, match="is a folder; expected a file"):
        RunRecord.load(tmp_path)


def test_a_run_without_completions_or_title(record, tmp_path):
    record.save(tmp_path / "run")
    (tmp_path / "run" / COMPLETIONS).unlink()
    (tmp_path / "run" / "record.json").write_text("{")
    loaded = RunRecord.load(tmp_path / "run")
    assert (loaded.title, loaded.max_steps, len(loaded)) == ("run", None, 5)
    assert [step.completions for step in loaded.steps] == [[]] * 5
    assert loaded.damaged == [f"{tmp_path / 'run' / 'record.json'} cannot be read, so the run has no title."]


def test_two_thousand_steps_are_small(tmp_path):
    record = RunRecord()
    for number in range(1, 51):
        record.add(train_step(number, groups=16))
    record.save(tmp_path / "run")
    size = sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    assert size / 50 * 2000 < 10e6


def test_it_loads_without_mlx_and_numpy(record, tmp_path):
    record.save(tmp_path / "run")
    script = (
        "import sys; from mlx_grpo_kit.runs.record import RunRecord; "
        "print(len(RunRecord.load(sys.argv[1]).at(5).completions)); assert not {'mlx', 'numpy'} & sys.modules.keys()"
    )
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("16\n", "")


def test_advantages_of_tokens_are_left_out(tmp_path):
    step = train_step(1)
    step.completions[0].advantage = [0.5, -0.5]
    record = RunRecord()
    record.add(step)
    record.save(tmp_path / "run")
    assert [row.advantage for row in RunRecord.load(tmp_path / "run").at(1).completions][:2] == [None, 0.70710678]


@pytest.mark.parametrize(("answer", "kept"), [("46", "46"), (46, "46"), ("", None), (None, None), (["46"], None)])
def test_the_right_answer_of_a_problem_is_kept(answer, kept, tmp_path):
    step = train_step(1)
    for row in step.completions:
        row.problem = SimpleNamespace(answer=answer)
    record = RunRecord()
    record.add(step)
    record.save(tmp_path / "run")
    loaded = RunRecord.load(tmp_path / "run")
    assert {row.answer for row in loaded.at(1).completions} == {kept}
    again = RunRecord()
    again.add(SimpleNamespace(step=1, metrics={}, completions=loaded.at(1).completions))
    assert {row.answer for row in again.at(1).completions} == {kept}, "a record of a record"
