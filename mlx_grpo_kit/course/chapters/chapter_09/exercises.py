"""Exercises of notebook 09: MLX."""

from mlx_grpo_kit.autograd import compiled
from mlx_grpo_kit.course.chapters.chapter_09.waiting import operations_waiting
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.runtime import mx


def _arrays(rng, **shapes):
    """Random MLX arrays by name."""
    return {name: mx.array(rng.normal(size=shape).astype("float32")) for name, shape in shapes.items()}


WHEN = Exercise(
    "09.1",
    "Which lines make it compute?",
    "`x` is an array of four numbers, and `y` was just computed from it lazily and still waits. Each of these eight "
    "lines is run alone, on such a `y`. Which lines make MLX compute, and which only add operations that wait, or "
    'need no numbers at all? Answer with a string of eight letters, C for "computes" and W for "waits".\n\n'
    "```python\n"
    "z = y * 2                      # 1\n"
    "z = y.reshape(2, 2)            # 2\n"
    "print(y)                       # 3\n"
    "n = y.shape[0] + y.size        # 4\n"
    "if y[0] > 0: pass              # 5\n"
    "t = y.sum().item()             # 6\n"
    "g = mx.grad(mx.sum)(y)         # 7\n"
    "a = np.array(y)                # 8\n"
    "```",
    minutes=5,
    difficulty=1,
    solution="WWCWCCWC",
    hints=(
        "Ask for each line: does Python itself need to see a *number* to go on? A shape is known before any number is.",
        "`if` has to choose, `.item()` returns a Python float, and NumPy needs the memory. A gradient is just "
        "another array that can wait.",
    ),
    mistakes=(
        Mistake("shapes need numbers", "WWCCCCWC", "Line 4 asks for shapes, and they follow from the operations.", 1),
        Mistake("gradients compute", "WWCWCCCC", "Line 7: a gradient is an array like any other. It waits too.", 2),
        Mistake(
            "if does not", "WWCWWCWC", "Line 5: to choose a branch, Python must know whether the condition is true.", 1
        ),
        Mistake(
            "one after the other",
            "WWCWCCWW",
            "Line 8: NumPy needs the numbers. After line 3 they would already be there, but each line is run alone.",
            1,
        ),
        Mistake("everything computes", "CCCCCCCC", "That would be NumPy. In MLX an operation only waits.", 1),
    ),
    also_right=r"""
# with spaces
"w w c w c c w c"
# a list
list("WWCWCCWC")
""",
    also_wrong=r"""
# seven letters
"WWCWCCW"
! is not a string of 8 letters
""",
)


def sgd(params, grads, lr):
    """params - lr * grads, a new dictionary with the same names."""
    return {name: value - lr * grads[name] for name, value in params.items()}


def _ordered(rng):
    params = _arrays(rng, w=(3, 2), b=(2,), scale=())
    grads = _arrays(rng, scale=(), b=(2,), w=(3, 2))
    return params, grads, float(rng.uniform(0.01, 0.5))


def _in_mlx(function, *arguments):
    """The result, which must hold MLX arrays because later cells need them."""
    result = function(*arguments)
    other = [value for value in result.values() if not isinstance(value, mx.array)] if isinstance(result, dict) else []
    if other:
        return Told(f"a dictionary with values of type {type(other[0]).__name__} (later cells need MLX arrays)")
    return result


SGD = Exercise(
    "09.2",
    "A step over a dictionary",
    "Write `sgd(params, grads, lr)`: a *new* dictionary with the names of `params`, in which every array has moved "
    "against its gradient: value - lr * gradient. `params` and `grads` are dictionaries of arrays with the same "
    "names. Do not change them.",
    minutes=5,
    difficulty=1,
    solution=sgd,
    hints=(
        "Loop over the names: `for name, value in params.items()`. The gradient of that name is `grads[name]`.",
        "A dictionary comprehension does it in one line: `{name: ... for name, value in params.items()}`.",
    ),
    cases=(
        ({"w": mx.array([1.0, 2.0]), "b": mx.array(0.5)}, {"w": mx.array([0.5, -1.0]), "b": mx.array(2.0)}, 0.1),
        ({"only": mx.array([[3.25]])}, {"only": mx.array([[-1.5]])}, 1.0),
        *drawn(3, _ordered),
    ),
    mistakes=slips(
        sgd,
        r"""
@ return {name: value - lr * grads[name] for name, value in params.items()}
uphill
+ return {name: value + lr * grads[name] for name, value in params.items()}
! Your step goes uphill: a gradient points to where the loss grows.
no learning rate
+ return {name: value - grads[name] for name, value in params.items()}
! The learning rate is missing.
only the step
+ return {name: -lr * grads[name] for name, value in params.items()}
! That is only the step. Add it to the value.
by order
+ pairs = zip(params.items(), grads.values(), strict=True)
+ return {name: value - lr * grad for (name, value), grad in pairs if value.shape == grad.shape}
! Look up gradients by name. Two dictionaries with the same names may have them in a different order.
only values (2)
+ return [value - lr * grads[name] for name, value in params.items()]
! Return a dictionary, with the names.
""",
    ),
    run=_in_mlx,
    explain="Nothing has been computed yet. The new arrays wait, each with its subtraction.",
    also_right=r"""
import numpy as np

# sgd with a loop
def sgd_with_a_loop(params, grads, lr):
    new = {}
    for name in sorted(params):
        new[name] = mx.array(np.array(params[name]) - lr * np.array(grads[name]))
    return new
# by subtract
lambda params, grads, lr: {name: mx.subtract(params[name], lr * grads[name]) for name in grads}
""",
    also_wrong=r"""
import numpy as np

# sgd in place
def sgd_in_place(params, grads, lr):
    for name in params:
        params[name] -= lr * grads[name]
    return params
! the right result, but also new numbers in what it was given
# sgd in the dictionary
def sgd_in_the_dictionary(params, grads, lr):
    for name in params:
        params[name] = params[name] - lr * grads[name]
    return params
! the right result, but also new numbers in what it was given
# no step
lambda params, grads, lr: params
# NumPy arrays
lambda params, grads, lr: {n: np.array(params[n] - lr * grads[n]) for n in params}
! of type ndarray
# lists
lambda params, grads, lr: {n: (params[n] - lr * grads[n]).tolist() for n in params}
! of type list
""",
)


