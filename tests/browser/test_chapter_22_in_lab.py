"""The panels of chapter 22 in JupyterLab: how far the loop is ahead, and how old the weights may be."""


def test_the_loop_gets_ahead_and_the_weights_grow_old(open_notebook):
    notebook = open_notebook("22_training_backends")
    notebook.run("setup", "wait", "ex3-use")

    panel = notebook.open_panel("pipe-panel")
    notebook.wait_for_words("1 ahead: 520 ms, loop busy 62%, backend's thread busy 92%")
    notebook.slider(panel, "ahead").press("ArrowLeft")
    notebook.wait_for_words("0 ahead: 800 ms, loop busy 40%, backend's thread busy 60%")
    notebook.slider(panel, "ahead").press("ArrowRight")
    notebook.wait_for_words("1 ahead: 520 ms, loop busy 62%, backend's thread busy 92%")
    notebook.slider(panel, "learn (ms)").press("Home")
    notebook.wait_for_words("1 ahead: 325 ms")
    notebook.slider(panel, "fetch (ms)").press("Home")
    notebook.wait_for_words("1 ahead: 40.0 ms, loop busy 0%, backend's thread busy 100%")

    panel = notebook.open_panel("lag-panel")
    notebook.wait_for_words("at most 1: lags 0, 1, 1, 1, 1, 1, 1: 11.5 s, engine busy 61%, backend busy 91%")
    notebook.slider(panel, "largest lag").press("ArrowLeft")
    notebook.wait_for_words("at most 0: lags 0, 0, 0, 0, 0, 0, 0: 17.5 s")
    notebook.slider(panel, "largest lag").press("ArrowRight")
    notebook.wait_for_words("at most 1: lags 0, 1, 1, 1, 1, 1, 1: 11.5 s, engine busy 61%, backend busy 91%")
    notebook.slider(panel, "largest lag").press("End")
    notebook.wait_for_words("at most 4: lags 0, 1, 2, 2, 2, 3, 3: 11.5 s")
    notebook.slider(panel, "write (s)").press("End")
    notebook.wait_for_words("backend busy 47%")
