"""What belongs to one chapter: `exercises.py` with everything about its exercises, and material beside it.

A notebook imports material from here and never from `exercises.py`, which holds the answers.
"""