def digits_loss(params, images, labels):
    """The mean cross-entropy of the scores relu(images @ w1 + b1) @ w2 + b2."""
    hidden = mx.maximum(images @ params["w1"] + params["b1"], 0)
    logits = hidden @ params["w2"] + params["b2"]
    right = mx.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (mx.logsumexp(logits, axis=1) - right).mean()


def _network(rng, inputs, hidden, classes, rows, shift=0.0):
    params = _arrays(rng, w1=(inputs, hidden), b1=(hidden,), w2=(hidden, classes), b2=(classes,))
    params["b2"] = params["b2"] + shift
    images = mx.array(rng.normal(size=(rows, inputs)).astype("float32"))
    return params, images, mx.array(rng.integers(0, classes, rows))


# The scores are (200, 0, 0) and (0, 1.5, 0.75): exp(-200) is 0 in float32, within an image and between the two images.
_FAR_APART = (
    {
        "w1": mx.eye(2),
        "b1": mx.zeros(2),
        "w2": mx.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]]),
        "b2": mx.zeros(3),
    },
    mx.array([[200.0, 0.0], [0.0, 1.5]]),
    mx.array([1, 0]),
)


def _loss_and_gradients(function, params, images, labels):
    """The loss, and its gradients if it is an array."""
    # Each call gets its own labels: if one changed them in place, a later call would scatter its gradient out of
    # bounds, which MLX does not check.
    loss = function(params, images, mx.array(labels))
    if loss is None or not hasattr(loss, "shape"):
        return loss
    if not isinstance(loss, mx.array):
        return Told(f"a loss of type {type(loss).__name__} (MLX cannot take a gradient through it)")
    if loss.shape != ():
        return Told(f"a loss of shape {tuple(loss.shape)} (a gradient needs a single number, of shape ())")
    _, grads = mx.value_and_grad(lambda tracked: function(tracked, images, mx.array(labels)))(params)
    return {"the loss": loss} | {f"the gradient of {name}": grads[name] for name in sorted(grads)}


