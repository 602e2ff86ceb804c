"""Commands for those who teach with the kit: assignments, marks, the mistakes of a class, slides."""
