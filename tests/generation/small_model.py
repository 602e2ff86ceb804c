"""A small Qwen3 with prompts of unequal length, and what transformers makes of them."""

import numpy as np
import torch

V = 37
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16], [1, 2, 3, 4]]
GROUPS = [prompt for prompt in PROMPTS for _ in range(3)]
SHAPE = dict(vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=128, tie_word_embeddings=True)  # fmt: skip
NOISE = 0.2  # the next token is far from certain, and far from uniform


def transformers_tokens(reference, prompts, num_new) -> list[list[int]]:
    """The likeliest tokens, without an end, of prompts that are padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    tokens = reference.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=num_new, eos_token_id=None, pad_token_id=0
    )
    return tokens[:, longest:].tolist()


def transformers_logps(reference, prompt, completion, temperature=1.0) -> np.ndarray:
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logps = torch.log_softmax(logits / temperature, -1)
    return logps.gather(-1, torch.tensor(completion)[:, None])[:, 0].numpy()