DIGITS_LOSS = Exercise(
    "09.3",
    "A loss of named parameters",
    'Write `digits_loss(params, images, labels)`: `params` has the arrays "w1" [D, H], "b1" [H], "w2" [H, C] and '
    '"b2" [C], `images` is an array [N, D] and `labels` an array of N whole numbers. The hidden layer is '
    "relu(images @ w1 + b1), the scores are hidden @ w2 + b2, and the loss is the mean over the images of "
    "logsumexp(scores) - the right score, as in chapter 07. Return an array that holds one number. Scores may be as "
    "large as 200.",
    minutes=10,
    difficulty=2,
    solution=digits_loss,
    hints=(
        "relu is `mx.maximum(h, 0)`; the other names are as in NumPy and SciPy: `mx.logsumexp(scores, axis=1)`, "
        "`.mean()`.",
        "The right scores: `mx.take_along_axis(scores, labels[:, None], axis=1)[:, 0]`, or "
        "`scores[mx.arange(len(labels)), labels]`.",
    ),
    cases=drawn(1, lambda rng: _network(rng, 3, 4, 3, 5))
    + drawn(1, lambda rng: _network(rng, 5, 2, 7, 1), seed=1)
    + drawn(1, lambda rng: _network(rng, 1, 3, 2, 6), seed=2)
    + drawn(1, lambda rng: _network(rng, 4, 3, 5, 4, shift=200.0), seed=3)
    + (_FAR_APART,),
    mistakes=slips(
        digits_loss,
        r"""
@ hidden = mx.maximum(images @ params["w1"] + params["b1"], 0)
no relu
+ hidden = images @ params["w1"] + params["b1"]
! The relu of the hidden layer is missing.
no first bias
+ hidden = mx.maximum(images @ params["w1"], 0)
! The bias b1 is missing.

@ return (mx.logsumexp(logits, axis=1) - right).mean()
sum
+ return (mx.logsumexp(logits, axis=1) - right).sum()
! Take the mean over the images, not the sum.
sign
+ return (right - mx.logsumexp(logits, axis=1)).mean()
! That is the mean log-probability. The loss is its negative: logsumexp comes first.
over the wrong axis
+ return (mx.logsumexp(logits, axis=0).sum() / len(labels) - right).mean()
! The sum runs over the scores of one image, axis 1.
overflows
+ return (mx.log(mx.exp(logits).sum(axis=1)) - right).mean()
! exp(200) is infinite in float32. `mx.logsumexp` subtracts the largest score first (chapter 05).
logarithm of a probability
+ return (mx.logsumexp(logits, axis=1) * 0 - mx.log(mx.exp(right - mx.logsumexp(logits, axis=1)))).mean()
! A probability of exp(-200) is 0 in float32, and the logarithm of 0 is minus infinity. Subtract the scores instead.
a little more than the probability
+ return (-mx.log(mx.exp(right - mx.logsumexp(logits, axis=1)) + 1e-9)).mean()
! You added something small to a probability before the logarithm. That hides how wrong a confident answer is.
one largest score for all
+ return (logits.max() + mx.log(mx.exp(logits - logits.max()).sum(axis=1)) - right).mean()
! Each image has its own largest score. If you subtract the largest score of all images, exp gives 0 everywhere in some
! rows.
cut off (2)
+ return (mx.logsumexp(logits, axis=1) - right).mean().item()
! `.item()` turns the loss into a Python float, which no longer depends on the parameters. Return the array.

no second bias
- logits = hidden @ params["w2"] + params["b2"]
+ logits = hidden @ params["w2"]
! The bias b2 is missing.
relu at the end too
  logits = hidden @ params["w2"] + params["b2"]
+ logits = mx.maximum(logits, 0)
! There is no relu after the last layer: scores may be negative.
""",
    ),
    run=_loss_and_gradients,
    also_right=r"""
# loss with indices
def loss_with_indices(params, images, labels):
    scores = mx.einsum("nd,dh->nh", images, params["w1"]) + params["b1"]
    scores = (scores * (scores > 0)) @ params["w2"] + params["b2"]
    logs = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
    return -mx.mean(logs[mx.arange(len(labels)), labels])
# loss with one hot
def loss_with_one_hot(params, images, labels):
    scores = mx.addmm(params["b2"], mx.maximum(mx.addmm(params["b1"], images, params["w1"]), 0), params["w2"])
    chosen = mx.eye(scores.shape[1])[labels]
    return (mx.logsumexp(scores, axis=1) - (scores * chosen).sum(axis=1)).sum() / len(labels)
""",
    also_wrong=r"""
# loss for few classes
lambda params, images, labels: digits_loss(params, images, mx.minimum(labels, 2))
# three losses
lambda params, images, labels: mx.zeros(3)
! a loss of shape (3,) (a gradient needs a single number
# an axis too many
lambda params, images, labels: digits_loss(params, images, labels)[None]
! a loss of shape (1,)
""",
)


def train(step, params, batches):
    """Take a step per batch, at most one of them pending. Return (params, losses as floats)."""
    losses = []
    for batch in batches:
        params, loss = step(params, batch)
        mx.eval(params, loss)
        losses.append(loss.item())
    return params, losses


def _few_steps(rng):
    params = _arrays(rng, w=(3, 2), b=(2,))
    return params, [mx.array(rng.normal(size=(4, 3)).astype("float32")) for _ in range(8)]


def _toy_step(params, batch):
    """A step of a small regression, with a few operations and their gradients."""
    loss, grads = mx.value_and_grad(lambda p: mx.tanh(batch @ p["w"] + p["b"]).square().mean())(params)
    return {name: value - 0.1 * grads[name] for name, value in params.items()}, loss


def _watch_training(function, params, batches):
    waited, made = [], []

    def step(params, batch):
        """a step of training: returns new params and the loss"""
        waited.append(operations_waiting(*params.values(), *made))
        new, loss = _toy_step(params, batch)
        made.append(loss)
        return new, loss

    result = function(step, params, batches)
    if not isinstance(result, (tuple, list)) or len(result) != 2 or not isinstance(result[0], dict):
        return result
    after, losses = result
    if max(waited, default=0):
        return Told(f"a run in which up to {max(waited)} operations of earlier steps still waited when a step began")
    if operations_waiting(*after.values()):
        return Told("parameters that still wait for the last step")
    if not isinstance(losses, (list, tuple)):
        return Told(f"losses of type {type(losses).__name__} (return a list of Python floats, one per step)")
    if any(isinstance(loss, mx.array) for loss in losses):
        return Told("losses that are MLX arrays (return a list of Python floats)")
    return {"w": after["w"], "b": after["b"], "losses": mx.array(list(losses)), "steps": len(waited)}


