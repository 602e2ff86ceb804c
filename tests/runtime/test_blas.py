"""A fast BLAS under MLX: which one is bound, that results stay right, and that other libraries stay safe beside it.

Everything that binds a library happens in a fresh process, because a process can bind only once.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from mlx_grpo_kit.runtime import blas
from mlx_grpo_kit.runtime.extras import install

linux_cpu_wheel = pytest.mark.skipif(
    not blas.wheel_has_reference_blas(), reason="this MLX is not the Linux CPU wheel, so nothing is bound"
)


def run_python(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh Python whose environment has no MLX_GRPO_KIT_BLAS but what `variables` says."""
    environment = {name: value for name, value in os.environ.items() if name != blas.VARIABLE} | variables
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def check(result: subprocess.CompletedProcess[str]) -> str:
    """The output of a run that ended well and said nothing on stderr about BLAS."""
    assert result.returncode == 0, result.stderr
    assert "BLAS" not in result.stderr
    return result.stdout.strip()


SHOW = "from mlx_grpo_kit.runtime import blas; print(blas.bound); print(blas.reason)"


@linux_cpu_wheel
class TestChoice:
    def test_torch_serves_mlx_and_is_not_imported(self):
        code = SHOW + "; import sys; assert 'torch' not in sys.modules; assert blas.global_blas() == blas.bound"
        bound, reason = check(run_python(code)).splitlines()
        assert bound.endswith("torch/lib/libtorch_cpu.so")
        assert reason == "the first candidate that loads"

    def test_off(self):
        bound, reason = check(run_python(SHOW, MLX_GRPO_KIT_BLAS="off")).splitlines()
        assert (bound, reason) == ("None", "MLX_GRPO_KIT_BLAS=off")

    def test_a_named_library_is_the_one_that_is_bound(self):
        [site_packages] = {folder.parent for folder in blas._package_folders("mlx") if (folder / "core").exists()}
        reference = str(next(site_packages.glob("mlx_cpu.libs/libblas-*")))  # slow, and surely not the default
        bound, reason = check(run_python(SHOW, MLX_GRPO_KIT_BLAS=reference)).splitlines()
        assert bound == reference
        assert reason == "MLX_GRPO_KIT_BLAS names it"

    def test_a_library_that_is_preloaded_stays(self):
        path = str(next(iter(blas.candidates())))
        bound, reason = check(run_python(SHOW, LD_PRELOAD=path)).splitlines()
        assert bound == path
        assert reason == "it was in the process's global scope already"

    @pytest.mark.parametrize("kind", ["missing", "not a BLAS", "not a library"])
    def test_a_named_library_that_cannot_be_used_warns_once_and_binds_nothing(self, kind, tmp_path):
        text = tmp_path / "text.so"
        text.write_text("not a library")
        path = {
            "missing": "/no/such.so",
            "not a BLAS": importlib.util.find_spec("_ctypes").origin,
            "not a library": str(text),
        }[kind]
        again = (
            "; import mlx_grpo_kit.runtime.blas; from mlx_grpo_kit.runtime import mx; print(mx.ones(2).sum().item())"
        )
        result = run_python(SHOW + again, MLX_GRPO_KIT_BLAS=path)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[0] == "None"
        assert result.stdout.splitlines()[-1] == "2.0"
        assert result.stderr.count("RuntimeWarning") == 1
        assert path in result.stderr
        assert "unset MLX_GRPO_KIT_BLAS" in result.stderr

    def test_mlx_imported_first_warns_once_at_the_import(self, tmp_path):
        script = tmp_path / "late.py"
        script.write_text("import mlx.core\nfrom mlx_grpo_kit.runtime import blas, mx\nprint(blas.bound)")
        result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
        assert result.stdout.strip() == "None"
        assert result.stderr.count("RuntimeWarning") == 1
        assert f"{script}:2: RuntimeWarning" in result.stderr
        assert "imported before" in result.stderr

    @pytest.mark.parametrize("first", ["mlx.core", "torch, mlx.core", "jax, mlx.core", "numpy"])
    def test_with_a_preloaded_blas_the_order_of_imports_does_not_matter(self, first):
        code = f"import {first}; from mlx_grpo_kit.runtime import blas; print(blas.bound, blas.preload()['LD_PRELOAD'])"
        environment = blas.preload()
        assert check(run_python(code, **environment)) == f"{blas.bound} {environment['LD_PRELOAD']}:{blas.bound}"

    def test_nothing_found_warns_and_says_what_to_install(self):
        code = """if True:
            import importlib.util, sys
            find = importlib.util.find_spec
            importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
            import ctypes
            load = ctypes.CDLL
            def no_openblas(name, *rest, **options):
                if name is not None and "blas" in str(name):
                    raise OSError("cannot open " + str(name))
                return load(name, *rest, **options)
            ctypes.CDLL = no_openblas
            sys.prefix = "/nowhere"
            from mlx_grpo_kit.runtime import blas
            print(blas.bound)
        """
        result = run_python(code, CONDA_PREFIX="/nowhere")
        assert result.stdout.strip() == "None"
        assert result.stderr.count("RuntimeWarning") == 1
        assert install("torch") in result.stderr

    @pytest.mark.parametrize(("variables", "threads"), [({}, 1), ({"OMP_NUM_THREADS": "2"}, 2)])
    def test_products_use_one_thread_or_what_the_user_set(self, variables, threads, monkeypatch):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        code = "; ".join(
            [
                "import ctypes, os",
                "from concurrent.futures import ThreadPoolExecutor",
                "from mlx_grpo_kit.runtime import blas",
                "in_a_thread = ThreadPoolExecutor(1).submit(ctypes.CDLL(None).omp_get_max_threads).result()",
                "print(in_a_thread, os.environ.get('OMP_NUM_THREADS'))",
            ]
        )
        assert check(run_python(code, **variables)) == f"{threads} {variables.get('OMP_NUM_THREADS')}"

    @pytest.mark.parametrize(
        ("variables", "policy", "turns"),
        [
            ({}, "ACTIVE", "10000"),
            ({"OMP_WAIT_POLICY": "PASSIVE"}, "PASSIVE", "0"),
            ({"GOMP_SPINCOUNT": "500"}, "PASSIVE", "500"),
        ],
    )
    def test_threads_that_wait_spin_for_a_while_or_as_the_user_set(self, variables, policy, turns, monkeypatch):
        """libgomp prints as PASSIVE what was not set."""
        if not any((Path(importlib.util.find_spec("torch").origin).parent / "lib").glob("libgomp*")):
            pytest.skip("torch has no GNU OpenMP of its own")
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.delenv(name, raising=False)
        code = "import os; from mlx_grpo_kit.runtime import blas; print(os.environ.get('OMP_WAIT_POLICY'))"
        result = run_python(code, OMP_DISPLAY_ENV="VERBOSE", **variables)
        assert f"OMP_WAIT_POLICY = '{policy}'" in result.stderr
        assert f"GOMP_SPINCOUNT = '{turns}'" in result.stderr
        assert result.stdout.strip() == str(variables.get("OMP_WAIT_POLICY"))

    @pytest.mark.parametrize(("variables", "threads"), [({}, "1 all 1"), ({"OMP_NUM_THREADS": "1"}, "1 1 1")])
    @pytest.mark.parametrize("before", ["", "import torch"])
    def test_large_work_gets_all_cores_and_gives_them_back(self, before, variables, threads, monkeypatch):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        code = textwrap.dedent("""
            import ctypes, threading
            from mlx_grpo_kit.runtime import blas
            library = ctypes.CDLL(str(blas.bound))
            names = ["mkl_serv_get_max_threads", "MKL_Get_Max_Threads", "openblas_get_num_threads"]
            number = next(getattr(library, name) for name in names if hasattr(library, name))
            def in_a_thread():
                found = []
                thread = threading.Thread(target=lambda: found.append(number()))
                thread.start()
                thread.join()
                return found[0]
            before = in_a_thread()
            with blas.all_cores():
                within = in_a_thread()
            print(before, within, in_a_thread())
        """)
        expected = threads.replace("all", str(len(os.sched_getaffinity(0))))
        assert check(run_python(before + code, **variables)) == expected

    @pytest.mark.parametrize("modules", ["mlx_grpo_kit.runtime.blas, torch", "torch, mlx_grpo_kit.runtime.blas"])
    def test_torch_keeps_all_cores(self, modules, monkeypatch):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        code = "; product = torch.ones(300, 300) @ torch.ones(300, 300); print(torch.get_num_threads())"
        code += "; import ctypes, pathlib; library = pathlib.Path(torch.__file__).parent / 'lib' / 'libtorch_cpu.so'"
        code += "; number = getattr(ctypes.CDLL(str(library)), 'mkl_serv_get_max_threads', None)"
        code += "; print(number and number())"
        assert check(run_python(f"import {modules}{code}")) == check(run_python(f"import torch{code}"))

    def test_torch_keeps_the_number_that_it_was_given_before(self, monkeypatch):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        code = (
            "import torch; torch.set_num_threads(3); import mlx_grpo_kit.runtime.blas; print(torch.get_num_threads())"
        )
        assert check(run_python(code)) == "3"

    def test_a_run_is_the_same_whether_torch_or_the_kit_is_imported_first(self, monkeypatch):
        """Adafactor's row means are products whose sums two threads would split in another way each time."""
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        code = textwrap.dedent("""
            import hashlib
            import numpy as np
            from mlx_grpo_kit.assets import TINY
            from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
            from mlx_grpo_kit.qwen3 import load_pretrained
            from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer
            from mlx_grpo_kit.grpo.recipe import TINY_ARGS
            from mlx_grpo_kit.tasks import Addition
            args = GRPOConfig(**TINY_ARGS, optim="adafactor")
            trainer = GRPOTrainer(*load_pretrained(TINY), load_tokenizer(TINY), Addition(), args)
            list(trainer.train(3))
            print(hashlib.sha256(b"".join(np.array(value).tobytes() for value in trainer.params.values())).hexdigest())
        """)
        orders = [f"import torch{code}", f"{code}import torch"]
        assert len({check(run_python(each)) for each in orders * 2}) == 1

    def test_conda_and_mkl_libraries_are_found_in_their_prefix(self, tmp_path, monkeypatch):
        (tmp_path / "lib").mkdir()
        for name in ("libopenblas.so.0", "libmkl_rt.so.2", "libmkl_rt.so.3"):
            (tmp_path / "lib" / name).touch()
        monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
        monkeypatch.setattr(sys, "prefix", "/nowhere")
        found = [str(c) for c in blas.candidates()]
        assert found[0].endswith("libtorch_cpu.so")
        assert found[1:] == [f"{tmp_path}/lib/libmkl_rt.so.3", f"{tmp_path}/lib/libopenblas.so.0", "libopenblas.so.0"]


