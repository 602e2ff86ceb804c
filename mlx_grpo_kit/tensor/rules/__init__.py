"""The operations, and the rule by which each passes a gradient back. `rule.py` says how to read them."""