TRAIN = Exercise(
    "09.4",
    "When to evaluate",
    "Write `train(step, params, batches)`. `step(params, batch)` is one step of training: it returns the new "
    "parameters, a dictionary, and the loss; both wait. Take a step for each batch, in order, and return the last "
    "parameters and a list of all losses as Python floats. At most one step may be pending, and none at the end.",
    minutes=6,
    difficulty=2,
    solution=train,
    hints=(
        "`mx.eval(params, loss)` computes everything that these arrays wait for. It accepts dictionaries too. Where "
        "in the loop does it belong?",
        "`loss.item()` alone computes the loss, but not the step that was taken after it.",
    ),
    cases=drawn(1, _few_steps) + drawn(1, lambda rng: (_few_steps(rng)[0], _few_steps(rng)[1][:1]), seed=1),
    mistakes=slips(
        train,
        r"""
never
- mx.eval(params, loss)
- losses.append(loss.item())
+ losses.append(loss)
! Your graph grows with every step. Evaluate inside the loop.

@     mx.eval(params, loss)
@     losses.append(loss.item())
@ return params, losses
at the end
+     losses.append(loss)
+ mx.eval(params)
+ return params, [loss.item() for loss in losses]
! One `mx.eval` after the loop is too late: by then all steps are pending.
only the parameters
+     mx.eval(params)
+     losses.append(loss)
+ return params, [loss.item() for loss in losses]
! A loss that you keep for later waits too, and keeps everything it waits for in memory. Evaluate it with the
! parameters.

only the loss (2)
- mx.eval(params, loss)
! You evaluated the losses but not the last parameters: no loss needed them.
losses as arrays (2)
- losses.append(loss.item())
+ losses.append(loss)
! Use `.item()` for each loss, after the evaluation.
the first params
- params, loss = step(params, batch)
+ _, loss = step(params, batch)
! Each of your steps starts from the same parameters: pass the new ones to the next step.
""",
    ),
    run=_watch_training,
    also_right=r"""
# train reading everything
def train_reading_everything(step, params, batches):
    losses = []
    for batch in batches:
        params, loss = step(params, batch)
        losses.append(float(loss))
        mx.eval(list(params.values()))
    return [params, losses]
# train recursively
def train_recursively(step, params, batches):
    if not batches:
        return params, []
    after, loss = step(params, batches[0])
    mx.eval(after, loss)
    rest, losses = train_recursively(step, after, batches[1:])
    return rest, [loss.item(), *losses]
# train evaluating first
def train_evaluating_first(step, params, batches):
    losses = []
    for batch in batches:
        mx.eval(params)
        params, loss = step(params, batch)
        losses.append(loss.item())
    mx.eval(params)
    return params, losses
""",
    also_wrong=r"""
# train every third
def train_every_third(step, params, batches):
    losses = []
    for number, batch in enumerate(batches):
        params, loss = step(params, batch)
        losses.append(loss)
        if number % 3 == 2:
            mx.eval(params)
    mx.eval(params)
    return params, [loss.item() for loss in losses]
! still waited when a step began
# train every other
def train_every_other(step, params, batches):
    losses = []
    for number, batch in enumerate(batches):
        params, loss = step(params, batch)
        losses.append(loss)
        if number % 2:
            mx.eval(params, loss)
    mx.eval(params, losses)
    return params, [loss.item() for loss in losses]
! still waited when a step began
# train without a list
def train_without_a_list(step, params, batches):
    for batch in batches:
        params, loss = step(params, batch)
        mx.eval(params, loss)
    return params, loss.item()
! losses of type float (return a list
# one step
lambda step, params, batches: step(params, batches[0])
! still wait
""",
)


def make_loss(model, params, x, y):
    """The loss function: params -> the mean of (model(params, x) - y)**2."""

    def loss_fn(params):
        outputs = model(params, x)
        return (outputs - y).square().mean()

    return loss_fn


def affine(params, x):
    """x @ w + b"""
    return x @ params["w"] + params["b"]


def bend(params, x):
    """tanh(x @ w) * b"""
    return mx.tanh(x @ params["w"]) * params["b"]


def _regression(model):
    def draw(rng):
        data = _arrays(rng, x=(5, 3), y=(5, 2))
        return model, _arrays(rng, w=(3, 2), b=(2,)), data["x"], data["y"]

    return draw


def _at_new_parameters(function, model, params, x, y):
    """Loss and gradients of the function that `function` makes, at parameters other than those it was given."""
    loss_fn = function(model, params, x, y)
    if not callable(loss_fn):
        return Told("a result that is not a function (`make_loss` returns `loss_fn` itself, without calling it)")
    results = {}
    for shift in (0.25, -0.5):
        where = f"where {shift} is added to all params"
        moved = {name: value + shift for name, value in params.items()}
        loss = loss_fn(moved)
        if not isinstance(loss, mx.array):
            return Told(f"a loss of type {type(loss).__name__}, which is cut off from the parameters")
        loss, grads = mx.value_and_grad(loss_fn)(moved)
        results |= {f"the loss {where}": loss, f"the gradient of w {where}": grads["w"]}
        results |= {f"the gradient of b {where}": grads["b"]}
    return results


