"""The BLAS that MLX multiplies matrices with on Linux. Import MLX like this: `from mlx_grpo_kit.runtime import mx`.

MLX's Linux CPU wheel carries the *reference* BLAS, which a tuned one beats 15 to 70 times. The dynamic linker looks a
symbol up in the process's global scope before it looks in the library's own dependencies, so MLX uses a fast BLAS that
is loaded there before `import mlx.core`. Nothing is patched and nothing is copied.

Candidates, best first. float32 GFLOP/s at 1024 x 1024 x 1024 on two cores with AVX-512; the wheel's own BLAS makes 6:

1. torch's own `libtorch_cpu.so` (412; x86-64 wheels carry MKL). It comes with the extra `torch`, and it is the only
choice that does not affect torch: torch looks its BLAS up in the global scope too, so with OpenBLAS there torch itself
fell from 377 to 69. It loads in 0.13 s and takes 110 MB.
2. an installed MKL (408; `pip install mkl`).
3. an OpenBLAS of the environment (conda) or of the system (86; Debian's 0.3.21).

These numbers are for two threads; one has half. Decoding, where products are small, uses one thread anyway, and so does
learning with small models: a second thread gains nothing there, and loses a factor of five when another program needs
the core, because threads spin while they wait for each other. Large work runs in `all_cores()`. If OMP_NUM_THREADS is
set, it applies to everything.

`MLX_GRPO_KIT_BLAS=off` leaves MLX as it is; `MLX_GRPO_KIT_BLAS=/path/to/lib.so` uses exactly that library.
On macOS MLX uses Metal and Accelerate, and this module does nothing.
"""

import ctypes
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from mlx_grpo_kit.runtime.extras import install, pip
from mlx_grpo_kit.runtime.kernel_cache import use_private_folder

VARIABLE = "MLX_GRPO_KIT_BLAS"

bound: Path | None = None
"""The library that computes MLX's float32 matrix products instead of MLX's own BLAS, or None."""

reason: str = ""
"""The reason for the value of `bound`, in one sentence."""


class _DlInfo(ctypes.Structure):
    """The structure that dladdr(3) fills in."""

    _fields_ = [
        ("file_name", ctypes.c_char_p),
        ("file_base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("symbol_address", ctypes.c_void_p),
    ]


def global_blas() -> Path | None:
    """The library whose `sgemm_` is in the process's global scope, where MLX's look-up starts, or None."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "sgemm_"):
        return None
    info = _DlInfo()
    process.dladdr(ctypes.cast(process.sgemm_, ctypes.c_void_p), ctypes.byref(info))
    return Path(os.fsdecode(info.file_name))


def _package_folders(name: str) -> list[Path]:
    """The folders of a package, found without importing it. `mlx` is a namespace package and may have several."""
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def wheel_has_reference_blas() -> bool:
    """True if MLX is the Linux CPU wheel (`mlx-cpu`), which contains the reference BLAS next to the package."""
    return any(
        any(folder.parent.glob("mlx_cpu.libs/libblas-*")) and not any(folder.parent.glob("mlx_cuda_*.libs"))
        for folder in _package_folders("mlx")
    )


def candidates() -> Iterator[Path | str]:
    """Libraries to try, best first: paths that exist, then a name that the dynamic linker may know."""
    for folder in _package_folders("torch"):
        if (folder / "lib" / "libtorch_cpu.so").exists():
            yield folder / "lib" / "libtorch_cpu.so"
    prefixes = dict.fromkeys(Path(p) for p in (sys.prefix, os.environ.get("CONDA_PREFIX", sys.prefix)))
    for prefix in prefixes:
        yield from sorted((prefix / "lib").glob("libmkl_rt.so*"))[-1:]
    yield from (p / "lib" / "libopenblas.so.0" for p in prefixes if (p / "lib" / "libopenblas.so.0").exists())
    yield "libopenblas.so.0"


def _load(library: Path | str) -> None:
    """Load a library into the global scope. Raises OSError if it cannot be loaded or contains no BLAS.

    An OpenMP runtime gives a new thread, and MLX's is one, the number that it found in the environment when it was
    loaded: one, unless the user has set OMP_NUM_THREADS. The main thread gets its own number back.
    """
    settings = _openmp_settings(library)
    os.environ.update(settings)
    try:
        # Load it privately first, so that no wrong file enters the scope.
        if not hasattr(ctypes.CDLL(str(library)), "sgemm_"):
            raise OSError(f"{library} has no sgemm_ in it, so it is not a BLAS library")
        handle = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    finally:
        for name in settings:
            del os.environ[name]
    if "OMP_NUM_THREADS" in settings and hasattr(handle, "omp_set_num_threads"):
        handle.omp_set_num_threads(len(os.sched_getaffinity(0)))


def _openmp_settings(library: Path | str) -> dict[str, str]:
    """Variables of the environment for a library's OpenMP runtime. What the user has set stays as it is.

    Every thread that computes on all cores has helper threads of its own, which wait for work by spinning. GNU's
    runtime lets them spin for 300,000 turns, about 3 ms. That is too long where another program computes too: its
    threads wait for the core that spins. Two runs on the two cores of a Zen 4 took 48 s so, and 16 s with 10,000
    turns; one alone takes 9 s with either. If there are more threads than cores, GNU's runtime cuts spinning to 100
    turns, and small operations of torch took 1.5 times as long on a Zen 3. With the policy "active" it is 1,000.
    (Other runtimes would spin for ever.)
    """
    settings = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    is_gnu = isinstance(library, Path) and any(library.parent.glob("libgomp*"))
    if is_gnu and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        settings |= {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "10000"}
    return settings


def _hold_to_one_thread(path: Path) -> None:
    """Make this library compute MLX's products on one thread, unless the user has set OMP_NUM_THREADS.

    The library itself gets the number, because its OpenMP runtime may have read the environment earlier, for example in
    `import torch`. torch takes the number that MKL has in its thread unless it was given one, so it keeps its own.
    """
    set_threads = None if "OMP_NUM_THREADS" in os.environ else _thread_setter(path)
    if set_threads is None:
        return
    library = ctypes.CDLL(str(path))
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(torch.get_num_threads())
    elif hasattr(library, "MKL_Set_Num_Threads_Local"):
        library.MKL_Set_Num_Threads_Local(len(os.sched_getaffinity(0)))
    set_threads(1)


@contextmanager
def all_cores() -> Iterator[None]:
    """In this context, MLX's matrix products run on all cores, if the library allows it (MKL, OpenBLAS); then on one.

    The number holds for the whole process, torch included: call `torch.set_num_threads` afterwards to give torch all
        cores again. If OMP_NUM_THREADS is set, nothing changes.
    """
    set_threads = None if bound is None or "OMP_NUM_THREADS" in os.environ else _thread_setter(bound)
    if set_threads is None:
        yield
        return
    set_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        set_threads(1)


def preload() -> dict[str, str]:
    """Variables with which a new Python process uses this fast BLAS, whatever it imports first.

    The dynamic linker then loads the library before anything else. Without a fast BLAS there is nothing to set.
    """
    if bound is None:
        return {}
    spinning = {name: value for name, value in _openmp_settings(bound).items() if name != "OMP_NUM_THREADS"}
    return spinning | {"LD_PRELOAD": ":".join(filter(None, [os.environ.get("LD_PRELOAD"), str(bound)]))}


@cache
def _thread_setter(path: Path) -> Callable[[int], None] | None:
    """A library's function that sets the number of threads for every thread that calls the library, or None."""
    library = ctypes.CDLL(str(path))
    # omp_set_num_threads only affects the calling thread, but MLX computes in its own thread.
    names = ("mkl_serv_set_num_threads", "MKL_Set_Num_Threads", "openblas_set_num_threads")
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)


