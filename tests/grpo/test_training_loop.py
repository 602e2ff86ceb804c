"""A call of `train` that nobody iterates trains nothing, and must not pass for training."""

import gc
import subprocess
import sys
import warnings

import pytest


def test_a_call_that_nobody_iterates_warns_where_it_stands(make_trainer):
    trainer = make_trainer()
    with pytest.warns(RuntimeWarning, match=r"train\(max_steps=200\) was never iterated.*for step in") as caught:
        trainer.train(max_steps=200)
    assert caught[0].filename == __file__
    assert trainer.step == 0


def test_it_says_so_where_a_notebook_shows_it(make_trainer):
    loop = make_trainer().train(max_steps=3)
    assert "not begun: nothing is trained until it is iterated" in repr(loop)
    next(loop)
    assert repr(loop) == "<trainer.train(max_steps=3), begun>"


@pytest.mark.parametrize("use", [list, lambda loop: next(iter(loop)), lambda loop: loop.close()])
def test_a_loop_that_is_used_or_closed_does_not_warn(make_trainer, use):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop = make_trainer().train(max_steps=2)
        use(loop)
        del loop
        gc.collect()


def test_it_is_an_iterator_that_can_be_closed(make_trainer):
    trainer = make_trainer()
    loop = trainer.train(max_steps=5)
    assert iter(loop) is loop
    assert [next(loop).step, next(loop).step] == [1, 2]
    loop.close()
    assert list(loop) == []
    assert [step.step for step in trainer.train(max_steps=3)] == [3]


def test_an_untrained_policy_is_saved_with_a_warning(make_trainer, tmp_path):
    trainer = make_trainer()
    with pytest.warns(RuntimeWarning, match="No step was made, so .*policy gets the untrained policy"):
        trainer.save_pretrained(tmp_path / "policy")
    list(trainer.train(max_steps=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.save_pretrained(tmp_path / "policy")


def test_a_script_that_never_iterates_warns_at_its_end():
    """The variable lives until the process ends, when modules are being taken apart."""
    code = (
        "from mlx_grpo_kit.grpo.training_loop import TrainingLoop\n"
        "kept = TrainingLoop((i for i in ()), 'trainer.train(max_steps=9)')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "RuntimeWarning: trainer.train(max_steps=9) was never iterated" in done.stderr
