"""The table of variants: settings that exist, every loss type among them, and each can be trained with."""

import re

import numpy as np
import pytest

from mlx_grpo_kit.grpo import LOSS_TYPES, VARIANTS, GRPOConfig, variants_table


def test_every_loss_type_is_a_variant():
    assert {GRPOConfig(**variant.settings).loss_type for variant in VARIANTS.values()} == LOSS_TYPES.keys()


@pytest.mark.parametrize("name", VARIANTS)
def test_settings_differ_from_the_defaults_and_train(make_trainer, name):
    variant = VARIANTS[name]
    args, default = GRPOConfig(**variant.settings), GRPOConfig()
    assert any(getattr(args, key) != getattr(default, key) for key in variant.settings) or name == "dapo"
    [step] = make_trainer(**variant.settings, num_iterations=2).train(1)
    assert np.isfinite(step.metrics["loss"])
    assert step.metrics["grad_norm"] > 0


def test_the_table_has_a_row_for_each():
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in variants_table().splitlines()]
    assert [row[0].split("**")[1] for row in rows[2:]] == [*VARIANTS]
    assert {len(row) for row in rows} == {2}
    gspo = rows[2 + [*VARIANTS].index("gspo")]
    assert "[2507.18071](https://arxiv.org/abs/2507.18071), equation 5" in gspo[0]
    assert "`importance_sampling_level='sequence'`, `epsilon=0.0003`" in gspo[1]
    assert VARIANTS["grpo"].formula in rows[2][1]