def test_importing_the_kit_alone_loads_neither_mlx_nor_torch():
    code = """if True:
        import sys, mlx_grpo_kit
        heavy = {"mlx", "mlx.core", "torch", "jax", "numpy", "transformers", "matplotlib"}
        print(sorted(heavy & set(sys.modules)))
    """
    assert check(run_python(code)) == "[]"


def test_macos_and_other_systems_keep_their_blas(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)  # would raise if it were called
    assert blas._bind() == (None, "only Linux needs it: MLX's own BLAS is fast here")


RESULTS = """if True:
    import sys
    import numpy as np
    from mlx_grpo_kit.runtime import mx
    rng = np.random.default_rng(0)
    out = {}
    def normal(*shape):
        return mx.array(rng.normal(size=shape).astype(np.float32))
    for m, k, n in [(1, 1, 1), (1, 64, 7), (33, 17, 129), (256, 384, 128)]:
        a, b = normal(m, k), normal(k, n)
        out[f"matmul {m} {k} {n}"] = a @ b
        out[f"transposed {m} {k} {n}"] = a @ (b.T * 1).T
        out[f"addmm {m} {k} {n}"] = mx.addmm(normal(n), a, b, 0.5, 2.0)
    out["empty"] = mx.zeros((3, 0)) @ mx.zeros((0, 2))
    out["batched"] = normal(3, 1, 5, 8) @ normal(2, 8, 4)
    out["complex"] = (normal(9, 8) + 1j * normal(9, 8)) @ (normal(8, 7) + 1j * normal(8, 7))
    q = normal(2, 4, 6, 16)
    out["attention"] = mx.fast.scaled_dot_product_attention(q, q[:, :2], q[:, :2], scale=0.25, mask="causal")
    out["convolution"] = mx.conv2d(normal(2, 9, 9, 3), normal(4, 3, 3, 3))
    x = normal(24, 24)
    spd = x @ x.T + 24 * mx.eye(24)
    with mx.stream(mx.cpu):
        u, s, vt = mx.linalg.svd(x)
        q, r = mx.linalg.qr(x)
        values, vectors = mx.linalg.eigh(spd)
        out |= {"matrix": x, "singular values": s, "svd": (u * s) @ vt, "qr": q @ r, "inverse": mx.linalg.inv(spd),
                "cholesky": mx.linalg.cholesky(spd), "eigenvalues": values, "eigh": (vectors * values) @ vectors.T,
                "triangular inverse": mx.linalg.tri_inv(mx.tril(spd)), "solved": mx.linalg.solve(spd, x),
                "determinant": mx.sort(mx.abs(mx.linalg.eigvals(x))), "spd": spd}
    np.savez(sys.argv[1], **{name: np.array(value) for name, value in out.items()})
"""


