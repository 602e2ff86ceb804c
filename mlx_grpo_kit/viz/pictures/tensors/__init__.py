"""Pictures of part 2, chapters 04 to 08: arrays, their rules, checks, digits and convolutions."""
