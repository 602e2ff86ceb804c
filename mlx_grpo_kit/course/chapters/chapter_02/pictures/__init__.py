"""The picture of chapter 02: a graph of Values that is computed and differentiated step by step."""
