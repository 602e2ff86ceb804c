"""Is this machine ready for the course? `python -m mlx_grpo_kit doctor` names problems and commands.

A finding is `ok`, a `note` (something is slow or missing, but the course works without it) or `broken`. MLX is tested
in a separate process, so that the doctor survives if MLX cannot be loaded or crashes.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlx_grpo_kit import assets
from mlx_grpo_kit.files import MANIFEST, check_saved, read_manifest
from mlx_grpo_kit.runtime.extras import ROOT, install, pip

PACKAGE = "mlx_grpo_kit"
OPTIONAL = ("transformers", "trl", "mlx-lm", "jax", "torchopt", "torchax", "pytest", "nbval", "playwright")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MATRIX_SIZE = 1024
MAX_GFLOPS_A_CORE = 1000  # two units for 16 float32 numbers each give 320 at 5 GHz, Apple's matrix units somewhat more
SECONDS_FOR_MLX = 60


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: Literal["ok", "note", "broken"]
    detail: str
    fix: str = ""
    """The command that fixes the problem; empty if the state is ok."""


@dataclass(frozen=True)
class Report:
    """All findings of one run; `str(report)` is the plain text."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """True if everything that the course requires works."""
        return all(finding.state != "broken" for finding in self.findings)

    @property
    def summary(self) -> str:
        broken, notes = ([f for f in self.findings if f.state == state] for state in ("broken", "note"))
        if broken:
            return f"Broken: {', '.join(f.name for f in broken)}. The command to fix each is above."
        return "Everything required works" + (f"; {len(notes)} to note." if notes else ".")

    def lines(self) -> list[tuple[str, str]]:
        """The text, line by line, each with the state of its finding."""
        width = max(len(finding.name) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append((finding.state, f"{finding.state:<7}{finding.name:<{width}}  {finding.detail}"))
            if finding.fix:
                lines.append((finding.state, f"{'':<{width + 7}}  fix: {finding.fix}"))
        return [*lines, ("ok" if self.healthy else "broken", self.summary)]

    def __str__(self) -> str:
        return "\n".join(text for _, text in self.lines())


def run_doctor() -> Report:
    """Run all checks. This takes about two seconds, and changes nothing."""
    python = Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    return Report((python, *_check_packages(), _check_models(), _check_kernel(), *_check_mlx(), _check_browser()))


def run(options: object = None) -> int:
    """Print the report and return the exit status: 1 if something required is broken."""
    report = run_doctor()
    try:
        from rich.console import Console
    except ImportError:
        print(report)
    else:
        console = Console(highlight=False, soft_wrap=True)
        styles = {"ok": None, "note": "yellow", "broken": "bold red"}
        for state, text in report.lines():
            console.print(text, style=styles[state], markup=False)
    return 0 if report.healthy else 1


def system_install(debian: str, fedora: str, arch: str, brew: str) -> str:
    """The command that installs a system package here, given its name in each package manager."""
    managers = {
        "apt-get": f"apt-get install -y {debian}",
        "dnf": f"dnf install -y {fedora}",
        "pacman": f"pacman -S --noconfirm {arch}",
        "brew": f"brew install {brew}",
    }
    manager = next(filter(shutil.which, managers), "apt-get")
    needs_sudo = manager != "brew" and os.geteuid() != 0
    return ("sudo " if needs_sudo else "") + managers[manager]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_packages() -> list[Finding]:
    """Compare the installed packages with the requirements in pyproject.toml."""
    try:
        from packaging.requirements import Requirement

        requirements = importlib.metadata.requires(PACKAGE) or []
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return [Finding("Packages", "broken", f"{PACKAGE} is not installed in this Python", install("course"))]
    present, problems = [], []
    wanted = ("", "torch", "course") if importlib.util.find_spec("jupyterlab") else ("",)
    for requirement in map(Requirement, requirements):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in wanted):
            continue
        if requirement.name.replace("_", "-") == PACKAGE.replace("_", "-"):  # one extra that includes another
            continue
        version = _version(requirement.name)
        if version is None:
            problem = "is not installed"
        elif not requirement.specifier.contains(version, prereleases=True):
            problem = f"is {version}; the kit needs {requirement.specifier}"
        else:
            present.append(f"{requirement.name} {version}")
            continue
        extras = f"[{','.join(requirement.extras)}]" if requirement.extras else ""
        fix = pip(f"install '{requirement.name}{extras}{requirement.specifier}'")
        problems.append(Finding(requirement.name, "broken", problem, fix))
    optional = [f"{name} {version}" for name in OPTIONAL if (version := _version(name))]
    extra = Finding("Optional", "ok", ", ".join(optional) or "none; for the tests: " + install("dev"))
    return [Finding("Packages", "ok", ", ".join(present)), *problems, extra]


def _check_models() -> Finding:
    """Check that the models that ship with the kit are as they were saved."""
    folders = [folder for folder in vars(assets).values() if isinstance(folder, Path)]
    problems = {}
    for folder in folders:
        try:
            saved = read_manifest(folder)
            if saved is None:
                raise FileNotFoundError(f"{folder} has no {MANIFEST}")
            check_saved(folder, saved)
        except (OSError, ValueError) as error:
            problems[folder] = str(error)
    if not problems:
        return Finding("Models", "ok", f"{', '.join(folder.name for folder in folders)}: as they were saved")
    damaged, first = shlex.join(map(str, problems)), next(iter(problems.values()))
    if (ROOT / ".git").exists():
        fix = f"rm -r {damaged}; git -C {shlex.quote(str(ROOT))} checkout -- {damaged}"
    else:
        fix = pip("install --force-reinstall --no-deps mlx-grpo-kit")
    return Finding("Models", "broken", f"{len(problems)} of {len(folders)} are damaged. {first}", fix)


def _check_kernel() -> Finding:
    """Check that Jupyter's `python3` kernel is this Python, and that the two halves of the widgets match."""
    if importlib.util.find_spec("jupyterlab") is None:
        return Finding("Kernel", "note", "Jupyter is not installed, which the course needs", install("course"))
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        program = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        return Finding("Kernel", "broken", "Jupyter has no kernel python3", pip("install --force-reinstall ipykernel"))
    if os.path.dirname(program) not in ("", os.path.dirname(sys.executable)):  # a bare `python` means this one
        register = f"{sys.executable} -m ipykernel install --sys-prefix"
        return Finding("Kernel", "broken", f"Jupyter's kernel python3 is another Python: {program}", register)
    lab_half = _version("jupyterlab_widgets")
    if lab_half is None or not lab_half.startswith("3."):
        detail = f"ipywidgets 8 needs jupyterlab_widgets 3, here is {lab_half}: panels would not be displayed"
        return Finding("Widgets", "broken", detail, pip("install --force-reinstall ipywidgets"))
    detail = f"python3 is this Python; ipykernel {_version('ipykernel')}, ipywidgets {_version('ipywidgets')}"
    return Finding("Kernel", "ok", f"{detail}, jupyterlab_widgets {lab_half}")


