"""JupyterLab in a real browser: a server of its own, a page, and what a reader does on it."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SETTINGS = ROOT / "tutorial_lib" / "school" / "jupyterlab"  # as in `lab`
SECONDS = 300  # far more than an idle machine needs
NOTEBOOK = "const panel = window.jupyterapp.shell.currentWidget;"
KERNEL = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    if (!panel?.context?.isReady) return 'opening';
    const drawn = document.querySelectorAll('.jp-Notebook .jp-Cell:not(.jp-Cell-Placeholder)');
    if (drawn.length < panel.context.model.cells.length) return 'drawing';
    return panel.sessionContext.session?.kernel?.status ?? 'starting';
}"""
RUN = f"""() => {{ {NOTEBOOK}
    window.ran = null;
    window.jupyterapp.commands.execute('notebook:run-all-cells')
        .then(() => {{ window.ran = true; }}, () => {{ window.ran = false; }});
}}"""
# What a reader would see as broken; a widget's own image is within an output too.
FAULTS = """() => {
    const all = (what) => [...document.querySelectorAll('.jp-Notebook ' + what)];
    const pictures = all('img').filter((one) => !one.closest('.jp-MarkdownOutput a'));
    const wide = (one) => one.scrollWidth > one.clientWidth + 1;
    const notebooks = [...document.querySelectorAll('.jp-Notebook')];
    const said = notebooks.map((one) => one.innerText).join(' ');
    return [
        ...all('img').filter((one) => one.complete && !one.naturalWidth).map(() => 'broken image'),
        ...pictures.filter((one) => !one.alt).map(() => 'image without alt text'),
        ...all('.jp-CodeMirrorEditor .cm-scroller').filter(wide)
            .map((one) => 'code cut off: ' + one.innerText.slice(0, 80)),
        ...all('.jp-OutputArea-output img, .jp-RenderedMarkdown img').filter((one) =>
            one.clientWidth > one.closest('.jp-Cell').clientWidth).map(() => 'image cut off'),
        ...all('.jp-OutputArea-output').filter(wide)
            .map((one) => 'output cut off: ' + one.innerText.slice(0, 80)),
        ...['Error displaying widget', 'Loading widget', 'Failed to load model class']
            .filter((words) => said.includes(words)),
    ];
}"""


def find_browser():
    """The browser's path and an empty reason, or None and why there is none to drive."""
    try:
        import axe_playwright_python  # noqa: F401
        import playwright  # noqa: F401
    except ImportError as error:
        return None, f"{error}: it comes with the extra `test`"
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found, "" if found else "no Chromium or Chrome is on the PATH"


@contextlib.contextmanager
def chromium(executable):
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        flags = ["--disable-dev-shm-usage", "--disable-gpu", "--no-sandbox"]
        browser = driver.chromium.launch(executable_path=executable, args=flags)
        try:
            yield browser
        finally:
            browser.close()


def _environment(home, theme):
    settings = {
        "docmanager-extension/plugin": {"autosave": False},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "apputils-extension/themes": {"theme": f"JupyterLab {theme.title()}"},
        "notebook-extension/tracker": {"windowingMode": "none"},
    }
    for plugin, values in settings.items():
        path = home / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    folders = {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "spaces"}
    folders |= {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "run", "IPYTHONDIR": "ipy"}
    own = {name: str(home / folder) for name, folder in folders.items()}
    return {**os.environ, **own, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def jupyterlab(folder, home, theme="light"):
    """A server of JupyterLab with settings of its own; gives a function from a file to its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_urlsafe(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]
    command += [f"--LabApp.app_settings_dir={SETTINGS}"]
    command += [f"--FileCheckpoints.checkpoint_dir={home / 'checkpoints'}"]
    environment = _environment(home, theme) | {"JUPYTER_TOKEN": token}
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", server, home)
            # A workspace of its own: else the notebooks of before open beside it.
            lab = f"http://127.0.0.1:{port}/lab/workspaces"
            yield lambda name: f"{lab}/{Path(name).stem}/tree/{name}?token={token}"
        finally:
            server.terminate()  # which ends its kernels
            server.wait(20)


def _wait_for(url, server, home):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), opener.open(url, timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not answer:\n{(home / 'server.log').read_text()[-2000:]}")


class Notebook:
    """A notebook that is open on a page; `complaints` are the console's errors."""

    def __init__(self, context, url):
        self.complaints = []
        self.page = context.new_page()
        self.page.set_default_timeout(90_000)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.goto(url)
        self._until(lambda: self.page.evaluate(KERNEL) == "idle")
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        self.settle()

    def _hear(self, message):
        # JupyterLab asks the browser for an attachment's name before it puts the picture there.
        if message.type == "error" and "ERR_UNKNOWN_URL_SCHEME" not in message.text:
            self.complaints.append(message.text)

    def _until(self, done):
        deadline = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < deadline, "the page did not get ready in time"
            self.page.wait_for_timeout(50)

    def settle(self, quiet=6):
        """Wait until the kernel is idle, and the page's size has not changed for a while."""
        seen = []

        def still():
            now = "() => document.querySelectorAll('.jp-Notebook *').length"
            seen.append((self.page.evaluate(KERNEL), self.page.evaluate(now)))
            return len(seen) > quiet and seen[-1][0] == "idle" and len(set(seen[-quiet:])) == 1

        self._until(still)

    def run(self):
        """Run all cells, up to the first error; gives the errors, as they stand on the page."""
        self.page.evaluate(RUN)
        self._until(lambda: self.page.evaluate("() => window.ran") is not None)
        self.settle()
        errors = self.page.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
        return (
            errors.all_inner_texts()
            + self.page.locator(
                '[data-mime-type="application/vnd.jupyter.error"]'
            ).all_inner_texts()
        )

    def faults(self):
        """What is broken on the page as it stands."""
        return self.page.evaluate(FAULTS)

    def picture(self, path):
        """Take a picture of the whole notebook, in a window as high as it."""
        size = self.page.viewport_size
        panels = "[...document.querySelectorAll('.jp-WindowedPanel-outer')]"  # of other tabs too
        script = f"() => Math.max(...{panels}.map((panel) => panel.scrollHeight))"
        height = min(12_000, self.page.evaluate(script) + 200)
        self.page.set_viewport_size({**size, "height": height})
        self.page.screenshot(path=path)
        self.page.set_viewport_size(size)

    def close(self):
        """End the kernel, and close the page."""
        self.page.evaluate(f"() => {{ {NOTEBOOK} return panel.sessionContext.shutdown(); }}")
        self.page.close()
