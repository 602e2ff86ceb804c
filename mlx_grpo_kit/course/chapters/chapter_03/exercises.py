"""Exercises of notebook 03: a scalar MLP."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import random

from mlx_grpo_kit.course.compare import show
from mlx_grpo_kit.course.exercise import Exercise, Mistake
from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar.nn import MLP, hinge_loss, sgd_step

POINTS, SIDES = ((2.0, 3.0), (3.0, -1.0), (0.5, 1.0), (1.0, 1.0)), (1, -1, -1, 1)


def _not_a_value(result):
    return result if result is None else f"{show(result)}, which is not a Value"


# -- 03.1 -------------------------------------------------------------------------------------------------------------


def neuron(weights, inputs, bias):
    """relu(w1 * x1 + w2 * x2 + ... + bias). weights and bias are Values, inputs are numbers."""
    total = bias
    for w, x in zip(weights, inputs):
        total = total + w * x
    return total.relu()


def _no_bias(weights, inputs, bias):
    return sum(w * x for w, x in zip(weights, inputs)).relu()


def _no_relu(weights, inputs, bias):
    return sum((w * x for w, x in zip(weights, inputs)), bias)


def _relu_of_each(weights, inputs, bias):
    return sum(((w * x).relu() for w, x in zip(weights, inputs)), bias)


def _without_graph(weights, inputs, bias):
    return Value(neuron(weights, inputs, bias).data)


def _plain_number(weights, inputs, bias):
    return neuron(weights, inputs, bias).data


def _output_and_gradients(function, weights, inputs, bias):
    weights, bias = [Value(w) for w in weights], Value(bias)
    result = function(weights, inputs, bias)
    if not isinstance(result, Value):
        return _not_a_value(result)
    result.backward()
    return {"output": result.data, "gradients of the weights": [w.grad for w in weights], "of the bias": bias.grad}


# -- 03.3 -------------------------------------------------------------------------------------------------------------


def hinge(scores, labels):
    """The mean of max(0, 1 - label * score) over all samples, as a Value."""
    losses = [(1 - label * score).relu() for score, label in zip(scores, labels)]
    return sum(losses) / len(losses)


def _hinge_sum(scores, labels):
    return sum((1 - label * score).relu() for score, label in zip(scores, labels))


def _no_margin(scores, labels):
    return sum((-label * score).relu() for score, label in zip(scores, labels)) / len(scores)


def _plus(scores, labels):
    return sum((1 + label * score).relu() for score, label in zip(scores, labels)) / len(scores)


def _no_hinge(scores, labels):
    return sum(1 - label * score for score, label in zip(scores, labels)) / len(scores)


def _loss_and_gradients(function, scores, labels):
    scores = [Value(score) for score in scores]
    loss = function(scores, labels)
    if not isinstance(loss, Value):
        return _not_a_value(loss)
    loss.backward()
    return {"loss": loss.data, "gradients of the scores": [score.grad for score in scores]}


# -- 03.4 -------------------------------------------------------------------------------------------------------------


def train_step(model, inputs, labels, learning_rate):
    """One step of gradient descent on the hinge loss. Returns the loss before it, a number."""
    loss = hinge_loss([model(x) for x in inputs], labels)
    model.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.data -= learning_rate * p.grad
    return loss.data


def _never_zero(model, inputs, labels, learning_rate):
    loss = hinge_loss([model(x) for x in inputs], labels)
    loss.backward()
    sgd_step(model.parameters(), learning_rate)
    return loss.data


def _uphill(model, inputs, labels, learning_rate):
    return train_step(model, inputs, labels, -learning_rate)


def _no_step(model, inputs, labels, learning_rate):
    return hinge_loss([model(x) for x in inputs], labels).data


def _returns_the_value(model, inputs, labels, learning_rate):
    return Value(train_step(model, inputs, labels, learning_rate))


def a_small_model():
    """MLP(2, [3, 1]) with four points"""
    before = random.getstate()  # the learner's random numbers stay where they are
    random.seed(5)
    model = MLP(2, [3, 1])
    random.setstate(before)
    return model


def _three_steps(function, build, learning_rate):
    """The losses of three steps, and a weight afterwards."""
    model = build()
    losses = [function(model, POINTS, SIDES, learning_rate) for _ in range(3)]
    if None in losses:
        return None
    if any(isinstance(loss, Value) for loss in losses):
        return "a Value"
    return {"losses": losses, "first weight": model.parameters()[0].data}


# -- 03.5 -------------------------------------------------------------------------------------------------------------


def accuracy(scores, labels):
    """The share of samples whose score has the sign of its label, between 0 and 1."""
    right = sum((score.data > 0) == (label > 0) for score, label in zip(scores, labels))
    return right / len(labels)


def _count(scores, labels):
    return sum((score.data > 0) == (label > 0) for score, label in zip(scores, labels))


def _equal(scores, labels):
    return sum(score.data == label for score, label in zip(scores, labels)) / len(labels)


def _percent(scores, labels):
    return 100 * accuracy(scores, labels)


def _margin(scores, labels):
    return sum(score.data * label >= 1 for score, label in zip(scores, labels)) / len(labels)


def _with_values(function, scores, labels):
    return function([Value(score) for score in scores], labels)


EXERCISES = (
    Exercise(
        "03.1",
        "One neuron",
        "Write `neuron(weights, inputs, bias)`: multiply each weight by its input, add "
        "everything up with the bias, and apply `.relu()`. Weights and bias are Values, inputs are numbers; the result "
        "is a Value that knows where it came from.",
        6,
        1,
        neuron,
        hints=(
            "Start with `total = bias` and add one product after the other.",
            "`for w, x in zip(weights, inputs): total = total + w * x`, and at the end `return total.relu()`.",
        ),
        cases=(
            ([1.0, -2.0], [3.0, 0.5], 0.25),
            ([1.0, -2.0], [0.5, 2.0], 0.25),
            ([0.5, 0.5, 2.0], [1.0, -4.0, 1.5], 1.0),
        ),
        mistakes=(
            Mistake("no bias", _no_bias, "The bias is missing.", 1),
            Mistake("no relu", _no_relu, "A neuron below zero is silent: relu of the whole sum is still missing.", 2),
            Mistake("relu of each", _relu_of_each, "relu belongs around the whole sum, not around each product.", 2),
            Mistake(
                "a Value without a past",
                _without_graph,
                "The number is right, but the gradients do not arrive: "
                "compute with the Values themselves, not with their .data.",
                1,
            ),
            Mistake(
                "a plain number",
                _plain_number,
                "Compute with the Values themselves, not with their .data: a plain number has no gradient.",
                1,
            ),
        ),
        run=_output_and_gradients,
    ),
    Exercise(
        "03.2",
        "Count the parameters",
        "How many parameters has `MLP(2, [16, 16, 1])`? A neuron has a weight for each "
        "input and a bias. Count before you run `len(model.parameters())`.",
        3,
        1,
        337,
        hints=(
            "The first layer has 16 neurons, each with 2 weights and a bias: 48 parameters.",
            "The second layer has 16 neurons of 17 parameters each, the last one neuron of 17.",
        ),
        mistakes=(
            Mistake("no biases", 304, "Those are the weights. Each of the 33 neurons has a bias too.", 1),
            Mistake("neurons", 33, "That is the number of neurons; each has several parameters.", 1),
            Mistake("last bias", 336, "One bias is missing: the last neuron has one too.", 2),
        ),
    ),
    Exercise(
        "03.3",
        "The hinge loss",
        "Write `hinge(scores, labels)`: the mean over all samples of `max(0, 1 - label * "
        "score)`. Scores are Values, labels are -1 or 1. A sample on the right side with a margin of 1 costs nothing.",
        6,
        2,
        hinge,
        hints=(
            "For one sample: `(1 - label * score).relu()` is max(0, 1 - label * score).",
            "Collect these in a list and divide their `sum` by how many they are.",
        ),
        cases=(([2.0, -0.5], [1, 1]), ([0.3, -0.4, 3.0], [1, -1, -1]), ([-2.0], [-1])),
        mistakes=(
            Mistake(
                "sum",
                _hinge_sum,
                "That is the sum. The mean does not grow with the number of samples, so the "
                "same learning rate serves for 10 and for 100.",
                2,
            ),
            Mistake(
                "no margin",
                _no_margin,
                "Without the 1 a score of exactly 0 would cost nothing, and the network could stop at saying nothing.",
                1,
            ),
            Mistake(
                "sign",
                _plus,
                "The sign: a score on the side of its label should make the loss smaller, so it is "
                "1 minus label * score.",
                1,
            ),
            Mistake(
                "no hinge",
                _no_hinge,
                "Without max(0, ...), the relu, the loss can be pushed below zero forever "
                "by samples that are right already.",
                1,
            ),
        ),
        run=_loss_and_gradients,
    ),
    Exercise(
        "03.4",
        "A training step",
        "Write `train_step(model, inputs, labels, learning_rate)`: the loss of all samples "
        "with `hinge_loss(scores, labels)`, `model.zero_grad()`, `loss.backward()`, and then a step of every `p` in "
        "`model.parameters()` against its gradient. Return the loss as a number, `loss.data`.",
        8,
        2,
        train_step,
        hints=(
            "Four lines: loss, zero_grad, backward, update. The scores are `[model(x) for x in inputs]`.",
            "The update: `for p in model.parameters(): p.data -= learning_rate * p.grad`.",
            "zero_grad comes before backward: backward adds to what is there.",
        ),
        cases=((a_small_model, 0.1), (a_small_model, 0.02)),
        mistakes=(
            Mistake(
                "never zero",
                _never_zero,
                "The first step is right and the second is not: the gradients of the "
                "first are still there, and backward adds to them.",
                3,
            ),
            Mistake(
                "uphill", _uphill, "The loss grows: the gradient points uphill, so the step goes against it, `-=`.", 2
            ),
            Mistake(
                "no step",
                _no_step,
                "The loss does not change, so no parameter has moved. Is there a "
                "`backward()`, an update, and no `zero_grad()` between the two?",
                3,
            ),
            Mistake(
                "returns a Value",
                _returns_the_value,
                "Return `loss.data`: a Value would keep its whole graph in "
                "memory for as long as you keep the history of losses.",
                1,
            ),
        ),
        run=_three_steps,
    ),
    Exercise(
        "03.5",
        "Accuracy",
        "Write `accuracy(scores, labels)`: the share of samples whose score (a Value) has the sign "
        "of its label (-1 or 1), a number between 0 and 1.",
        4,
        1,
        accuracy,
        hints=(
            "`score.data > 0` says that the network means +1, `label > 0` that it should.",
            "`(score.data > 0) == (label > 0)` is True for a right answer, and `sum` counts True as 1. Divide by "
            "the number of samples.",
        ),
        cases=(([2.0, -0.5, 0.1, -3.0], [1, 1, 1, -1]), ([0.2, -0.2], [-1, 1]), ([1.0, -1.0, 5.0], [1, -1, -1])),
        mistakes=(
            Mistake("count", _count, "That is how many are right. Divide by the number of samples.", 2),
            Mistake("equal", _equal, "A score is almost never exactly -1 or 1. Only its sign counts.", 1),
            Mistake("percent", _percent, "That is in percent; a share is between 0 and 1.", 2),
            Mistake(
                "margin", _margin, "A sample counts as right on the right side of 0; it need not have a margin of 1.", 1
            ),
        ),
        run=_with_values,
    ),
)
