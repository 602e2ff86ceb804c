"""A real JupyterLab in a real Chromium, for tests that click where a learner clicks.

The server runs on a free port of this machine, with settings and notebooks of its own in a temporary folder; the
notebooks of the course are copied there, so that no test changes them. Without Chromium the tests of this folder are
skipped and say what to install; in CI, which installs it, they fail.
"""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from pathlib import Path

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from mlx_grpo_kit.cli.doctor import find_browser
from mlx_grpo_kit.cli.lab import SETTINGS
from mlx_grpo_kit.course import record

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SECONDS_TO_START = 90
SIZE = {"width": 1280, "height": 1000}
PATIENCE = 90_000  # milliseconds for what takes a second on an idle machine
expect.set_options(timeout=PATIENCE)
# Ten looks a second. Playwright's default is one per frame: sixty take time from the kernel, and a page that draws
# nothing has no frames.
Page.wait_for_function = functools.partialmethod(Page.wait_for_function, polling=100)


HAS_FAILED = pytest.StashKey[bool]()


def pytest_itemcollected(item):
    """A test in JupyterLab that waited in vain is tried once more, in a new tab, and is reported as RERUN.

    On a slow machine a new dashboard heard nothing of its run, about once in a run of all tests. Why is not known. What
    the page showed, and what the kernel's threads did, is among the warnings.
    """
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(600))
    if "open_notebook" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.flaky(reruns=1, only_rerun="TimeoutError"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.stash[HAS_FAILED] = report.failed or (call.when != "setup" and item.stash[HAS_FAILED])
    return report


@pytest.fixture(scope="session")
def browser():
    path = find_browser()
    if path is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("no Chromium or Chrome found: on Debian or Ubuntu, apt-get install chromium")
    with sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A running JupyterLab: (its URL, the folder of its notebooks)."""
    home = tmp_path_factory.mktemp("lab")
    root = home / "work"
    root.mkdir()
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, root)
    # JupyterLab saves by itself every two minutes. If a test saves at that moment, JupyterLab asks whether somebody
    # else changed the file, and waits for an answer.
    settings = home / "settings" / "@jupyterlab" / "docmanager-extension"
    settings.mkdir(parents=True)
    (settings / "plugin.jupyterlab-settings").write_text('{"autosave": false}')
    threads, startup = home / "threads", home / "ipython" / "profile_default" / "startup"
    threads.mkdir()
    startup.mkdir(parents=True)
    (startup / "tell_threads.py").write_text(TELL_THREADS.format(folder=str(threads)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_CONFIG_PATH": str(SETTINGS),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        record.PLACE: str(home / "record" / "progress.json"),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True",
        "--LabApp.extension_manager=readonly", f"--ServerApp.root_dir={root}",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with open(home / "server.log", "wb") as log:
        server = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_up(server, url, home / "server.log")
        yield url, root
    finally:
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_up(server, url, log):
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/api", timeout=2):
            return
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start; its log ends with\n{log.read_text()[-3000:]}")


# Seconds until the kernel answers on the shell channel and on the control channel (null: not within five), and the
# messages that it publishes meanwhile.
CHANNELS = """async () => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel, begun = performance.now(), kinds = {};
  const count = (_, message) => { kinds[message.header.msg_type] = (kinds[message.header.msg_type] ?? 0) + 1; };
  const late = new Promise(done => setTimeout(() => done(null), 5000));
  const seconds = answer => Promise.race([answer.then(() => (performance.now() - begun) / 1000), late]);
  kernel.iopubMessage.connect(count);
  const shell = seconds(kernel.requestCommInfo({})), control = seconds(kernel.requestCreateSubshell({}).done);
  const found = {shell: await shell, control: await control};
  await late;
  kernel.iopubMessage.disconnect(count);
  return {...found, published: kinds, pending: kernel._pendingMessages.length, status: kernel.connectionStatus};
}"""


# Run by each kernel when it starts: SIGUSR1 writes where its threads are into a file that is named after its process.
TELL_THREADS = """
import faulthandler, os, signal
faulthandler.register(signal.SIGUSR1, file=open({folder!r} + "/" + str(os.getpid()), "w"))
"""


class NotebookPage:
    """A notebook opened in JupyterLab, with the operations that tests need. Cells of both kinds count from 0.

    It gets a kernel of its own, or one that runs already, which stays.
    """

    def __init__(self, page, path, kernel=None):
        self.page, self.path, self.kernel, self.errors, self.own_errors = page, path, kernel, [], []
        page.on("console", self._listen)
        page.on("pageerror", self._hear)
        # Style sheets that widgets of another notebook left in the page would affect this one.
        page.evaluate("() => document.querySelectorAll('style[id^=mlx_grpo_kit]').forEach(sheet => sheet.remove())")
        page.set_viewport_size(SIZE)
        page.mouse.move(0, 0)
        page.evaluate(
            "([path, kernel]) => { jupyterapp.commands.execute('docmanager:open', {path, ...kernel && {kernel}}); }",
            [path.name, kernel],
        )
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.wait_for_function(
            "path => { const shown = jupyterapp.shell.currentWidget;"
            " return shown?.context?.path === path && shown.sessionContext.session?.kernel?.status === 'idle'; }",
            arg=path.name,
        )
        self.open = True

    def _listen(self, message):
        if message.type == "error":
            self.errors.append(message.text[:300])

    def _hear(self, error):
        """Note an error that nothing caught. It is the kit's if JupyterLab's files are not all that it went through.

        An example of the others: two changes of the theme within 200 ms remove JupyterLab's splash screen twice, and
        the second time removeChild fails.
        """
        frames = [line.strip() for line in (error.stack or "").splitlines() if line.strip().startswith("at ")]
        words = f"{error.name}: {error.message}\n" + "\n".join(frames[:10])
        self.errors.append(words)
        if not all("/static/" in frame or frame.endswith("(<anonymous>)") for frame in frames):  # or the browser's own
            self.own_errors.append(words)

    def command(self, name):
        """Run one of JupyterLab's commands without waiting for it to end."""
        self.page.evaluate("name => { jupyterapp.commands.execute(name); }", name)

    def run_all(self):
        self.command("notebook:run-all-cells")

    def run_cell(self, index):
        self.page.evaluate(
            "index => { jupyterapp.shell.currentWidget.content.activeCellIndex = index;"
            " jupyterapp.commands.execute('notebook:run-cell'); }",
            index,
        )

    def set_source(self, index, source):
        """Replace the source of a cell by typing `source`."""
        self.page.evaluate(
            "([index, source]) => jupyterapp.shell.currentWidget.content.widgets[index].model"
            ".sharedModel.setSource(source)",
            [index, source],
        )

    def cell(self, index):
        """A locator of the cell's whole box."""
        return self.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{index}"]')

    def show(self, index):
        """Scroll to a cell: JupyterLab keeps only the cells near the visible part of the page alive."""
        self.page.evaluate("index => jupyterapp.shell.currentWidget.content.scrollToItem(index, 'center')", index)
        self.cell(index).wait_for()

    def outputs(self, index):
        """The cell's current outputs: a list of nbformat outputs, empty for a text cell."""
        return self.page.evaluate(
            "index => jupyterapp.shell.currentWidget.content.widgets[index].model.outputs?.toJSON() ?? []", index
        )

    def text(self, index):
        """The plain text of all outputs of a cell."""
        parts = []
        for output in self.outputs(index):
            parts.append(output.get("text") or output.get("data", {}).get("text/plain") or output.get("ename", ""))
        return "\n".join("".join(part) for part in parts)

    def wait_until_idle(self, seconds=60):
        """Wait until no cell is running or waiting to run. Fails if no cell ends for `seconds`."""
        count = (
            "jupyterapp.shell.currentWidget.content.widgets.filter(cell => cell.model.type === 'code'"
            " && cell.model.executionState === 'running').length"
        )
        while left := self.page.evaluate(f"() => {count}"):
            self.page.wait_for_function(f"left => {count} !== left", arg=left, timeout=seconds * 1000)
        self.page.wait_for_function(
            "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'",
            timeout=seconds * 1000,
        )

    def wait_for_frame(self):
        """Wait until what was asked for is drawn: a widget that follows many inputs draws once per frame."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def wait_for_text(self, index, text, seconds=PATIENCE / 1000):
        """Wait until the page shows `text` in the outputs of a cell."""
        self.cell(index).locator(".jp-OutputArea-output", has_text=text).first.wait_for(timeout=seconds * 1000)

    def wait_for_words(self, words):
        """Wait until the alt text of a panel's picture, anywhere on the page, contains `words`."""
        self.page.wait_for_function(
            "words => [...document.querySelectorAll('.widget-html svg title')].some(title =>"
            " title.textContent.includes(words))",
            arg=words,
        )

    def place_of(self, id):
        """The index of a chapter's cell by its name: "panel" is the cell with the id "13-panel" in chapter 13."""
        id = f"{self.path.stem[:2]}-{id}"
        return next(place for place, cell in enumerate(self.saved().cells) if cell.id == id)

    def place_with(self, words):
        """The index of the code cell whose source contains `words`."""
        cells = enumerate(self.saved().cells)
        return next(place for place, cell in cells if cell.cell_type == "code" and words in cell.source)

    def run(self, *ids):
        """Run cells of a chapter by their names, each until it has ended."""
        for id in ids:
            self.run_cell(self.place_of(id))
            self.wait_until_idle(120)

    def open_panel(self, id):
        """Scroll to a cell of a chapter and run it; returns a locator of its box."""
        self.show(self.place_of(id))
        self.run(id)
        return self.cell(self.place_of(id))

    def slider(self, panel, label):
        """The handle of the slider `label` in a panel."""
        return panel.locator(".widget-hslider", has_text=label).locator(".noUi-handle")

    def click(self, index, label):
        """Click the button `label` in the outputs of a cell."""
        self.cell(index).locator(".jp-OutputArea-output").get_by_role("button", name=label).click()

    def save(self):
        """Save, and read the file that was written."""
        self.page.evaluate(
            "() => { window.isSaved = false;"
            " jupyterapp.commands.execute('docmanager:save').then(() => { window.isSaved = true; }); }"
        )
        try:
            self.page.wait_for_function("() => window.isSaved")
        except PlaywrightTimeoutError:
            pytest.fail(f"{self.path.name} was not saved. Dialogs: {self.page.locator('.jp-Dialog').all_inner_texts()}")
        return self.saved()

    def saved(self):
        """The notebook's file as it is on disk."""
        return nbformat.read(self.path, as_version=4)

    def state(self):
        """What may tell why a test waited in vain: the kernel's status and widgets, dialogs, errors in the browser's
        console, each code cell's last words, which channels the kernel answers, and what its threads are doing.
        """
        found = self.page.evaluate(
            "() => { const shown = jupyterapp.shell.currentWidget, kernel = shown?.sessionContext?.session?.kernel;"
            " return {notebook: shown?.context?.path, kernel: kernel?.status,"
            " handles_comms: kernel?.handleComms, comms: [...kernel?._comms?.values() ?? []].map("
            "comm => [comm.targetName, comm.commId, comm.subshellId, Boolean(comm.onMsg)].join(' ')),"
            " dialogs: [...document.querySelectorAll('.jp-Dialog')].map(dialog => dialog.innerText),"
            " cells: [...document.querySelectorAll('.jp-CodeCell')].map(cell => cell.innerText.slice(-300))}; }"
        )
        found["console"] = self.errors[-10:]
        # The threads first: a message may wake one.
        for name, look in [("threads", self._threads), ("channels", lambda: self.page.evaluate(CHANNELS))]:
            try:
                found[name] = look()
            except Exception as error:  # the kernel is gone, for example
                found[name] = repr(error)[:300]
        return "\n".join(f"{name}: {value}" for name, value in found.items())

    def _threads(self):
        """Where each thread of the newest kernel is."""
        files = (self.path.parents[1] / "threads").iterdir()
        newest = max(files, key=lambda file: file.stat().st_mtime_ns)  # an older one's process may have ended
        os.kill(int(newest.name), signal.SIGUSR1)
        time.sleep(1)
        return newest.read_text()

    def close(self):
        """Shut its own kernel down and close the notebook, unsaved. Fails if code of the kit raised in the browser."""
        self.page.remove_listener("console", self._listen)
        self.page.remove_listener("pageerror", self._hear)
        self.page.evaluate(
            "async own => { const shown = jupyterapp.shell.currentWidget;"
            " if (own) await shown.sessionContext.shutdown();"
            " shown.context.model.dirty = false; shown.close(); }",
            self.kernel is None,
        )
        self.page.locator(".jp-Notebook").wait_for(state="detached")
        self.open = False
        assert self.own_errors == []