@linux_cpu_wheel
def test_results_equal_the_wheels_own_up_to_rounding_and_linear_algebra_is_right(tmp_path):
    fast, slow = tmp_path / "fast.npz", tmp_path / "slow.npz"
    check(run_python(RESULTS, str(fast)))
    check(run_python(RESULTS, str(slow), MLX_GRPO_KIT_BLAS="off"))
    with np.load(fast) as fast_results, np.load(slow) as slow_results:
        ours, theirs = dict(fast_results), dict(slow_results)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        scale = max(1.0, np.abs(theirs[name]).max(initial=0))
        np.testing.assert_allclose(value, theirs[name], rtol=0, atol=2e-5 * scale, err_msg=name)

    x, spd = ours["matrix"].astype(np.float64), ours["spd"].astype(np.float64)  # NumPy has a LAPACK of its own
    for name, expected in {
        "singular values": np.linalg.svd(x)[1],
        "svd": x,
        "qr": x,
        "inverse": np.linalg.inv(spd),
        "cholesky": np.linalg.cholesky(spd),
        "eigenvalues": np.linalg.eigvalsh(spd),
        "eigh": spd,
        "triangular inverse": np.linalg.inv(np.tril(spd)),
        "solved": np.linalg.solve(spd, x),
        "determinant": np.sort(np.abs(np.linalg.eigvals(x))),
    }.items():
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-4 * scale, err_msg=name)


