"""Which BLAS MLX multiplies matrices with on Linux. Import MLX through this module: `from mlx_grpo_kit.blas import mx`.

MLX's Linux CPU wheel carries the *reference* BLAS, which is about twenty times slower than a tuned one. The dynamic linker
looks a symbol up in the process's global scope before it looks in the library's own dependencies, so a fast BLAS
that is put there before `import mlx.core` serves MLX instead. Nothing is patched and nothing is copied.

Candidates, in this order:

1. torch's own `libtorch_cpu.so` (x86-64 wheels carry MKL, aarch64 wheels OpenBLAS). torch is a dependency of the kit, so it
   is nearly always there, it was the fastest that was measured, and it changes nothing for torch: any other BLAS in the
   global scope would be picked up by torch too.
2. an OpenBLAS of the environment (conda) or of the system.
3. an installed MKL (`pip install mkl`).

`MLX_GRPO_KIT_BLAS=off` leaves MLX as it is; `MLX_GRPO_KIT_BLAS=/path/to/lib.so` takes exactly that library.
On macOS MLX uses Metal and Accelerate, and this module does nothing.
"""

import ctypes
import ctypes.util
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "MLX_GRPO_KIT_BLAS"

bound: Path | None = None
"""The library that serves MLX's matrix products in place of its own, or None."""

reason: str = ""
"""One sentence: why `bound` is what it is."""


class _DlInfo(ctypes.Structure):
    """What dladdr(3) fills in."""

    _fields_ = [
        ("file_name", ctypes.c_char_p),
        ("file_base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("symbol_address", ctypes.c_void_p),
    ]


def global_blas() -> Path | None:
    """The library whose `sgemm_` is in the process's global scope, where MLX's look-up starts; None when there is none."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "sgemm_"):
        return None
    info = _DlInfo()
    process.dladdr(ctypes.cast(process.sgemm_, ctypes.c_void_p), ctypes.byref(info))
    return Path(os.fsdecode(info.file_name))


def _package_folder(name: str) -> Path | None:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _wheel_has_reference_blas() -> bool:
    """Whether the installed MLX is the Linux CPU wheel (`mlx-cpu`), which bundles the reference BLAS beside the package."""
    folder = _package_folder("mlx")
    return folder is not None and any(folder.parent.glob("mlx_cpu.libs/libblas-*"))


def candidates() -> Iterator[Path | str]:
    """Libraries to try, best first: paths that exist, then names that the dynamic linker may know."""
    torch = _package_folder("torch")
    if torch is not None and (torch / "lib" / "libtorch_cpu.so").exists():
        yield torch / "lib" / "libtorch_cpu.so"
    prefixes = dict.fromkeys(Path(p) for p in (sys.prefix, os.environ.get("CONDA_PREFIX", sys.prefix)))
    yield from (p / "lib" / "libopenblas.so.0" for p in prefixes if (p / "lib" / "libopenblas.so.0").exists())
    yield "libopenblas.so.0"
    for prefix in prefixes:
        yield from sorted((prefix / "lib").glob("libmkl_rt.so*"))[-1:]


def _load(library: Path | str) -> None:
    """Put one library into the global scope; raises OSError when it cannot be loaded or has no BLAS in it."""
    if not hasattr(ctypes.CDLL(str(library)), "sgemm_"):      # a first, private load: a wrong file must not reach the scope
        raise OSError(f"{library} has no sgemm_ in it, so it is not a BLAS library")
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _bind() -> tuple[Path | None, str]:
    """Bind the first candidate that loads; -> (library, reason)."""
    wish = os.environ.get(VARIABLE, "")
    if sys.platform != "linux":
        return None, "only Linux needs this: MLX brings its own fast BLAS here"
    if wish == "off":
        return None, f"{VARIABLE}=off"
    if not _wheel_has_reference_blas():
        return None, "this MLX is not the Linux CPU wheel, so its own BLAS stays"
    if found := global_blas():
        return found, "it was in the process's global scope already"
    if "mlx.core" in sys.modules:
        reason = "mlx.core was imported before mlx_grpo_kit.blas, so it is too late to give it a fast BLAS"
        return _warn(reason, "import mlx_grpo_kit.blas first, or restart the kernel")
    failures = []
    for library in [wish] if wish else candidates():
        try:
            _load(library)
        except OSError as error:
            failures.append(str(error))
            continue
        return global_blas(), f"{VARIABLE} names it" if wish else "the first candidate that loads"
    if wish:
        return _warn(f"{VARIABLE} names a library that cannot be used ({failures[0]})", f"unset {VARIABLE}")
    return _warn("no fast BLAS was found", "pip install torch, or apt install libopenblas0")


def _warn(problem: str, way_out: str) -> tuple[None, str]:
    """Say once that MLX stays slow; -> (None, problem)."""
    warnings.warn(
        f"MLX multiplies matrices with its slow reference BLAS: {problem}. To fix it: {way_out}. "
        f"{VARIABLE}=off silences this.", RuntimeWarning, stacklevel=2)
    return None, problem


bound, reason = _bind()

import mlx.core as mx  # noqa: E402  (the whole point: only after the binding)

__all__ = ["bound", "candidates", "global_blas", "mx", "reason"]
