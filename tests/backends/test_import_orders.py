"""MLX, torch and JAX in one process, whichever was there first: each one's numbers are right.

`mlx_grpo_kit.runtime.blas` puts torch's BLAS into the process's global scope, where libraries that are loaded later
look first. The order of these tests themselves, the kit first and JAX last, is not among those below.
"""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import sys
    import numpy as np

    for name in sys.argv[1:]:
        if name == "kit":
            from mlx_grpo_kit.runtime.blas import bound, mx
        elif name == "torch":
            import torch
        elif name == "jax":
            import jax
            jax.config.update("jax_disable_most_optimizations", True)

    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 96, 96))
    singles = a.astype(np.float32), b.astype(np.float32)
    for product in (
        np.array(mx.array(singles[0]) @ mx.array(singles[1])),
        (torch.tensor(singles[0]) @ torch.tensor(singles[1])).numpy(),
        np.asarray(jax.numpy.array(singles[0]) @ jax.numpy.array(singles[1])),
        singles[0] @ singles[1],
    ):
        np.testing.assert_allclose(product, a @ b, rtol=1e-3, atol=1e-3)
    for solution in (
        np.array(mx.linalg.solve(mx.array(singles[0]), mx.array(singles[1]), stream=mx.cpu)),
        torch.linalg.solve(torch.tensor(singles[0]), torch.tensor(singles[1])).numpy(),
        np.asarray(jax.numpy.linalg.solve(*map(jax.numpy.array, singles))),
        np.linalg.solve(*singles),
    ):
        np.testing.assert_allclose(a @ solution, b, atol=0.05)
"""


@pytest.mark.parametrize("order", ["jax kit torch", "torch jax kit"])
def test_each_ones_numbers_are_right(order):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "error::RuntimeWarning"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *order.split()],
        env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