MAKE_LOSS = Exercise(
    "09.5",
    "The loss that forgot its parameters",
    "This function is broken: the loss function that it returns always has a gradient of 0. Repair it.\n\n"
    "```python\n"
    "def make_loss(model, params, x, y):\n    outputs = model(params, x)\n\n    def loss_fn(params):\n        "
    "return (outputs - y).square().mean()\n\n    return loss_fn\n"
    "```\n\n"
    "Write `make_loss(model, params, x, y)` so that the function it returns computes the loss *of the parameters "
    "that it is given*, whichever these are. `model(params, x)` computes the outputs.",
    minutes=5,
    difficulty=1,
    solution=make_loss,
    hints=(
        "Where is `model` called, and how often? The gradient can only follow operations inside `loss_fn`.",
        "Move the line with `model(params, x)` into `loss_fn`, whose own `params` then hides the outer one.",
    ),
    cases=drawn(2, _regression(affine)) + drawn(2, _regression(bend), seed=1),
    mistakes=slips(
        make_loss,
        r"""
outside
- def loss_fn(params):
-     outputs = model(params, x)
+ given = model(params, x)
+
+ def loss_fn(params):
+     outputs = given
! These are the outputs for the old parameters: you computed them before `loss_fn` got its own, or inside it with the
! outer `params`. For the gradient they are constants.
stopped
- outputs = model(params, x)
+ outputs = mx.stop_gradient(model(params, x))
! The value is right, but `mx.stop_gradient` cuts off its history.

@ return (outputs - y).square().mean()
through Python
+ return (outputs - y).square().mean().item()
! `.item()` turns the loss into a float. Return the array.
sum (2)
+ return (outputs - y).square().sum()
! Take the mean, as before; only one line was in the wrong place.

@ def loss_fn(params):
@     outputs = model(params, x)
@     return (outputs - y).square().mean()
@
@ return loss_fn
half of it (2)
+ return lambda tracked: (model({"w": tracked["w"], "b": params["b"]}, x) - y).square().mean()
! You use the w that `loss_fn` is given, but the old b from outside.
called at once (2)
+ return (model(params, x) - y).square().mean()
! Return the function, so that it can be called with other parameters.
""",
    ),
    run=_at_new_parameters,
    also_right=r"""
# make loss as lambda
lambda model, params, x, y: lambda p: mx.mean(mx.square(y - model(p, x)))
""",
    also_wrong=r"""
# absolute distances
lambda model, params, x, y: lambda p: (model(p, x) - y).abs().mean()
""",
)


def momentum_step(params, velocity, grads, lr):
    """(new params, new velocity), dictionaries. Everything comes in as an argument."""
    velocity = {name: 0.9 * velocity[name] + grads[name] for name in params}
    params = {name: params[name] - lr * velocity[name] for name in params}
    return params, velocity


def _compiled_twice(function, params, velocity, grads, lr):
    """The params and velocities after each of three compiled steps, the last with another learning rate."""
    run = compiled(function)
    own = [{name: mx.array(value) for name, value in each.items()} for each in (params, velocity)]
    seen = {"a step that is not compiled": function(*own, grads, mx.array(lr))}  # in-place changes show
    for step, rate in enumerate((lr, lr, 3 * lr), 1):
        result = run(params, velocity, grads, mx.array(rate))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            return result
        params, velocity = result
        if not isinstance(params, dict) or not isinstance(velocity, dict):
            return result
        seen |= {f"params[{name!r}] after step {step}": value for name, value in sorted(params.items())}
        seen |= {f"velocity[{name!r}] after step {step}": value for name, value in sorted(velocity.items())}
    return seen


def _momentum_case(rng):
    shapes = dict(w=(2, 3), b=(3,), g=())
    turned = dict(reversed(shapes.items()))
    return _arrays(rng, **shapes), _arrays(rng, **shapes), _arrays(rng, **turned), float(rng.uniform(0.05, 0.3))


