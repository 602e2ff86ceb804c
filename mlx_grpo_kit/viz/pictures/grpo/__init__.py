"""Pictures of part 4, chapters 14 to 16 and 18 to 20: rewards, policy gradients, the GRPO loss and its runs."""
