"""A kernel that has shown a widget refuses subshells, as JupyterLab asks for them; nothing happens without a kernel."""

import sys
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.viz.kernel import use_no_subshells

jupyter_client = pytest.importorskip("jupyter_client")

SHOW = """
from mlx_grpo_kit.viz.panel import Panel
from mlx_grpo_kit.viz.chart import Chart
import ipywidgets
Panel(lambda x: (Chart(100, 50), "empty"), x=ipywidgets.IntSlider())._ipython_display_()
"""


@pytest.fixture(scope="module")
def client():
    manager, client = jupyter_client.manager.start_new_kernel(startup_timeout=120)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def ask_for_a_subshell(client):
    message = client.session.msg("create_subshell_request", {})
    client.control_channel.send(message)
    while (reply := client.control_channel.get_msg(timeout=60))["parent_header"]["msg_id"] != message["msg_id"]:
        pass
    assert reply["msg_type"] == "create_subshell_reply"
    return reply["content"]


def test_it_refuses_them_from_the_first_live_picture_on(client):
    assert ask_for_a_subshell(client)["subshell_id"]
    for _ in range(2):
        shown = client.execute_interactive(SHOW, timeout=120, output_hook=lambda message: None, allow_stdin=False)
        assert shown["content"]["status"] == "ok"
        reply = ask_for_a_subshell(client)
        assert (reply["status"], reply["subshell_id"]) == ("error", None)
        assert "mlx_grpo_kit" in reply["evalue"]


@pytest.mark.parametrize(
    "shell", [None, SimpleNamespace(), SimpleNamespace(kernel=SimpleNamespace(control_handlers={}))]
)
def test_nothing_happens_where_there_are_none(shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    use_no_subshells()
    assert getattr(getattr(shell, "kernel", None), "control_handlers", {}) == {}
    monkeypatch.delitem(sys.modules, "IPython")
    use_no_subshells()