class Tab:
    """JupyterLab in a tab of the browser, loaded once for many notebooks: loading takes longer than most tests."""

    def __init__(self, browser, url):
        self.browser, self.url, self.context = browser, url, None

    @property
    def page(self):
        if self.context is None:
            self.context = self.browser.new_context(viewport=SIZE)
            self.context.set_default_timeout(PATIENCE)
            page = self.context.new_page()
            page.goto(f"{self.url}/lab?reset")
            page.wait_for_function("window.jupyterapp !== undefined")
            page.evaluate("() => jupyterapp.restored.then(() => {})")
        return self.context.pages[0]

    def close(self):
        """Discard this tab, so that the next test gets a new one."""
        if self.context is not None:
            self.context.close()
            self.context = None


@pytest.fixture(scope="session")
def tab(lab, browser):
    tab = Tab(browser, lab[0])
    yield tab
    tab.close()


@pytest.fixture
def open_notebook(lab, tab, request):
    """Open a notebook, one at a time: one of the course by its name, or a new one made of the given code cells."""
    _, root = lab
    opened = []

    def open_notebook(name, *cells, kernel=None):
        path = root / f"{name}.ipynb"
        if cells:
            code = [nbformat.v4.new_code_cell(source) for source in cells]
            kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
            nbformat.write(nbformat.v4.new_notebook(cells=code, metadata={"kernelspec": kernelspec}), path)
        try:
            shown = NotebookPage(tab.page, path, kernel)
        except PlaywrightTimeoutError:
            tab.close()  # an earlier notebook left the tab in a state in which none opens; in a new tab it has to open
            shown = NotebookPage(tab.page, path, kernel)
        opened.append(shown)
        return shown

    yield open_notebook
    has_failed = request.node.stash[HAS_FAILED]
    try:
        for notebook in opened:
            if notebook.open:
                if has_failed:
                    warnings.warn(f"{request.node.name} failed. JupyterLab shows\n{notebook.state()}", stacklevel=1)
                notebook.close()
    finally:
        if has_failed or any(notebook.open for notebook in opened):
            tab.close()  # its state is unknown


# The check of contrast takes most of axe-core's time; tests/viz/test_style.py computes the contrast of every ink.
LEFT_OUT = {"color-contrast"}
# Whether links differ from the text around them takes two fifths of the rest. One style sheet decides it for all pages.
OF_THE_STYLE_SHEET = {"link-in-text-block"}


@pytest.fixture(scope="session")
def violations():
    """A function (page, selector of the parts to check, names of rules to skip) -> axe-core's complaints.

    With `style_sheet=True` the rules that one page answers for all are checked too.
    """

    def violations(page, selector, leave_out=(), style_sheet=False):
        left_out = LEFT_OUT | {*leave_out} | (set() if style_sheet else OF_THE_STYLE_SHEET)
        rules = {rule: {"enabled": False} for rule in left_out}
        found = Axe().run(page, selector, {"resultTypes": ["violations"], "rules": rules}).response
        assert found["passes"], f"axe-core looked at nothing: is there {selector!r} on the page?"
        return [
            f"{rule['id']}: {rule['help']}: {node['html'][:300]}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]

    return violations
