import os, pytest

SETUP = """
from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.microscope import show_microscope, take_updates
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition
config, params = load_pretrained(TINY)
tokenizer = load_tokenizer(TINY)
args = GRPOConfig(learning_rate=3e-4, num_generations=8, per_device_train_batch_size=64)
trainer = GRPOTrainer(config, params, tokenizer, Addition(), args)
step = next(trainer.train(1))
policies = take_updates(config, params, step.completions, args, 4)
"""
SHOW = "show_microscope(config, policies, tokenizer, step.completions, args, group=1)"


def test_shots(open_notebook):
    notebook = open_notebook("shots", SETUP, SHOW)
    page = notebook.page
    page.on("console", lambda m: print("console", m.type, m.text))
    page.on("pageerror", lambda e: print("pageerror", e))
    page.set_viewport_size({"width": 1400, "height": 900})
    notebook.run_cell(0)
    notebook.wait_until_idle(60)
    notebook.run_cell(1)
    notebook.wait_until_idle(60)
    notebook.show(1)
    page.wait_for_timeout(1500)
    page.screenshot(path="/tmp/p/shots/m1.png")
    w = page.locator(".kit-microscope")
    w.get_by_label("epsilon", exact=True).fill("0.05")
    page.wait_for_timeout(600)
    page.screenshot(path="/tmp/p/shots/m2.png")
    w.get_by_label("loss type").select_option("sapo")
    w.get_by_label("colour").select_option("clips")
    page.wait_for_timeout(600)
    page.evaluate("jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_timeout(1500)
    page.set_viewport_size({"width": 1000, "height": 700})
    page.wait_for_timeout(700)
    notebook.show(1)
    page.wait_for_timeout(500)
    page.screenshot(path="/tmp/p/shots/m3.png")
    print(notebook.text(1))
