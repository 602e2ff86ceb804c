"""compute_loss_and_gradients end to end: TRL's advantages and loss, transformers' model, torch's backward pass."""

import math

import numpy as np
import pytest
import torch

from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOLossConfig, compute_loss_and_gradients
from mlx_grpo_kit.qwen3.config import FAMILIES
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from mlx_grpo_kit.runtime import mx
from tests.sizes import TWO_LAYERS

V, GROUP, TEMPERATURE = 37, 4, 1.2
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14]]
ALL_PROMPTS = [prompt for prompt in PROMPTS for _ in range(GROUP)]
REWARDS = [0.0, 1.0, 0.5, 1.0, 0.0, 0.0, 0.0, 1.0, 0.3, 0.2, 0.1, 0.9]


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, make_qwen3):
    return make_qwen3(0.1, request.param, vocab_size=V, **TWO_LAYERS, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def rollout(model):
    sampling = SamplingConfig(max_new_tokens=9, temperature=TEMPERATURE)
    return generate(*model, ALL_PROMPTS, sampling=sampling, eos_token_ids=[3, 4, 5], seed=2)


@pytest.fixture(scope="module")
def off_policy(rollout):
    """Log-probabilities of an older policy and of a reference: near enough that some ratios clip and others do not."""
    rng = np.random.default_rng(0)
    return [[(np.asarray(row) + rng.normal(0, 0.25, len(row))).tolist() for row in rollout.logps] for _ in range(2)]


def torch_gradients(
    reference, trl, rollout, old_logps, ref_logps, loss_config, rewards=REWARDS, rows=slice(None), **settings
):
    """TRL's loss on logits / temperature, right-padded completions, and `backward` to every parameter."""
    advantages = trl.advantages(rewards, GROUP)[rows]
    completions, prompts = rollout.completions[rows], ALL_PROMPTS[rows]
    width = max(map(len, completions))
    mask = np.array([[place < len(row) for place in range(width)] for row in completions])

    def padded(values):
        return (
            None if values is None else np.array([list(row) + [0.0] * (width - len(row)) for row in values], np.float32)
        )

    reference.zero_grad()
    table = []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = reference(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
        logps = torch.log_softmax(logits, -1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
        table.append(torch.nn.functional.pad(logps, (0, width - len(completion))))
    logps = torch.stack(table)
    loss, gradient, _ = trl.loss(
        logps.detach().numpy(), padded(None if old_logps is None else old_logps[rows]), advantages, mask,
        ref_logps=padded(None if ref_logps is None else ref_logps[rows]), **loss_config, **settings)  # fmt: skip
    logps.backward(torch.tensor(gradient))
    return loss, {name: parameter.grad.numpy().copy() for name, parameter in reference.named_parameters()}


def assert_equal_gradients(ours, theirs):
    for name, grad in ours.items():
        expected = theirs[hugging_face_name(name)]
        assert abs(np.array(grad) - expected).max() <= 1e-4 * abs(expected).max(), name


SETTINGS = [
    *({"loss_type": loss_type} for loss_type in ("grpo", "bnpo", "dr_grpo", "dapo")),
    {"loss_type": "dapo", "importance_sampling_level": "sequence"},
    {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": 0.28, "delta": 1.5, "beta": 0.1},
    {"loss_type": "dapo", "beta": 0.1, "use_bias_correction_kl": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_loss_and_every_gradient_equal_trl_and_torch(reference, model, trl, rollout, off_policy, settings):
    settings = settings | {"max_completion_length": 9}
    old_logps, ref_logps = off_policy
    ref_logps = ref_logps if settings.get("beta") else None
    theirs, their_grads = torch_gradients(reference, trl, rollout, old_logps, ref_logps, settings)
    loss, grads = compute_loss_and_gradients(
        *model, PROMPTS, rollout.completions, old_logps, REWARDS, GROUP, GRPOLossConfig(**settings),
        ref_logprobs=ref_logps, temperature=TEMPERATURE)  # fmt: skip
    assert loss == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    assert_equal_gradients(grads, their_grads)


@pytest.mark.parametrize("old_logps_are", ["left out", "the rollout's"])
def test_on_policy_loss_is_zero_with_a_gradient_that_is_not(reference, model, trl, rollout, old_logps_are):
    """ "Loss is 0, is it learning?" It is: 0 is the mean advantage, and the gradient weighs each token by its own."""
    settings = {
        "loss_type": "grpo"
    }  # a mean over completions, so that advantages, which add up to 0 in a group, cancel
    _, their_grads = torch_gradients(reference, trl, rollout, None, None, settings)
    old_logps = None if old_logps_are == "left out" else rollout.logps
    loss, grads = compute_loss_and_gradients(
        *model, PROMPTS, rollout.completions, old_logps, REWARDS, GROUP, GRPOLossConfig(**settings),
        temperature=TEMPERATURE)  # fmt: skip
    assert loss == pytest.approx(0, abs=1e-5)
    assert max(abs(np.array(grad)).max() for grad in grads.values()) > 0.01
    assert_equal_gradients(grads, their_grads)


def test_the_temperature_of_sampling_belongs_in_the_loss(model, rollout):
    """Without it the on-policy ratios are not 1, and the loss is not 0."""
    loss, _ = compute_loss_and_gradients(
        *model, PROMPTS, rollout.completions, rollout.logps, REWARDS, GROUP, GRPOLossConfig("grpo"))  # fmt: skip
    assert abs(loss) > 1e-3


def test_one_prompt_a_group_or_one_a_completion(model, rollout, off_policy):
    one, one_grads = compute_loss_and_gradients(*model, PROMPTS, rollout.completions, off_policy[0], REWARDS, GROUP)
    all_, all_grads = compute_loss_and_gradients(
        *model, ALL_PROMPTS, rollout.completions, off_policy[0], REWARDS, GROUP
    )
    assert one == all_
    assert all((np.array(one_grads[name]) == np.array(all_grads[name])).all() for name in one_grads)


def test_gradients_of_groups_average_to_the_gradient_of_the_batch(model, rollout, off_policy):
    """The mean over completions of a group, averaged over groups, is the mean over all: micro-batches are averaged."""
    config = GRPOLossConfig("grpo")
    whole, whole_grads = compute_loss_and_gradients(
        *model, PROMPTS, rollout.completions, off_policy[0], REWARDS, GROUP, config)  # fmt: skip
    parts = []
    for group, prompt in enumerate(PROMPTS):
        rows = slice(group * GROUP, (group + 1) * GROUP)
        parts.append(compute_loss_and_gradients(
            *model, [prompt], rollout.completions[rows], off_policy[0][rows], REWARDS[rows], GROUP, config
        ))  # fmt: skip
    assert np.mean([loss for loss, _ in parts]) == pytest.approx(whole, rel=1e-5)
    for name, grad in whole_grads.items():
        mean = np.mean([np.array(grads[name]) for _, grads in parts], axis=0)
        assert abs(mean - np.array(grad)).max() <= 1e-5 * abs(np.array(grad)).max() + 1e-7, name


def test_equal_rewards_give_a_zero_gradient_and_no_error_and_kl_still_acts(model, rollout, off_policy):
    loss, grads = compute_loss_and_gradients(
        *model, PROMPTS, rollout.completions, rollout.logps, [0.7] * 12, GROUP, temperature=TEMPERATURE
    )
    assert loss == 0
    assert not any(np.array(grad).any() for grad in grads.values())
    loss, grads = compute_loss_and_gradients(
        *model, PROMPTS, rollout.completions, rollout.logps, [0.7] * 12, GROUP, GRPOLossConfig(beta=0.1),
        ref_logprobs=off_policy[1], temperature=TEMPERATURE)  # fmt: skip
    assert loss > 0
    assert any(np.array(grad).any() for grad in grads.values())


def test_a_completion_that_no_reward_applies_to_is_left_out(reference, model, trl, rollout, off_policy):
    rewards = [*REWARDS[:5], None, *REWARDS[6:]]
    as_nan = [math.nan if reward is None else reward for reward in rewards]
    theirs, their_grads = torch_gradients(reference, trl, rollout, off_policy[0], None, {}, rewards=as_nan)
    loss, grads = compute_loss_and_gradients(
        *model, PROMPTS, rollout.completions, off_policy[0], rewards, GROUP, temperature=TEMPERATURE
    )
    assert loss == pytest.approx(theirs, rel=1e-4)
    assert_equal_gradients(grads, their_grads)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(rewards=REWARDS[:-1]), "There are 11 rewards for 12 completions; expected one for each"),
        (dict(rewards=[*REWARDS, 1.0]), "There are 13 rewards for 12 completions"),
        (dict(rewards=[*REWARDS[:-1], math.nan]), r"rewards\[11\] is NaN; expected a number, or None"),
        (dict(rewards=np.array([*REWARDS[:-1], np.nan])), r"rewards\[11\] is NaN"),
        (dict(rewards=mx.array([*REWARDS[:-1], math.nan])), r"rewards\[11\] is NaN"),
        (dict(rewards=[*REWARDS[:-1], math.inf]), r"rewards\[11\] is inf; expected a finite number"),
        (dict(group_size=5), "12 rewards do not divide into groups of num_generations=5"),
        (dict(group_size=1), "group_size is 1; expected a whole number of at least 2"),
        (dict(group_size=4.0), "group_size is 4.0; expected a whole number of at least 2"),
        (dict(rewards=["0.5", *REWARDS[1:]]), r"rewards\[0\] is .*0.5'\)?; expected a number, or None"),
        (dict(temperature=-1.0), "temperature is -1.0; expected a number above 0"),
        (dict(temperature=0), "temperature is 0; expected a number above 0"),
        (dict(temperature=math.nan), "temperature is nan; expected a number above 0"),
        (dict(old=lambda rows: [[0.5] * len(row) for row in rows]), r"old_logprobs\[0\]\[0\] is 0.5; expected a log-"),
        (dict(old=lambda rows: [[-math.inf] * len(row) for row in rows]), r"old_logprobs\[0\]\[0\] is -inf; expected"),
        (dict(old=lambda rows: [[math.nan] * len(row) for row in rows]), r"old_logprobs\[0\]\[0\] is nan; expected a"),
        (dict(completions=lambda rows: [[], *rows[1:]]), r"completions\[0\] is empty"),
        (dict(ref=lambda rows: [[3.0] * len(row) for row in rows]), r"ref_logprobs\[0\]\[0\] is 3.0; expected a log-p"),
        (dict(prompts=PROMPTS[:2]), "There are 2 prompts and 12 completions; expected a prompt for each"),
        (dict(prompts=[*PROMPTS[:2], []]), r"prompts\[8\] is empty"),
        (dict(old=lambda rows: rows[:-1]), "old_logprobs has 11 rows for 12 completions; expected one for each"),
        (dict(old=lambda rows: [[*rows[0], -1.0], *rows[1:]]), r"old_logprobs\[0\] has \d+ numbers for a comp"),
        (dict(ref=lambda rows: rows[:-1]), "ref_logprobs has 11 rows for 12 completions"),
        (dict(loss_config=GRPOLossConfig(beta=0.1)), "ref_logps"),
        (dict(scale_rewards="groups"), "scale_rewards is 'groups'; expected one of"),
    ],
)  # fmt: skip
def test_wrong_numbers(model, rollout, change, message):
    arguments = dict(prompts=PROMPTS, rewards=REWARDS, group_size=GROUP, loss_config=GRPOLossConfig()) | change
    old = arguments.pop("old", lambda rows: rows)(rollout.logps)
    ref = arguments.pop("ref", lambda rows: None)(rollout.logps)
    completions = arguments.pop("completions", lambda rows: rows)(rollout.completions)
    with pytest.raises(ValueError, match=message):
        compute_loss_and_gradients(
            *model, arguments.pop("prompts"), completions, old, arguments.pop("rewards"),
            arguments.pop("group_size"), arguments.pop("loss_config"), ref_logprobs=ref, **arguments)  # fmt: skip


def test_old_log_probabilities_that_are_far_off(model):
    """The ratio of the better completion would overflow: the clip makes its part of the loss constant."""
    loss, grads = compute_loss_and_gradients(*model, [[5]], [[6], [7]], [[-200.0], [-5.0]], [1.0, 0.0], 2)
    clipped_loss, clipped = compute_loss_and_gradients(*model, [[5]], [[6], [7]], [[-20.0], [-5.0]], [1.0, 0.0], 2)
    assert loss == clipped_loss
    assert all(mx.array_equal(grads[name], clipped[name]) for name in clipped)
    assert any(mx.abs(grad).max() > 0 for grad in grads.values())


def test_completions_of_different_prompts_are_no_group(model):
    """Interleaved, the rewards of one problem would be compared with those of another."""
    completions, rewards = [[7], [8], [9], [10]], [1.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match=r"prompts\[1\] is not prompts\[0\], but .* group 0, of completions 0 to 1"):
        compute_loss_and_gradients(*model, [[5], [6], [5], [6]], completions, None, rewards, 2)
    with pytest.raises(ValueError, match=r"prompts\[3\] is not prompts\[2\], but .* group 1, of completions 2 to 3"):
        compute_loss_and_gradients(*model, [[5], [5], [6], [6, 6]], completions, None, rewards, 2)
    same = [(5,), np.array([5]), [6], [6]]  # the same tokens, whatever holds them
    loss, _ = compute_loss_and_gradients(*model, same, completions, None, rewards, 2)
    assert loss == compute_loss_and_gradients(*model, [[5], [6]], completions, None, rewards, 2)[0]
