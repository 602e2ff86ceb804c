"""Widgets to look inside with: the dashboard of a run, the microscope, a model's data flow, the tree of answers.

Each is a folder with its Python and JavaScript. `browser.py` is what they share: an ES module and its style sheet are
sent inline, so nothing is fetched from anywhere.
"""
