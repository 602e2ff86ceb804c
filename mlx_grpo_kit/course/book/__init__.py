"""The makers of the book, the course as a web site: `website.py` writes it, and the other files make its parts.

`reading.py` prepares a chapter, `reference.py` the reference, `one_group.py` the picture of the first page. `moving.py`
makes the pictures that move without a kernel: `excerpt.py` runs what they need of a notebook, and `foreseen.py` answers
an instrument's questions in advance.
"""