SIDE_BY_SIDE = """if True:
    import importlib, sys, threading
    before, after = (names.split() for names in sys.argv[1:3])
    for name in before: importlib.import_module(name)
    from mlx_grpo_kit.runtime import mx
    for name in after: importlib.import_module(name)
    import numpy as np
    rng = np.random.default_rng(0)
    a, b, square = (rng.normal(size=s).astype(np.float32) for s in [(150, 200), (200, 130), (40, 40)])
    product = a.astype(np.float64) @ b.astype(np.float64)
    spectrum = np.linalg.svd(square.astype(np.float64))[1]

    def same(value, expected=product):
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-4, atol=1e-4)

    def check_all():
        same(mx.array(a) @ mx.array(b))
        same(mx.linalg.svd(mx.array(square), stream=mx.cpu)[1], spectrum)
        same(mx.grad(lambda x: ((x @ mx.array(b)) ** 2).sum() / 2)(mx.array(a)) / 10, product @ b.T / 10)
        same(a @ b)
        same(np.linalg.svd(square)[1], spectrum)
        if "torch" in sys.modules:
            import torch
            same(torch.from_numpy(a) @ torch.from_numpy(b))
            same(torch.linalg.svd(torch.from_numpy(square))[1], spectrum)
            x = torch.from_numpy(a).requires_grad_()
            (x @ torch.from_numpy(b)).square().sum().div(2).backward()
            same(x.grad / 10, product @ b.T / 10)
        if "jax" in sys.modules:
            import jax
            same(jax.jit(jax.numpy.matmul)(a, b))
            same(jax.numpy.linalg.svd(square)[1], spectrum)
        if "scipy.linalg" in sys.modules:
            import scipy.linalg
            same(scipy.linalg.blas.sgemm(1.0, a, b))
            same(scipy.linalg.svdvals(square), spectrum)
        if "sklearn.cluster" in sys.modules:
            import sklearn.cluster, sklearn.linear_model, sklearn.datasets
            points, labels = sklearn.datasets.make_moons(200, noise=0.1, random_state=0)
            assert sklearn.linear_model.LogisticRegression().fit(points, labels).score(points, labels) > 0.8
            sklearn.cluster.KMeans(2, n_init=2, random_state=0).fit(points)      # OpenMP threads of its own

    failures = []
    def in_thread():
        try:
            for _ in range(2): check_all()
        except BaseException as failure:
            failures.append(failure)

    check_all()
    threads = [threading.Thread(target=in_thread) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if failures: raise failures[0]
    print("all agree")
"""
EVERYTHING = "torch jax scipy.linalg sklearn.cluster"


@linux_cpu_wheel
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch", ""), ("", "torch"), ("jax", ""), ("", "jax"), ("numpy", ""), ("", "numpy"), ("scipy.linalg", ""),
        ("", "scipy.linalg"), ("sklearn.cluster", ""), ("", "sklearn.cluster"), (EVERYTHING, ""), ("", EVERYTHING),
        ("jax sklearn.cluster", "scipy.linalg torch"),
    ],
)  # fmt: skip
def test_libraries_imported_before_and_after_keep_right_results_in_two_threads(before, after):
    assert check(run_python(SIDE_BY_SIDE, before, after)) == "all agree"


@linux_cpu_wheel
def test_it_is_worth_it():
    code = """if True:
        import time
        from mlx_grpo_kit.runtime import mx
        a = mx.random.normal((768, 768))
        def seconds():
            start = time.perf_counter(); mx.eval(a @ a); return time.perf_counter() - start
        print(min(seconds() for _ in range(4)))
    """
    fast, slow = (float(check(run_python(code, MLX_GRPO_KIT_BLAS=wish))) for wish in ("", "off"))
    assert slow > 4 * fast
