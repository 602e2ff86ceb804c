"""Of a notebook only what a widget needs is run, and all of that, in the notebook's order."""

import pytest

from mlx_grpo_kit.course.book.excerpt import widget_of


def cells(*sources):
    return [{"cell_type": "code", "id": f"c{place}", "source": source} for place, source in enumerate(sources)]


def value(*sources, expression=""):
    return widget_of(cells(*sources), f"c{len(sources) - 1}", {"ran": []}, expression)


def test_statements_that_it_does_not_need_are_not_run():
    assert value("a = 1", "raise SystemExit", "print(b)\nassert a == 2", "a + 1") == 2


def test_the_newest_assignment_counts_and_no_older_one_is_run():
    assert value("a = ran.append(1)", "a = 2", "b = a\na = 3", "ran, b, a") == ([], 2, 3)


def test_a_function_reads_a_name_when_it_is_called():
    assert value("scale = 2", "def f(x):\n    return scale * x", "scale = 10", "f(1)") == 10
    assert value("scale = 2", "f = [scale * x for x in (1, 2)]", "scale = 10", "f") == [2, 4]


def test_what_changes_a_value_in_place_is_run():
    assert value("a = [1]", "a.append(2)", "a[0] = 7", "a") == [7, 2]
    assert value("a = {}", "for key in 'xy':\n    a[key] = key.upper()", "a") == {"x": "X", "y": "Y"}
    assert value("class Box:\n    pass", "box = Box()", "box.name = 'n'", "box.name") == "n"


def test_a_loop_that_only_advances_is_run_and_a_loop_sets_its_own_names():
    assert value("a = iter('abc')", "for _ in zip('x', a):\n    pass", "next(a)") == "b"
    both = "for x in (1, 2):\n    y = x\n    total.append(y)\n    assert y > 1"
    assert value("y = ran.append(1)", "total = []", both, "total, ran") == ([1, 2], [])


def test_a_condition_keeps_what_was_before_it():
    assert value("a = 1", "if False:\n    a = 2", "a") == 1
    assert value("a = 1", "a += 1", "a") == 2


def test_cells_that_only_jupyter_reads_are_passed_over():
    assert value("a = 1", "!pip install x\na = 2", "await b", "a") == 1


def test_two_widgets_share_what_has_been_run():
    notebook, names = cells("ran.append(1)\nx = len(ran)", "x", "x"), {"ran": []}
    assert widget_of(notebook, "c1", names) is widget_of(notebook, "c2", names)
    assert names["ran"] == [1]


def test_another_expression_is_evaluated_after_the_cell_that_names_it():
    assert value("start = [].append", "box = [1]\nrun = start(box)", expression="box") == [1]


@pytest.mark.parametrize(("sources", "words"), [(["a = 1"], "ends with 'a = 1'"), ([], "no cell 'c-1'")])
def test_a_cell_without_an_expression_is_named(sources, words):
    with pytest.raises(LookupError, match=words):
        value(*sources)
