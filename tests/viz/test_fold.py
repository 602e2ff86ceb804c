"""Output that is hidden until a click: printed lines and pictures, but never an error."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from mlx_grpo_kit.viz import fold, show_picture
from mlx_grpo_kit.viz.picture import new_figure


@pytest.fixture(autouse=True)
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_printed_and_displayed_output_is_inside():
    with capture_output() as captured, fold("What came out"):
        print("a < b")
        show_picture(new_figure(1, 1), "an empty figure")
    [output] = captured.outputs
    assert captured.stdout == ""
    html = output.data["text/html"]
    assert html.startswith("<details")
    assert "What came out</summary>" in html
    assert "a &lt; b" in html
    assert 'alt="an empty figure"' in html
    assert output.data["text/plain"] == "a < b\nan empty figure"


def test_an_error_is_raised_after_the_earlier_output_is_shown():
    def stumble():
        with fold():
            print("before")
            raise ZeroDivisionError

    with capture_output() as captured, pytest.raises(ZeroDivisionError):
        stumble()
    assert "before" in captured.outputs[0].data["text/html"]
