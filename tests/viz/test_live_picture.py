"""A picture that is drawn again while a loop runs: how often, and what is left at the end."""

from mlx_grpo_kit.viz import LivePicture
from mlx_grpo_kit.viz import live_picture as live_module
from mlx_grpo_kit.viz.pictures.boundary import draw_boundary


def test_a_live_picture_keeps_to_its_pace_and_shows_the_last(monkeypatch):
    now, shown = [0.0], []

    class Handle:
        def update(self, picture):
            shown.append(picture.alt)

    def display(picture, display_id):
        shown.append(picture.alt)
        return Handle()

    monkeypatch.setattr(live_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("IPython.display.display", display)
    live = LivePicture()
    for step in range(10):
        live.update(lambda step=step: draw_boundary(None, [(0.0, 0.0), (1.0, 1.0)], [-1, 1], title=f"step {step}"))
        now[0] += 0.1
    live.finish(lambda: draw_boundary(None, [(0.0, 0.0), (1.0, 1.0)], [-1, 1], title="over"))
    assert [words.split(".")[0] for words in shown] == ["step 0", "step 3", "step 6", "step 9", "over"]
    assert live.frames == 5
