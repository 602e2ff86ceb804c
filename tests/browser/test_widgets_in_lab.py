"""The base of the browser widgets, in JupyterLab: data, questions and answers, messages, and the still picture."""

from pathlib import Path

from mlx_grpo_kit.viz import browser as widgets

MODULE = """
const bars = ({model, el}) => {
  el.classList.add("kit-widget");
  const shown = h("output", {}, "");
  const ask = asker(model, answer => { shown.textContent = answer.complaint ?? "heights " + answer.heights; });
  const box = h("input", {type: "number", "aria-label": "factor", oninput: () => ask({factor: Number(box.value)})});
  el.append(box, shown, h("p", {}, model.get("data").words, " ", threeDigits(0.71), " ", threeDigits(null)));
  window.burst = () => { for (let factor = 1; factor <= 50; factor++) ask({factor}); };
};
export default {render: bars};
"""
SETUP = """
from pathlib import Path
Path("bars.js").write_text({module!r}); Path("bars.css").write_text("")
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.picture import as_picture
from mlx_grpo_kit.viz.browser import BrowserWidget
asked = []

class Bars(BrowserWidget):
    source = Path("bars").absolute()

    def answer(self, question):
        asked.append(question["factor"])
        if question["factor"] < 0:
            raise ValueError("the factor is below 0")
        return {{"heights": [height * question["factor"] for height in self.data["heights"]]}}

    def draw_still(self):
        return as_picture(Chart(30, 30), "Bars that stand still.")
"""


def test_a_late_answer_is_announced_and_then_removes_the_message(browser):
    page = browser.new_page()
    page.clock.install()
    source = Path(widgets.__file__).with_suffix(".js").read_text(encoding="utf-8")
    page.evaluate(
        "source => { window.heard = []; window.sent = []; let reply = null;"
        " const model = {send: message => sent.push(message), on: (_, hear) => { window.reply = hear; }};"
        " window.ask = new Function(source + '; return asker')()(model, answer => heard.push(answer)); }",
        source,
    )
    page.evaluate("() => ask({factor: 1})")
    page.clock.run_for(1000)
    assert page.evaluate("() => heard") == []
    page.clock.run_for(1000)
    assert page.evaluate("() => heard")[0]["complaint"].startswith("The kernel is busy")
    page.evaluate("() => reply({number: sent[0].number, answer: {heights: [1]}})")
    page.evaluate("() => ask({factor: 2})")
    page.evaluate("() => reply({number: sent[1].number, answer: {heights: [2]}})")
    page.clock.run_for(5000)
    assert page.evaluate("() => heard.slice(1)") == [{"heights": [1]}, {"heights": [2]}]
    page.close()


def test_data_questions_complaints_and_the_still_picture(open_notebook):
    show = 'Bars({"heights": [1, 2], "words": "<b>bold</b>"})'
    notebook = open_notebook("widgets", SETUP.format(module=MODULE), show, "print(len(asked), asked[-1])")
    notebook.run_cell(0)
    notebook.run_cell(1)
    cell = notebook.cell(1)
    cell.get_by_text("<b>bold</b> 0.710 \N{EN DASH}").wait_for()  # a model's text is text, not markup
    box = cell.get_by_label("factor")
    box.fill("3")
    notebook.wait_for_text(1, "heights 3,6")
    box.fill("-1")
    notebook.wait_for_text(1, "the factor is below 0")

    # Of fifty questions at once, as in a drag, the kernel gets only the first and the last.
    notebook.page.evaluate("() => burst()")
    notebook.wait_for_text(1, "heights 50,100")
    notebook.run_cell(2)
    notebook.wait_for_text(2, "4 50")

    still = cell.locator(".kit-still")
    assert not still.is_visible()
    saved = notebook.save()
    assert "widgets" not in saved.metadata
    assert "Bars that stand still." in saved.cells[1].outputs[1]["data"]["text/html"]
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    still.wait_for()  # without a kernel, the picture replaces the widget
    assert not cell.get_by_label("factor").is_visible()
