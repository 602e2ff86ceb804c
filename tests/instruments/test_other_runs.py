"""Other runs to compare with: those that were passed in, and the saved runs of the notebook."""

import pytest

from mlx_grpo_kit.instruments.dashboard import Dashboard


def trained(fake, rate=0.01, **settings):
    trainer = fake.FakeTrainer()
    trainer.args.learning_rate = rate
    dashboard = Dashboard(trainer, max_steps=9, title=f"rate {rate}", **settings)
    dashboard.start().wait(30)
    return dashboard


def test_records_and_folders_are_chosen_by_name(fake, tmp_path):
    one, two = trained(fake, 0.02), trained(fake, 0.02)
    two.record.save(tmp_path / "two")
    dashboard = Dashboard(one.record, compare=[one.record, tmp_path / "two"], save_to=False)
    assert dashboard.data["compare"] == ["rate 0.02", "rate 0.02 (2)"]
    assert dashboard.answer({"others": True})["names"] == ["rate 0.02", "rate 0.02 (2)"]
    [over] = dashboard.answer({"over": ["rate 0.02 (2)"]})["over"]
    assert over["steps"] == [*range(1, 10)]
    assert over["columns"]["reward"] == dashboard.answer({"all": True})["columns"]["reward"]
    named = Dashboard(one.record, compare={"seed 1": tmp_path / "two"})
    assert named.data["compare"] == ["seed 1"]


def test_the_other_saved_runs_of_the_notebook_are_offered(fake, tmp_path):
    first, second = trained(fake, save_to=tmp_path), trained(fake, 0.5, save_to=tmp_path)
    assert second.answer({"others": True})["names"] == [first._saving.path.name]
    opened = Dashboard.open(1, save_to=tmp_path)
    assert opened.answer({"others": True})["names"] == [second._saving.path.name]
    [over] = opened.answer({"over": opened.answer({"others": True})["names"]})["over"]
    assert over["columns"]["learning_rate"] == [0.5] * 9


def test_an_unknown_name_raises_an_error_and_is_never_taken_for_a_path(fake, tmp_path):
    dashboard = trained(fake, save_to=tmp_path)
    dashboard.record.save(tmp_path / "elsewhere")
    for name in ("../elsewhere", str(tmp_path / "elsewhere"), ""):
        with pytest.raises(ValueError, match="There is no saved run"):
            dashboard.answer({"over": [name]})


def test_an_object_that_is_not_a_run_raises_an_error(fake):
    with pytest.raises(TypeError, match="A run to compare with is a int; expected a RunRecord or the folder"):
        Dashboard(fake.FakeTrainer(), max_steps=3, compare=[7])
    with pytest.raises(FileNotFoundError, match="contains no metrics"):
        Dashboard(fake.FakeTrainer(), max_steps=3, compare="nowhere")
