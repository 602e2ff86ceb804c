"""An answer that passed in one notebook is used in another kernel, which says where it comes from."""

import re
import shutil

import pytest

ANSWER = '''
TINY_BIT = 1e-4

def middle(known):
    return sum(known) / max(len(known), 1)

def group_advantages(rewards, group_size):
    """My own, with lists."""
    found = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        known = [each for each in group if each is not None]
        squares = sum((each - middle(known)) ** 2 for each in known)
        deviation = (squares / max(len(known) - 1, 1)) ** 0.5
        found += [0.0 if each is None else (each - middle(known)) / (deviation + TINY_BIT) for each in group]
    return found

check("16.1", group_advantages)
'''
LOOK = """
import inspect, os
print("in kernel", os.getpid(), "my own words:", "My own, with lists." in inspect.getsource(advantages_of))
print([round(float(each), 2) for each in advantages_of([1, 0, 0, 0], 4)])
"""
KERNEL = re.compile(r"in kernel (\d+)")


def run(notebook, id, source=None):
    """Run a cell, perhaps with another source, and return what it printed."""
    at = notebook.place_of(id)
    if source is not None:
        notebook.set_source(at, source)
    notebook.run_cell(at)
    notebook.wait_until_idle(120)
    return notebook.text(at)


@pytest.fixture
def no_answers_yet(lab):
    """Hide stored answers of other tests, and leave none for them."""
    record = lab[1].parent / "record"
    shutil.rmtree(record, ignore_errors=True)
    yield
    shutil.rmtree(record, ignore_errors=True)


def test_an_answer_of_chapter_16_is_used_in_chapter_18(open_notebook, no_answers_yet):
    notebook = open_notebook("16_grpo_loss")
    run(notebook, "setup")
    assert "Passed" in run(notebook, "ex1", ANSWER)
    first = run(notebook, "adv-use", 'import os\ngroup_advantages = use("16.1")\nprint("in kernel", os.getpid())')
    assert first.startswith("16.1: yours\n")
    notebook.close()

    notebook = open_notebook("18_grpo_training")
    said = run(notebook, "setup").splitlines()
    assert re.fullmatch(r"16\.1: yours, from chapter 16 \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\)", said[0])
    assert said[1:] == [
        f"{id}: the kit's (you have not passed it yet)" for id in ("16.2", "16.8", "13.10", "14.2", "17.10")
    ]
    second = run(notebook, "look", LOOK)
    assert "my own words: True" in second
    assert "[1.5, -0.5, -0.5, -0.5]" in second
    assert KERNEL.search(first)[1] != KERNEL.search(second)[1]
