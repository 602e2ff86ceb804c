"""Faster float32 products on AMD processors from Zen 5 on: those of SciPy's OpenBLAS instead of MKL's.

MKL, which comes with torch, uses AVX-512 only on Intel's processors. GFLOP/s on one thread of an AMD EPYC (Zen 5), at
1024 x 128 x 384: MKL 90, OpenBLAS 200 (and 106 if OPENBLAS_CORETYPE=Haswell limits it to AVX2). Zen 4 computes 512 bits
in two halves, so there AVX-512 gains nothing (MKL 101, OpenBLAS 103), and large work is faster with MKL, which then
uses all cores: a GRPO step with 5.2 million parameters takes 770 instead of 930 ms.

In SciPy's wheel the names of OpenBLAS begin with "scipy_", which MLX does not look for. A few lines of C++ forward
`cblas_sgemm`, through which all expensive products go, to it. They are compiled once, into the folder of `mx.compile`'s
functions.

Without SciPy's wheel, a compiler, or such a processor nothing changes. torch calls its products by another name, and so
keeps its MKL.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

RELAY = """
using Sgemm = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
static Sgemm* target;
extern "C" void mlx_grpo_kit_relay_to(Sgemm* function) { target = function; }
extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a,
                            int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  target(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
"""


ZEN_5 = 26  # the "cpu family" of /proc/cpuinfo; Zen 4 is 25


def gains_from_avx512(cpuinfo: str) -> bool:
    """True if /proc/cpuinfo describes an AMD processor that computes 512 bits at once, which MKL does not use."""
    first = [line.split(":", 1) for line in cpuinfo.split("\n\n")[0].splitlines() if ":" in line]
    about = {name.strip(): value.split() for name, value in first}
    family = int((about.get("cpu family") or ["0"])[0])
    return about.get("vendor_id") == ["AuthenticAMD"] and family >= ZEN_5 and "avx512f" in about.get("flags", [])


def serve_products(site_packages: Path, kernels: Path | None) -> Path:
    """Load OpenBLAS's `cblas_sgemm` into the process's global scope, and return its library.

    Its products run on one thread, unless OMP_NUM_THREADS says otherwise.

    Args:
        site_packages: the folder in which SciPy is installed.
        kernels: a folder that only this user can write to.

    Raises:
        OSError: something necessary is missing. Then nothing has changed.
    """
    if not gains_from_avx512(Path("/proc/cpuinfo").read_text()):
        raise OSError("this is not an AMD processor from Zen 5 on, with AVX-512")
    libraries = sorted(site_packages.glob("scipy.libs/libscipy_openblas-*.so"))
    if not libraries or kernels is None:
        raise OSError("SciPy has no OpenBLAS of its own, or there is no folder to compile in")
    relay = _compiled(kernels)
    openblas = ctypes.CDLL(str(libraries[0]))
    if not hasattr(openblas, "scipy_cblas_sgemm"):
        raise OSError(f"{libraries[0]} has no scipy_cblas_sgemm")
    if "OMP_NUM_THREADS" not in os.environ:
        openblas.scipy_openblas_set_num_threads(1)
    ctypes.CDLL(str(relay)).mlx_grpo_kit_relay_to(openblas.scipy_cblas_sgemm)  # before anything can find it
    ctypes.CDLL(str(relay), mode=ctypes.RTLD_GLOBAL)
    return libraries[0]


def _compiled(folder: Path) -> Path:
    """The relay as a library in `folder`, compiled if necessary."""
    library = folder / f"mlx_grpo_kit-relay-{hashlib.sha256(RELAY.encode()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = shutil.which("g++")
    if compiler is None:
        raise OSError("no compiler")
    handle, unfinished = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    command = [compiler, "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", unfinished]
    try:
        done = subprocess.run(command, input=RELAY, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise OSError(f"{compiler} failed: {done.stderr.strip()}")
        os.replace(unfinished, library)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{compiler} took more than a minute") from error
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return library
