"""Small models of Qwen3's kinds and of its relatives, and a padded batch, to compare versions in torch and JAX on."""

import numpy as np

V = 37
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
RELATIVES = {"qwen2": dict(model_type="qwen2"), "llama": dict(model_type="llama", rope_parameters=LLAMA3)}
MODELS = {
    "grouped, tied": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=8, tie_word_embeddings=True),
    "wide heads, own output layer": dict(hidden_size=24, intermediate_size=40, num_hidden_layers=1,
                                         num_attention_heads=4, num_key_value_heads=1, head_dim=16),
    "one head each": dict(hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
                          num_key_value_heads=4, head_dim=4),
    "stretched by YaRN": dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                              num_key_value_heads=2, head_dim=16, rope_parameters=YARN),
    "a Qwen2": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, **RELATIVES["qwen2"]),
    "a Llama 3": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                      num_key_value_heads=1, head_dim=16, **RELATIVES["llama"]),
}  # fmt: skip
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14]]
COMPLETIONS = [[20, 21], [22, 23, 24, 25, 26], [3], [30, 31, 32, 33], [0, 1], [35, 36, 35]]  # two of each prompt
WHOLE_ROWS = [PROMPTS[row // 2] + completion for row, completion in enumerate(COMPLETIONS)]


def padded(rows, side):
    """Rows of token ids -> ids and mask, 0 where there is none: NumPy's."""
    width = max(map(len, rows))
    ids, mask = np.zeros((2, len(rows), width), np.int64)
    for row, tokens in enumerate(rows):
        place = slice(width - len(tokens), width) if side == "left" else slice(len(tokens))
        ids[row, place], mask[row, place] = tokens, 1
    return ids, mask


def relative_error(ours, theirs):
    """The largest difference of two arrays, as a share of the largest number of the second."""
    ours, theirs = (np.asarray(getattr(each, "detach", lambda each=each: each)(), float) for each in (ours, theirs))
    return np.abs(ours - theirs).max() / np.abs(theirs).max()
