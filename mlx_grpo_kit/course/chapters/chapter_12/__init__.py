"""Support for chapter 12: its exercises, the inner values of transformers, and five models that are almost right."""