MOMENTUM = Exercise(
    "09.6",
    "Safe to compile",
    "This step of SGD with momentum keeps its state outside. Once compiled, its state and learning rate are "
    "frozen.\n\n"
    "```python\n"
    "velocity, lr = {name: mx.zeros_like(value) for name, value in params.items()}, mx.array(0.1)\n\n"
    "def step(params, grads):\n    for name in params:\n        velocity[name] = 0.9 * velocity[name] + "
    "grads[name]\n        params[name] = params[name] - lr * velocity[name]\n    return params\n"
    "```\n\n"
    "Write `momentum_step(params, velocity, grads, lr)`: everything comes in as an argument, and everything new is "
    "returned, as a tuple of two new dictionaries (params, velocity). `lr` is an array that holds one number. "
    "`check` compiles your function and takes three steps, the last with another learning rate.",
    minutes=8,
    difficulty=2,
    solution=momentum_step,
    hints=(
        "Compute the new velocity for all names first, then the new params from it: two dictionary comprehensions.",
        "Do not write into the dictionaries that you are given: while MLX compiles, you would write placeholders "
        "there. `lr.item()` fails for the same reason: there is no number yet.",
    ),
    cases=drawn(3, _momentum_case),
    mistakes=slips(
        momentum_step,
        r"""
the old velocity
- velocity = {name: 0.9 * velocity[name] + grads[name] for name in params}
+ new = {name: 0.9 * velocity[name] + grads[name] for name in params}
- return params, velocity
+ return params, new
! Move the parameters with the *new* velocity.

@ return params, velocity
forgets the velocity
+ return params
! Return the velocity too: the next step starts from it.
swapped
+ return velocity, params
! The parameters come first in the tuple.

@ velocity = {name: 0.9 * velocity[name] + grads[name] for name in params}
no memory
+ velocity = {name: grads[name] for name in params}
! That is plain SGD: 0.9 of the old velocity is missing.
averaged
+ velocity = {name: 0.9 * velocity[name] + 0.1 * grads[name] for name in params}
! Add the whole gradient, not a tenth of it.
by order
+ velocity = {name: 0.9 * old + grad for name, old, grad in zip(params, velocity.values(), grads.values())}
! Look up gradients by name: they may come in a different order.

@ params = {name: params[name] - lr * velocity[name] for name in params}
a number (2)
+ params = {name: params[name] - lr.item() * velocity[name] for name in params}
! `.item()` needs a number, but while MLX compiles there are only placeholders. Compute with the array.
a fixed rate
+ params = {name: params[name] - 0.1 * velocity[name] for name in params}
! The learning rate is an argument: use lr.

lr in the velocity
- velocity = {name: 0.9 * velocity[name] + grads[name] for name in params}
- params = {name: params[name] - lr * velocity[name] for name in params}
+ velocity = {name: 0.9 * velocity[name] + lr * grads[name] for name in params}
+ params = {name: params[name] - velocity[name] for name in params}
! That is a different momentum: the learning rate is part of its velocity, so a new rate acts late. Here the velocity
! collects plain gradients.
""",
    ),
    run=_compiled_twice,
    also_right=r"""
# momentum with loops
def momentum_with_loops(params, velocity, grads, lr):
    new_params, new_velocity = dict(params), dict(velocity)
    for name in sorted(params):
        new_velocity[name] = grads[name] + velocity[name] * 0.9
        new_params[name] = params[name] - new_velocity[name] * lr
    return [new_params, new_velocity]
""",
    also_wrong=r"""
# momentum in place
def momentum_in_place(params, velocity, grads, lr):
    for name in params:
        velocity[name] = 0.9 * velocity[name] + grads[name]
        params[name] = params[name] - lr * velocity[name]
    return params, velocity
! also new numbers in what it was given
# momentum with a global
LR = mx.array(0.1)
def momentum_with_a_global(params, velocity, grads, lr):
    velocity = {name: 0.9 * velocity[name] + grads[name] for name in params}
    return {name: params[name] - LR * velocity[name] for name in params}, velocity
! `LR`, a global that `momentum_with_a_global` uses
# momentum that remembers
MEMORY = {}
def momentum_that_remembers(params, velocity, grads, lr):
    MEMORY.setdefault("velocity", {name: mx.zeros_like(value) for name, value in params.items()})
    new = {name: 0.9 * MEMORY["velocity"][name] + grads[name] for name in params}
    MEMORY["velocity"] = new
    return {name: params[name] - lr * new[name] for name in params}, new
! `MEMORY
""",
)


def gated_silu_rule(primals, cotangent, output):
    """The gradients of gate and up, for output = gate * sigmoid(gate) * up."""
    gate, up = primals
    s = mx.sigmoid(gate)
    return cotangent * up * s * (1 + gate * (1 - s)), cotangent * gate * s


def _as_custom_function(function, gate, up, weights):
    """The gradients of a custom function with this rule."""

    @mx.custom_function
    def gated_silu(gate, up):
        return gate * mx.sigmoid(gate) * up

    odd = []

    def rule(primals, cotangent, output):
        result = function(primals, cotangent, output)
        if not isinstance(result, (tuple, list)):
            odd.append(type(result).__name__)
        elif len(result) != 2:
            odd.append(f"{len(result)} results")
        elif other := [each for each in result if not isinstance(each, mx.array)]:  # MLX would end the kernel
            odd.append(f"a gradient of type {type(other[0]).__name__}")
        else:
            return result
        return [mx.zeros_like(primal) for primal in primals]

    gated_silu.vjp(rule)
    grads = mx.grad(lambda gate, up: (gated_silu(gate, up) * weights).sum(), argnums=(0, 1))(gate, up)
    if odd:
        return Told(
            f"a rule that returned {odd[0]} (return a tuple of two gradients, of gate and of up, both MLX arrays)"
        )
    shapes = [tuple(grad.shape) for grad in grads]
    if shapes != [tuple(gate.shape), tuple(up.shape)]:
        return Told(f"gradients of shapes {shapes[0]} and {shapes[1]}, for inputs of shape {tuple(gate.shape)}")
    return grads


def _gate_case(rng):
    arrays = _arrays(rng, gate=(3, 4), up=(3, 4), weights=(3, 4))
    return tuple(arrays.values())


