"""The operations, and the rule by which each passes a gradient back. `rule.py` explains how to read the rules."""
