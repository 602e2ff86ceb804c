"""What an object puts on a notebook's page, without a notebook."""

import pytest


@pytest.fixture
def outputs_of(monkeypatch):
    """A function from an object that displays itself to the mimebundles of its outputs."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append(data))

    def outputs_of(thing):
        shown.clear()
        thing._ipython_display_()
        return list(shown)

    return outputs_of