GATED_SILU = Exercise(
    "09.7",
    "A rule of your own",
    "The heart of a Qwen3 layer is silu(gate) * up, and silu(x) = x * sigmoid(x). Write its backward rule, "
    "`gated_silu_rule(primals, cotangent, output)`: `primals` is the tuple (gate, up) of the inputs, `cotangent` is "
    "the gradient of the loss with respect to the output (chapter 05 called it g), and `output` is the result of "
    "the forward pass. Return a tuple of two gradients, of gate and of up. With s = sigmoid(gate), the slope of "
    "silu is s * (1 + gate * (1 - s)). Gates may be -200 or 200. `check` passes the rule to `mx.custom_function`.",
    minutes=8,
    difficulty=2,
    solution=gated_silu_rule,
    hints=(
        "`gate, up = primals`. The output is a product of silu(gate) and up: the gradient of each factor is the "
        "other factor times the cotangent.",
        "The gradient of up is `cotangent * silu(gate)`. That of gate is `cotangent * up * slope`, with `s = "
        "mx.sigmoid(gate)`.",
    ),
    cases=(
        (mx.array([0.0, 1.0, -200.0, 200.0]), mx.array([2.0, -1.0, 0.5, 3.0]), mx.array([1.0, 1.0, 1.0, 1.0])),
        (mx.array([[0.7]]), mx.array([[0.0]]), mx.array([[-2.0]])),
        *drawn(2, _gate_case),
    ),
    mistakes=slips(
        gated_silu_rule,
        r"""
@ return cotangent * up * s * (1 + gate * (1 - s)), cotangent * gate * s
no cotangent
+ return up * s * (1 + gate * (1 - s)), gate * s
! The cotangent is missing: a rule multiplies the gradient of its output by its own slope.
slope without up (2)
+ return cotangent * s * (1 + gate * (1 - s)), cotangent * gate * s
! Multiply the slope of silu by up: the output is silu(gate) * up.
half of the product rule (2)
+ return cotangent * up * s, cotangent * gate * s
! gate occurs twice in silu, before the sigmoid and inside it, so it has two paths to the output.
of the wrong input (2)
+ return cotangent * up * s * (1 + gate * (1 - s)), cotangent * up * s
! The gradient of up is the cotangent times the other factor, silu(gate).
divides by up (2)
+ return cotangent * up * s * (1 + gate * (1 - s)), cotangent * output / up
! output / up is silu(gate), unless up is 0.
uses the output (2)
+ return cotangent * up * s * (1 + gate * (1 - s)), cotangent * output
! The output already contains the factor up. The gradient of up is the cotangent times silu(gate) alone.

swapped
- gate, up = primals
+ up, gate = primals
! `primals` is (gate, up), in this order.
overflows (2)
- s = mx.sigmoid(gate)
+ s = mx.exp(gate) / (1 + mx.exp(gate))
! exp(200) is infinite, and infinity divided by infinity is nan. `mx.sigmoid` avoids that.
""",
    ),
    run=_as_custom_function,
    explain=(
        "The kit's own rule is in mlx_grpo_kit/qwen3/kernels.py. It keeps the sigmoid from the forward pass, which "
        "saves an exponential in the backward pass."
    ),
    also_right=r"""
# rule from the output of silu
def rule_from_the_output_of_silu(primals, cotangent, output):
    gate, up = primals
    silu = gate * mx.sigmoid(gate)
    return [cotangent * up * (mx.sigmoid(gate) + silu - silu * mx.sigmoid(gate)), silu * cotangent]
# rule by vjp
lambda primals, cotangent, output: tuple(mx.vjp(lambda g, u: g * mx.sigmoid(g) * u, list(primals), [cotangent])[1])
""",
    also_wrong=r"""
import numpy as np

# rule summed
lambda primals, cotangent, output: tuple(grad.sum() for grad in gated_silu_rule(primals, cotangent, output))
! gradients of shapes () and ()
# rule of one
lambda primals, cotangent, output: gated_silu_rule(primals, cotangent, output)[0]
! a rule that returned array (return a tuple of two gradients
# rule as dictionary
lambda primals, cotangent, output: dict(zip(("gate", "up"), gated_silu_rule(primals, cotangent, output), strict=True))
! a rule that returned dict
# rule in numpy
lambda primals, cotangent, output: tuple(map(np.array, gated_silu_rule(primals, cotangent, output)))
! a gradient of type ndarray
# no gradient of the gate
lambda primals, cotangent, output: (None, cotangent)
! a gradient of type NoneType
""",
)


def curvature_along(loss_fn, x, v):
    """The Hessian of loss_fn at x, times v: how fast the gradient changes along v."""
    return mx.grad(lambda y: (mx.grad(loss_fn)(y) * v).sum())(x)


def quartic(x):
    """(x**4).sum() / 12 + x.sum()**2 / 4"""
    return (x**4).sum() / 12 + x.sum() ** 2 / 4


def lse(x):
    """logsumexp(3 * x)"""
    return mx.logsumexp(3 * x)


