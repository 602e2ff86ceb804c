"""Computations as pictures of boxes and arrows, laid out without Graphviz."""