def _check_mlx() -> list[Finding]:
    """Check MLX's device, its matrix products and its compiler in a fresh process."""
    code = "from mlx_grpo_kit.cli import doctor; doctor._probe_mlx()"
    try:
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            timeout=SECONDS_FOR_MLX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Finding("MLX", "broken", f"no answer within {SECONDS_FOR_MLX} s", _reinstall_mlx())]
    if result.returncode != 0:
        last_words = (result.stderr.strip().splitlines() or [f"its process ended with {result.returncode}"])[-1]
        return [Finding("MLX", "broken", last_words, _reinstall_mlx())]
    seen = json.loads(result.stdout.splitlines()[-1])
    return [_judge_device(seen), _judge_blas(seen), _judge_compile(seen)]


def _probe_mlx() -> None:
    """Print the abilities of this process's MLX, as one line of JSON."""
    from mlx_grpo_kit.runtime import blas, mx

    print(
        json.dumps(
            {
                "device": str(mx.default_device().type).split(".")[-1],
                "device_name": mx.device_info().get("device_name", "unknown"),
                "metal": mx.metal.is_available(),
                "cuda": mx.cuda.is_available(),
                "blas": str(blas.bound) if blas.bound else "",
                "blas_reason": blas.reason,
                "needs_blas": blas.wheel_has_reference_blas(),
                "cores": os.cpu_count(),
                "kernels": str(blas.kernels or ""),
                "kernels_reason": blas.kernels_reason,
                **_probe_products(mx),
                **_probe_compile(mx, blas.kernels),
            }
        )
    )


def _probe_products(mx: Any) -> dict[str, float]:
    """The speed of MLX's matrix products, and their largest error against NumPy, relative to the largest number."""
    import numpy as np

    a = mx.random.normal((MATRIX_SIZE, MATRIX_SIZE))
    seconds = []
    # The fastest of many, because other programs compute too.
    while len(seconds) < 3 or (len(seconds) < 50 and sum(seconds) < 0.3):
        start = time.perf_counter()
        product = a @ a
        mx.eval(product)
        seconds.append(time.perf_counter() - start)
    ours, rows = np.asarray(product)[::128], np.asarray(a)[::128].astype(np.float64)
    # NumPy's own loop, because its BLAS could be the same library:
    expected = np.einsum("ik,kj->ij", rows, np.asarray(a))
    error = np.abs(ours - expected).max() / np.abs(expected).max()
    return {"gflops": 2 * MATRIX_SIZE**3 / min(seconds) / 1e9, "product_error": float(np.nan_to_num(error, nan=np.inf))}


