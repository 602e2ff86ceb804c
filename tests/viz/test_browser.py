"""The common base of the browser widgets, without a browser; tests/browser/test_widgets_in_lab.py has the rest."""

import json
import math

import pytest

from mlx_grpo_kit.viz.browser import BrowserWidget, as_json
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.picture import as_picture


@pytest.fixture
def bars(tmp_path):
    (tmp_path / "bars.js").write_text("export default {render() {}};")
    (tmp_path / "bars.css").write_text(".bar {color: red}")

    class Bars(BrowserWidget):
        source = tmp_path / "bars"

        def answer(self, question):
            if question["factor"] < 0:
                raise ValueError("the factor is -1; expected 0 or more")
            return {"heights": [height * question["factor"] for height in self.data["heights"]]}

        def draw_still(self):
            return as_picture(Chart(30, 30), "Three bars.")

    return Bars({"heights": (1.0, 2.0, math.nan)})


def test_module_and_colors_are_inline_and_the_data_is_json(bars):
    state = bars.widget.get_state()
    assert state["_esm"].endswith("export default {render() {}};")
    assert "const asker" in state["_esm"]
    assert ".bar {color: red}" in state["_css"]
    assert "--kit-positive:#5790fc" in state["_css"]
    assert state["data"] == {"heights": [1.0, 2.0, None]}


def test_a_question_is_answered_with_its_number_and_an_error_with_a_message(bars, monkeypatch):
    sent = []
    monkeypatch.setattr(bars.widget, "send", sent.append)
    bars.data = {"heights": [1.0, 2.0]}
    bars._reply({"number": 7, "question": {"factor": 2}})
    bars._reply({"number": 8, "question": {"factor": -1}})
    bars._reply({"number": 9, "question": {}})
    assert sent == [
        {"number": 7, "answer": {"heights": [2.0, 4.0]}},
        {"number": 8, "answer": {"complaint": "the factor is -1; expected 0 or more"}},
        {"number": 9, "answer": {"complaint": "KeyError: 'factor'"}},
    ]


def test_no_number_is_lost_in_the_conversion_to_json():
    value = {"a": (1, 2.5, math.nan, -math.inf), "b": [{"c": "text \ud800"}, None, True]}
    assert json.loads(json.dumps(as_json(value), allow_nan=False)) == {
        "a": [1, 2.5, None, None],
        "b": [{"c": "text ?"}, None, True],
    }