def _bind() -> tuple[Path | None, str]:
    """Bind the first candidate that loads, and return (library, reason)."""
    if sys.platform != "linux":
        return None, "only Linux needs it: MLX's own BLAS is fast here"
    wish = os.environ.get(VARIABLE, "")
    if wish == "off":
        return None, f"{VARIABLE}=off"
    if not wheel_has_reference_blas():
        return None, "this MLX is not the Linux CPU wheel, so it keeps its own BLAS"
    if found := global_blas():
        return found, "it was in the process's global scope already"
    if "mlx.core" in sys.modules:
        return _stay_slow(
            "mlx.core was imported before mlx_grpo_kit.runtime.blas", "import the kit first, in a fresh process"
        )
    failure = ""
    for library in [wish] if wish else candidates():
        try:
            _load(library)
        except OSError as error:
            failure = str(error)
            continue
        return global_blas(), f"{VARIABLE} names it" if wish else "the first candidate that loads"
    if wish:
        return _stay_slow(f"{VARIABLE} names a library that cannot be used ({failure})", f"unset {VARIABLE}")
    return _stay_slow("no fast BLAS was found", f"{install('torch')}, or apt-get install libopenblas0")


def _stay_slow(problem: str, way_out: str) -> tuple[None, str]:
    """Warn at the line that imports this module, and return (None, problem)."""
    warnings.warn(
        f"MLX multiplies matrices with its slow reference BLAS: {problem}. The way out: {way_out}. "
        f"{VARIABLE}=off silences this.",
        RuntimeWarning,
        stacklevel=4,
    )
    return None, problem


kernels, kernels_reason = use_private_folder()
"""The folder of MLX's compiled functions, or None; and the reason in one sentence."""

bound, reason = _bind()
if bound and (found := global_blas()):
    _hold_to_one_thread(found)

try:
    import mlx.core as mx
except ImportError as error:
    wheel = "mlx[cpu]" if sys.platform == "linux" else "mlx"
    way_out = pip(f"install '{wheel}'")
    raise ImportError(f"MLX cannot be loaded ({error}). Install it: {way_out}") from error


def _run_uncompiled() -> None:
    mx.disable_compile()
    warnings.warn(
        f"Compiled functions run uncompiled, which is right but slower: {kernels_reason}, and there is no other "
        "folder that only this user can write to. The way out: export XDG_CACHE_HOME=/a/folder/of/your/own.",
        RuntimeWarning,
        stacklevel=3,
    )


if sys.platform == "linux" and kernels is None and mx.default_device() == mx.cpu and shutil.which("g++"):
    _run_uncompiled()