def _probe_compile(mx: Any, kernels: Path | None) -> dict[str, Any]:
    """Compile a function in the folder for compiled functions, and run it."""
    x = mx.linspace(-1, 1, 64)
    with tempfile.TemporaryDirectory(dir=kernels) as fresh:  # so that this tests the compiler and not an existing file
        os.putenv("TMPDIR", fresh)  # not in os.environ, so only MLX sees it
        try:
            compiled = mx.compile(lambda x: mx.exp(x) * mx.sin(x) + x)(x)
            wrong = mx.abs(compiled - (mx.exp(x) * mx.sin(x) + x)).max().item() > 1e-5
            error = "it computes wrong numbers" if wrong else ""
        except RuntimeError as failure:
            error = str(failure).split("the output is:")[-1].strip() or "g++ ended with an error and no message"
        return {"compile_error": error, "compiled_kernels": len(list(Path(fresh).glob("mlx/*/cpu/*.so")))}


def _reinstall_mlx() -> str:
    return pip(f"install --force-reinstall '{'mlx[cpu]' if sys.platform == 'linux' else 'mlx'}'")


def _judge_device(seen: dict) -> Finding:
    have = {True: "yes", False: "no"}
    detail = f"{seen['device']} ({seen['device_name']}); Metal {have[seen['metal']]}, CUDA {have[seen['cuda']]}"
    if sys.platform == "darwin" and not seen["metal"]:
        return Finding("MLX device", "note", f"{detail}: this Mac's GPU is not used", _reinstall_mlx())
    if Path("/proc/driver/nvidia/version").exists() and not seen["cuda"]:
        # mlx-cpu and mlx-cuda-13 write the same libmlx.so: the one that was installed last is loaded.
        both = _version("mlx-cuda-13") is not None
        fix = pip("install --force-reinstall --no-deps mlx-cuda-13" if both else "install 'mlx[cuda13]'")
        return Finding("MLX device", "note", f"{detail}: the NVIDIA card is not used", fix)
    return Finding("MLX device", "ok", detail)


def _judge_blas(seen: dict) -> Finding:
    library = seen["blas"] or "MLX's own BLAS"
    no_blas = "export MLX_GRPO_KIT_BLAS=off" if seen["blas"] else _reinstall_mlx()
    if not seen["product_error"] < 1e-3:
        detail = f"{library} computes wrong products, off by {seen['product_error']:.0%} of the largest number"
        return Finding("BLAS", "broken", detail, no_blas)
    if seen["device"] == "cpu" and seen["gflops"] > MAX_GFLOPS_A_CORE * seen["cores"]:
        detail = f"{seen['gflops']:,.0f} GFLOP/s is more than {seen['cores']} cores can compute: {library} skips work"
        return Finding("BLAS", "broken", detail, no_blas)
    speed = f"{seen['gflops']:.0f} GFLOP/s in float32, {MATRIX_SIZE} x {MATRIX_SIZE}"
    if seen["blas"]:
        return Finding("BLAS", "ok", f"{speed}, by {seen['blas']} ({seen['blas_reason']})")
    detail = f"{speed}, by MLX's own BLAS ({seen['blas_reason']})"
    if seen["device"] == "cpu" and seen["needs_blas"]:
        wish = os.environ.get("MLX_GRPO_KIT_BLAS")
        fix = "unset MLX_GRPO_KIT_BLAS" if wish else install("torch")
        return Finding("BLAS", "note", f"{detail}: training is 5 to 10 times slower than it could be", fix)
    return Finding("BLAS", "ok", detail)


def _judge_compile(seen: dict) -> Finding:
    fix = system_install(debian="g++", fedora="gcc-c++", arch="gcc", brew="gcc")
    if seen["compile_error"]:
        return Finding("mx.compile", "broken", f"fails: {seen['compile_error'].splitlines()[0]}", fix)
    if seen["device"] != "cpu":
        return Finding("mx.compile", "ok", f"works on {seen['device']}")
    if sys.platform == "linux" and not seen["kernels"]:
        detail = f"compiled functions run uncompiled: right, but slower ({seen['kernels_reason']})"
        return Finding("mx.compile", "note", detail, "export XDG_CACHE_HOME=/a/folder/of/your/own")
    if sys.platform == "linux" and not seen["compiled_kernels"]:
        return Finding("mx.compile", "note", "no g++, so compiled functions run uncompiled: right, but slower", fix)
    where = f", in {seen['kernels']}" if seen["kernels"] else ""
    return Finding("mx.compile", "ok", f"works, with {shutil.which('g++')}{where}")


def find_browser() -> Path | None:
    """An installed Chromium or Chrome for the browser tests."""
    mac = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
    on_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    return Path(on_path) if on_path else mac if mac.exists() else None


def _check_browser() -> Finding:
    if path := find_browser():
        return Finding("Browser", "ok", f"{path}, for the browser tests")
    fix = system_install(debian="chromium", fedora="chromium", arch="chromium", brew="--cask google-chrome")
    return Finding("Browser", "note", "no Chromium or Chrome: only the browser tests need one", fix)


if __name__ == "__main__":
    sys.exit(run())
