"""Sizes of small Qwen3s, as keywords of both the kit's Qwen3Config and that of transformers."""

ONE_LAYER = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8
)
TWO_LAYERS = dict(
    hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8
)
