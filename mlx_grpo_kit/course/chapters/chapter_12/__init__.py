"""What chapter 12 needs: its exercises, transformers' inner values, and five models that are almost right."""
