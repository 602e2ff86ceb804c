import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fake():
    """The module fake_trainer: FakeTrainer, exact, format_reward."""
    spec = importlib.util.spec_from_file_location("fake_trainer", Path(__file__).with_name("fake_trainer.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