def wave(x):
    """sin(x).sum() * x.sum()"""
    return mx.sin(x).sum() * x.sum()


def _by_two_gradients(function, loss_fn, x, v):
    """The product, unless the answer computed the Hessian: one gradient per row, or the memory of all rows."""
    calls = []

    def counted(point):
        calls.append(point)
        return loss_fn(point)

    mx.reset_peak_memory()
    before = mx.get_active_memory()
    result = function(counted, x, v)
    if isinstance(result, list):
        return Told("a list (return an array)")
    if isinstance(result, mx.array):
        mx.eval(result)
    if len(calls) > 4:
        return Told(
            f"an answer that called loss_fn {len(calls)} times, for {x.size} parameters (two gradients are enough)"
        )
    if x.size >= MANY and mx.get_peak_memory() - before > 2 * x.size**2:
        return Told("an answer that held an array of the size of the Hessian (two gradients do not need one)")
    return result


MANY = 2000


def _direction(loss, size):
    return lambda rng: (loss, *_arrays(rng, x=(size,), v=(size,)).values())


CURVATURE = Exercise(
    "09.8",
    "A Hessian times a vector",
    "Write `curvature_along(loss_fn, x, v)`: the Hessian of `loss_fn` at the array `x`, times the vector `v`. Do "
    "not build the Hessian; use two gradients. `loss_fn` takes an array of the shape of x and returns one number. "
    "Differences of gradients are too coarse.",
    minutes=10,
    difficulty=3,
    solution=curvature_along,
    hints=(
        "The gradient is a function of the point: `mx.grad(loss_fn)(y)`. Multiply it by v and sum, and you have "
        "*one number*, the slope along v. You can take the gradient of one number.",
        "Write the inner function first: `def slope(y): return (mx.grad(loss_fn)(y) * v).sum()`.\nThen "
        "`mx.grad(slope)(x)`.",
    ),
    cases=(
        (quartic, mx.array([1.0, -2.0, 0.5]), mx.array([1.0, 0.0, 0.0])),
        *drawn(2, _direction(quartic, 4)),
        *drawn(2, _direction(lse, 3), seed=1),
        *drawn(1, _direction(wave, 5), seed=2),
        *drawn(1, _direction(wave, 1), seed=3),
        *drawn(1, _direction(quartic, MANY), seed=4),
    ),
    mistakes=slips(
        curvature_along,
        r"""
@ return mx.grad(lambda y: (mx.grad(loss_fn)(y) * v).sum())(x)
of x
+ return mx.grad(lambda y: (mx.grad(loss_fn)(x) * v).sum())(x)
! You took the inner gradient at x and not at the argument of the function, so for the outer gradient it is a constant.
! This is the loss that forgot its parameters, once more.
the loss itself (2)
+ return mx.grad(lambda y: loss_fn(y) * v.sum())(x)
! That is the gradient of the loss. Take the gradient of the slope along v instead, which comes from
! `mx.grad(loss_fn)(y)`.
no vector (2)
+ return mx.grad(lambda y: (mx.grad(loss_fn)(y)).sum())(x)
! v is missing: multiply the gradient by it before you sum.
squared (2)
+ return mx.grad(lambda y: (mx.grad(loss_fn)(y) ** 2 * v).sum())(x)
! Use the gradient as it is: differentiate its sum, weighted with v.
at v (2)
+ return mx.grad(lambda y: (mx.grad(loss_fn)(y) * v).sum())(v)
! Take the outer gradient at x; v is the direction.
the diagonal (2)
+ return mx.grad(lambda y: mx.grad(loss_fn)(y).sum())(x) * v
! If you multiply by v after the second gradient, v cannot tell the columns of the Hessian apart. Multiply inside.
row by row
+ return mx.stack([(mx.grad(lambda y, i=i: mx.grad(loss_fn)(y)[i])(x) * v).sum() for i in range(x.size)])
! That is the Hessian, row by row, with a gradient for each parameter. Sum gradient * v, then differentiate.
""",
    ),
    run=_by_two_gradients,
    also_right=r"""
# along by jvp
lambda loss_fn, x, v: mx.jvp(mx.grad(loss_fn), [x], [v])[1][0]
# along through a slope
lambda loss_fn, x, v: mx.grad(lambda y: mx.jvp(loss_fn, [y], [v])[1][0])(x)
""",
    also_wrong=r"""
# along by all rows at once
def along_by_all_rows_at_once(loss_fn, x, v):
    gradient = mx.grad(loss_fn)
    return mx.vmap(lambda unit: mx.vjp(gradient, [x], [unit])[1][0])(mx.eye(x.size)) @ v
! held an array of the size of the Hessian
# along by differences
def along_by_differences(loss_fn, x, v):
    gradient = mx.grad(loss_fn)
    return (gradient(x + 1e-2 * v) - gradient(x - 1e-2 * v)) / 2e-2
# the slope times v
lambda loss_fn, x, v: mx.grad(loss_fn)(x) * v
# a list
lambda loss_fn, x, v: curvature_along(loss_fn, x, v).tolist()
! a list (return an array
""",
)
