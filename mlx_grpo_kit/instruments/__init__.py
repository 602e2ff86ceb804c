"""Widgets that look inside: the dashboard of a run, the microscope, a model's data flow, the tree of answers.

Each is a folder with its Python and JavaScript. They share `viz/browser.py`, which sends an ES module and its style
sheet inline, so nothing is fetched from the network.
"""
