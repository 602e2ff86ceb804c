"""Exercises of notebook 03: a scalar MLP."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import math
import random

from mlx_grpo_kit.course.compare import Told, same, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.scalar import Value, dot

POINTS, SIDES = ((2.0, 3.0), (3.0, -1.0), (0.5, 1.0), (1.0, 1.0)), (1, -1, -1, 1)


def _not_a_value(result):
    return result if result is None else Told(f"{show(result)}, which is not a Value")


def neuron(weights, inputs, bias):
    """relu(w1 * x1 + w2 * x2 + ... + bias). weights and bias are Values, inputs are numbers."""
    total = bias
    for w, x in zip(weights, inputs):
        total = total + w * x
    return total.relu()


def _output_and_gradients(function, weights, inputs, bias):
    weights, bias = [Value(w) for w in weights], Value(bias)
    result = function(weights, inputs, bias)
    if not isinstance(result, Value):
        return _not_a_value(result)
    result.backward()
    return {"output": result.data, "gradients of the weights": [w.grad for w in weights], "of the bias": bias.grad}


ONE_NEURON = Exercise(
    id="03.1",
    title="One neuron",
    prompt="Write `neuron(weights, inputs, bias)`: multiply each weight by its input, add up the products and the "
    "bias, and apply `.relu()`. Weights and bias are Values, inputs are numbers; the result is a Value connected "
    "to its graph.",
    minutes=6,
    difficulty=1,
    solution=neuron,
    hints=(
        "Start with `total = bias` and add the products one by one.",
        "`for w, x in zip(weights, inputs): total = total + w * x`, and at the end `return total.relu()`.",
    ),
    cases=(
        ([1.0, -2.0], [3.0, 0.5], 0.25),
        ([1.0, -2.0], [0.5, 2.0], 0.25),
        ([0.5, 0.5, 2.0], [1.0, -4.0, 1.5], 1.0),
        ([-1.5], [-2.0], 0.5),
        *drawn(2, lambda rng: (rng.normal(size=4).tolist(), rng.normal(size=4).tolist(), 2.0)),
    ),
    run=_output_and_gradients,
    mistakes=slips(
        neuron,
        r"""
no bias
- total = bias
+ total = 0 * bias
! The bias is missing.
a bias for each
- total = bias
+ total = 0 * bias
- total = total + w * x
+ total = total + w * x + bias
! The bias is added once, not with every product.

@ return total.relu()
no relu (2)
+ return total
! A neuron is silent below zero: you still need the relu of the whole sum.
a Value without a graph
+ return Value(total.relu().data)
! The number is right, but the Values get no gradients: compute with the Values themselves, not with their .data.
a plain number
+ return total.relu().data
! Compute with the Values themselves, not with their .data: a plain number has no gradient.
Python's max (2)
+ return max(total, 0)
! If the sum is negative, this returns the plain number 0, as Python's max does, and a plain number has no gradient.
! `.relu()` is max(0, ...) as an operation of the graph.

relu of each (2)
-     total = total + w * x
- return total.relu()
+     total = total + (w * x).relu()
+ return total
! relu belongs around the whole sum, not around each product.
bias outside (2)
- total = bias
+ total = 0 * bias
- return total.relu()
+ return total.relu() + bias
! The bias belongs inside the relu, which applies to the whole sum.
""",
    ),
)


class Neuron:
    """relu of a weighted sum of nin inputs; the sum itself when nonlin is False."""

    def __init__(self, nin, nonlin=True):
        self.w = [Value(random.uniform(-1, 1)) for _ in range(nin)]
        self.b = Value(0.0)
        self.nonlin = nonlin

    def __call__(self, x):
        total = dot(self.w, x, self.b)
        return total.relu() if self.nonlin else total

    def parameters(self):
        return [*self.w, self.b]


def _keep_random(run):
    """Call `run` with random numbers of its own, so that the reader's random state does not change."""

    def call(make, *arguments):
        before = random.getstate()
        random.seed(5)
        try:
            return run(make, *arguments)
        finally:
            random.setstate(before)

    return call


@_keep_random
def _use_neuron(make, weights, bias, inputs, nonlin):
    """The start of several neurons, and the output of one with given numbers."""
    many = [make(len(weights), **({} if nonlin else {"nonlin": False})) for _ in range(200)]
    neuron = many[0]
    complaint = _about_start([w for each in many for w in each.w], neuron, len(weights))
    if complaint:
        return Told(complaint)
    neuron.b.data = bias
    for w, number in zip(neuron.w, weights):
        w.data = number
    parameters = _about_parameters(neuron, [*neuron.w, neuron.b])
    neuron([number + 1 for number in inputs])  # so that an answer that keeps state shows it
    output = neuron(inputs)
    if not isinstance(output, Value):
        return _not_a_value(output)
    output.backward()
    gradients = [w.grad for w in neuron.w]
    of_bias = neuron.b.grad
    values = [Value(number) for number in inputs]
    again = neuron(values)
    if not isinstance(again, Value) or not same(again.data, output.data):
        return Told("another output where the inputs are Values")
    again.backward()
    return {
        "output": output.data,
        "gradients of w": gradients,
        "of b": of_bias,
        "of inputs that are Values": [value.grad for value in values],
        "parameters": parameters,
    }


def _about_start(all_weights, neuron, nin):
    """Describe what is wrong with a neuron's start; None if nothing is."""
    if not isinstance(neuron.w, list):
        return f"a neuron whose `w` is a {type(neuron.w).__name__}, not a list"
    if len(neuron.w) != nin or not all(isinstance(w, Value) for w in all_weights):
        return f"a neuron whose `w` is not a list of {nin} Value{'s' * (nin > 1)}"
    numbers = [w.data for w in all_weights]
    if len(set(numbers)) == 1:
        return "weights that all start at the same number"
    if len(set(numbers)) < len(numbers):
        return "weights that start alike, but each should get a random number of its own"
    if min(numbers) < -1 or max(numbers) > 1:
        return "a weight that starts outside of -1 to 1"
    if min(numbers) > -0.8 or max(numbers) < 0.8:
        return f"weights that start between {min(numbers):.1f} and {max(numbers):.1f}, expected -1 to 1"
    if not isinstance(neuron.b, Value) or neuron.b.data != 0:
        return "a neuron whose `b` does not start as Value(0.0)"
    return None


def _about_parameters(owner, wanted):
    """The number of parameters if the list is right; otherwise a description of what is wrong."""
    given = owner.parameters()
    if not isinstance(given, list):
        return Told(f"a {type(given).__name__}, not a list")
    given, again = list(given), owner.parameters()
    if len(again) != len(given):
        return Told(f"a list of {len(given)} at the first call and of {len(again)} at the second")
    if any(not isinstance(each, Value) for each in given):
        return Told(f"a list with a {next(type(each).__name__ for each in given if not isinstance(each, Value))} in it")
    if len({id(each) for each in given}) != len(given):
        return Told("a list with a Value in it twice")
    if {id(each) for each in given} - {id(each) for each in wanted}:
        return Told("a list with Values that are not the weights and biases themselves")
    return len(given)


NEURON = Exercise(
    id="03.2",
    title="A neuron that owns its weights",
    prompt="Write the class `Neuron`. `Neuron(nin)` creates a list `self.w` of `nin` Values, each with a random "
    "number from -1 to 1, and `self.b`, a Value that starts at 0. When called with `nin` inputs (numbers or "
    "Values), it returns the relu of the weighted sum, or the sum itself if it was created with `nonlin=False`. "
    "`parameters()` returns a list of all its weights and its bias. For the sum use `dot(self.w, x, self.b)`: it "
    "does the loop of 03.1 in one Value, which makes the training below several times faster.",
    minutes=8,
    difficulty=2,
    solution=Neuron,
    hints=(
        "`__init__` stores three things in self: `w`, `b` and `nonlin`. `random.uniform(-1, 1)` is a random number "
        "from -1 to 1.",
        "`self.w = [Value(random.uniform(-1, 1)) for _ in range(nin)]`. `__call__` computes `total = dot(self.w, x, "
        "self.b)` and returns `total.relu()` or, without nonlin, `total`.",
        "`parameters` returns `[*self.w, self.b]`, the Values themselves and not their numbers.",
    ),
    cases=(
        ([1.0, -2.0], 0.25, [3.0, 0.5], True),
        ([1.0, -2.0], 0.25, [0.5, 2.0], True),
        ([1.0, -2.0], 0.25, [0.5, 2.0], False),
        ([1.5], -0.5, [2.0], True),
        *drawn(2, lambda rng: (rng.normal(size=3).tolist(), rng.normal(), rng.normal(size=3).tolist(), False)),
    ),
    run=_use_neuron,
    mistakes=slips(
        Neuron,
        r"""
@ self.w = [Value(random.uniform(-1, 1)) for _ in range(nin)]
all alike
+ self.w = [Value(0.0) for _ in range(nin)]
! Neurons that start alike and whose outputs have equal weights get the same gradients and stay alike for ever: a layer
! of them is worth one neuron. Random weights make them different.
never negative
+ self.w = [Value(random.random()) for _ in range(nin)]
! `random.random()` is between 0 and 1. For a number from -1 to 1 use `random.uniform(-1, 1)`.
plain weights
+ self.w = [random.uniform(-1, 1) for _ in range(nin)]
! Plain numbers have no gradient: turn each into a Value.
one weight for all (2)
+ self.w = [Value(random.uniform(-1, 1))] * nin
! `[v] * nin` contains the same Value nin times. A list comprehension creates a fresh Value for each input.

@ return total.relu() if self.nonlin else total
always a relu (2)
+ return total.relu()
! With `nonlin=False`, return the sum as it is, even if it is negative.
never a relu (2)
+ return total
! Without the relu there is no kink, and neurons in a row could only make straight lines.

@ total = dot(self.w, x, self.b)
no bias in the sum (2)
+ total = dot(self.w, x)
! The bias is missing from the sum: `dot(self.w, x, self.b)`.
inputs cut from their graph (2)
+ total = dot(self.w, [getattr(each, 'data', each) for each in x], self.b)
! The inputs of a second layer are Values made by the first layer, and their gradients have to reach it: use the Values
! themselves, not their .data.

@ return [*self.w, self.b]
parameters that grow (3)
+ self.w += [self.b]; return self.w
! `append` and `+=` add the bias to `self.w` itself, again in each call, and then the neuron has more weights than
! inputs. Create a new list: `[*self.w, self.b]`.
no bias in parameters (3)
+ return list(self.w)
! The bias is a parameter too.
numbers as parameters (3)
+ return [w.data for w in self.w] + [self.b.data]
! Training changes the Values that `parameters()` returns: return the Values themselves, not their numbers.
list of lists (3)
+ return [self.w, self.b]
! Return one flat list: `[*self.w, self.b]`, or `self.w + [self.b]`.
""",
    ),
    also_right=r"""
# with its own loop
def with_its_own_loop(nin, nonlin=True):
    class Looping(Neuron):
        def __call__(self, x):
            total = self.b + sum(w * number for w, number in zip(self.w, x, strict=True))
            return total.relu() if self.nonlin else total

    return Looping(nin, nonlin)
""",
    also_wrong=r"""
# narrow initial weights
class NarrowInitialWeights(Neuron):
    def __init__(self, nin, nonlin=True):
        super().__init__(nin, nonlin)
        for w in self.w:
            w.data *= 0.7
! expected -1 to 1
""",
)


class Layer:
    """nout neurons with the same nin inputs."""

    def __init__(self, nin, nout, nonlin=True):
        self.neurons = [Neuron(nin, nonlin) for _ in range(nout)]

    def __call__(self, x):
        return [neuron(x) for neuron in self.neurons]

    def parameters(self):
        return [p for neuron in self.neurons for p in neuron.parameters()]


def _set_weights(neurons, rng):
    """Set all weights and biases to fixed numbers, the same for every answer."""
    for neuron in neurons:
        for parameter in [*neuron.w, neuron.b]:
            parameter.data = rng.uniform(-1, 1)


@_keep_random
def _use_layer(make, nin, nout, nonlin, inputs):
    layer = make(nin, nout, **({} if nonlin else {"nonlin": False}))
    count = len({id(neuron) for neuron in layer.neurons})
    if count != nout:
        return Told(f"a layer with {count} different neuron{'s' * (count > 1)}, expected {nout}")
    wanted = [p for neuron in layer.neurons for p in [*neuron.w, neuron.b]]
    parameters = _about_parameters(layer, wanted)  # before any bias is other than 0
    _set_weights(layer.neurons, random.Random(20))
    layer([number + 1 for number in inputs])  # so that an answer that keeps state shows it
    outputs = layer(inputs)
    if not isinstance(outputs, (list, tuple)) or not all(isinstance(output, Value) for output in outputs):
        what = show(outputs) if outputs is None else type(outputs).__name__
        return Told(f"{what} for the outputs, expected a list of {nout} Value{'s' * (nout > 1)}")
    if outputs:
        sum(outputs).backward()
    gradients = [parameter.grad for parameter in wanted]
    values = [Value(number) for number in inputs]
    sum(layer(values)).backward()
    return {
        "outputs": [output.data for output in outputs],
        "gradients": gradients,
        "of inputs that are Values": [value.grad for value in values],
        "parameters": parameters,
    }


LAYER = Exercise(
    id="03.3",
    title="A layer",
    prompt="Write the class `Layer`. `Layer(nin, nout)` creates a list `self.neurons` of `nout` Neurons with `nin` "
    "inputs each, all with the given `nonlin`. When called with `nin` inputs, it returns the list of their "
    "outputs, even if there is only one. `parameters()` returns one flat list.",
    minutes=6,
    difficulty=1,
    solution=Layer,
    hints=(
        "Three list comprehensions: one makes the neurons, one calls each with the same x, one collects the "
        "parameters.",
        "`[Neuron(nin, nonlin) for _ in range(nout)]` and `[neuron(x) for neuron in self.neurons]`.",
        "`[p for neuron in self.neurons for p in neuron.parameters()]`",
    ),
    cases=(
        (2, 3, True, [1.0, -2.0]),
        (2, 4, False, [0.5, 2.0]),
        (3, 1, True, [1.0, 1.0, 0.5]),
        (1, 2, False, [-1.5]),
    ),
    run=_use_layer,
    mistakes=slips(
        Layer,
        r"""
@ self.neurons = [Neuron(nin, nonlin) for _ in range(nout)]
one neuron for all (2)
+ self.neurons = [Neuron(nin, nonlin)] * nout
! `[neuron] * nout` contains the same neuron nout times: all outputs would stay equal.
sizes swapped (2)
+ self.neurons = [Neuron(nout, nonlin) for _ in range(nin)]
! Create nout neurons with nin weights each, not the other way round.
nonlin lost (2)
+ self.neurons = [Neuron(nin) for _ in range(nout)]
! Pass `nonlin` to each Neuron.

no relu by default
- def __init__(self, nin, nout, nonlin=True):
+ def __init__(self, nin, nout, nonlin=False):
! `Layer(nin, nout)` has relus. Leave them out only for nonlin=False.

@ return [neuron(x) for neuron in self.neurons]
inputs cut from their graph (2)
+ return [neuron([getattr(each, 'data', each) for each in x]) for neuron in self.neurons]
! The inputs of a second layer are Values made by the first layer, and their gradients have to reach it: pass on the
! Values themselves, not their .data.
a chain (2)
+ return [self.neurons[0](x)]
! Every neuron of the layer gets the same x and returns one output.
a sum (2)
+ return sum(neuron(x) for neuron in self.neurons)
! Do not combine the outputs: return a list with one output per neuron.

@ return [p for neuron in self.neurons for p in neuron.parameters()]
list of lists (3)
+ return [n.parameters() for n in self.neurons]
! Return one flat list: use two `for`s in the brackets, or `+=` in a loop.
weights alone (3)
+ return [p for neuron in self.neurons for p in neuron.w]
! Call `parameters()` of each neuron: the biases are parameters too.
""",
    ),
    also_wrong=r"""
# remembers its outputs
class RemembersItsOutputs(Layer):
    def __call__(self, x):
        self.outputs = getattr(self, "outputs", None) or super().__call__(x)
        return self.outputs
""",
)


class MLP:
    """Layers in a row, all but the last with a relu: MLP(2, [16, 1]) turns two numbers into one."""

    def __init__(self, nin, nouts):
        sizes = [nin, *nouts]
        last = len(nouts) - 1
        self.layers = [Layer(sizes[i], sizes[i + 1], nonlin=i != last) for i in range(len(nouts))]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x[0]

    def parameters(self):
        return [p for layer in self.layers for p in layer.parameters()]

    def zero_grad(self):
        for p in self.parameters():
            p.grad = 0.0


@_keep_random
def _use_mlp(make, nin, nouts, inputs):
    given = list(nouts)
    model = make(nin, given)
    if given != nouts:
        return Told("a network, but it changed the given list of sizes (work on a copy of it)")
    shape = [(len(layer.neurons), len(layer.neurons[0].w)) for layer in model.layers]
    sizes = [nin, *nouts]
    if shape != list(zip(nouts, sizes)):
        return Told(f"layers of {_sizes(shape)}, expected {_sizes(zip(nouts, sizes))}")
    _set_weights([neuron for layer in model.layers for neuron in layer.neurons], random.Random(4))
    model([number + 1 for number in inputs])  # so that an answer that keeps state shows it
    score = model(inputs)
    if not isinstance(score, Value):
        return _not_a_value(score)
    score.backward()
    wanted = [p for layer in model.layers for neuron in layer.neurons for p in [*neuron.w, neuron.b]]
    length = math.hypot(*[p.grad for p in wanted])
    model(inputs)
    if [length] != [math.hypot(*[p.grad for p in wanted])]:
        return Told("a network whose gradients change when it is called again")
    numbers = [p.data for p in wanted]
    returned = model.zero_grad()
    if numbers != [p.data for p in wanted]:
        return Told("a network that has lost its numbers after zero_grad()")
    return {
        "score": score.data,
        "norm of the gradient": length,
        "parameters": _about_parameters(model, wanted),
        "grads other than 0 after zero_grad()": sum(p.grad != 0 for p in wanted),
        **({} if returned is None else {"zero_grad() gave": returned}),
    }


def _sizes(shape):
    return ", ".join(f"{count} x {nin}" for count, nin in shape)


NETWORK = Exercise(
    id="03.4",
    title="A network",
    prompt="Write the class `MLP`. `MLP(nin, nouts)` creates a list `self.layers`. `nouts` lists the number of "
    "neurons of each Layer. The first Layer has `nin` inputs, and each later one has as many inputs as the Layer "
    "before it has neurons. All Layers except the last have a relu. When called with `nin` numbers, the MLP passes "
    "them through one Layer after another and returns the single Value from the last Layer. `parameters()` returns "
    "one flat list; `zero_grad()` sets the grad of each parameter to 0.",
    minutes=12,
    difficulty=3,
    solution=MLP,
    hints=(
        "`sizes = [nin, *nouts]` holds all sizes in a row: layer i has sizes[i] inputs and sizes[i + 1] neurons.",
        "`Layer(sizes[i], sizes[i + 1], nonlin=i != len(nouts) - 1)`. In `__call__` the output of one layer is the "
        "input of the next: `x = layer(x)`.",
        "The last layer returns a list of one, so `__call__` returns `x[0]`. `zero_grad` is a loop with `p.grad = "
        "0.0`.",
    ),
    cases=(
        (2, [3, 1], [1.0, -2.0]),
        (2, [4, 4, 1], [0.5, 2.0]),
        (1, [2, 3, 1], [-0.5]),
        (3, [1], [1.0, -1.0, 2.0]),
        (2, [1, 1], [0.5, 2.0]),
        (2, [1, 1], [-0.5, -2.0]),
        (2, [2, 3, 2, 1], [1.0, -2.0]),
    ),
    run=_use_mlp,
    mistakes=slips(
        MLP,
        r"""
@ self.layers = [Layer(sizes[i], sizes[i + 1], nonlin=i != last) for i in range(len(nouts))]
a relu at the end (2)
+ self.layers = [Layer(sizes[i], sizes[i + 1]) for i in range(len(nouts))]
! The last layer has no relu: the scores of points with label -1 must be able to be negative.
no relu anywhere (2)
+ self.layers = [Layer(sizes[i], sizes[i + 1], nonlin=False) for i in range(len(nouts))]
! Only the last layer has no relu. Without any relu, layers in a row make one straight line.
relu only at the end (2)
+ self.layers = [Layer(sizes[i], sizes[i + 1], nonlin=i == last) for i in range(len(nouts))]
! It is the other way round: all layers except the last have a relu.
no relu in narrow layers (2)
+ self.layers = [Layer(sizes[i], sizes[i + 1], nonlin=sizes[i + 1] != 1) for i in range(len(nouts))]
! A layer of one neuron need not be the last: in MLP(2, [1, 1]) the first layer needs its relu. Choose by the position
! of the layer, not by its size.
every layer gets the inputs
+ self.layers = [Layer(nin, sizes[i + 1], nonlin=i != last) for i in range(len(nouts))]
! The input of a layer is the output of the layer before it, not the input of the network.

gradients reset in each call (3)
  def __call__(self, x):
+     self.zero_grad()
! Computing a score must not change the gradients. Only `zero_grad()` sets them to 0.
a list of one (3)
- return x[0]
+ return x
! Your last layer returns a list of one Value. Return the Value itself.

@ p.grad = 0.0
zero_grad changes only a name (3)
+ p = 0.0
! `p = 0.0` only rebinds the name p. Set `p.grad` to 0.
zero_grad of everything (3)
+ p.grad = p.data = 0.0
! Reset only the gradients.

list of lists
- return [p for layer in self.layers for p in layer.parameters()]
+ return [each.parameters() for each in self.layers]
! `parameters()` is one flat list of Values.
""",
    ),
    also_wrong=r"""
# inserts the first size
class InsertsTheFirstSize(MLP):
    def __init__(self, nin, nouts):
        super().__init__(nin, nouts)
        nouts.insert(0, nin)
! work on a copy
# a score without its graph
class DetachesItsScore(MLP):
    def __call__(self, x):
        return Value(super().__call__(x).data)
""",
)


COUNT = Exercise(
    id="03.5",
    title="Count the parameters",
    prompt="How many parameters does `MLP(2, [16, 16, 1])` have? A neuron has one weight per input and a bias. "
    "Count before you run `len(model.parameters())`.",
    minutes=3,
    difficulty=1,
    solution=337,
    hints=(
        "The first layer has 16 neurons, each with 2 weights and a bias: 48 parameters.",
        "The second layer has 16 neurons with 17 parameters each, and the last layer has one neuron with 17.",
    ),
    mistakes=(
        Mistake("no biases", 304, "Those are the weights. Each of the 33 neurons has a bias too."),
        Mistake("neurons", 33, "That is the number of neurons; each has several parameters."),
        Mistake("last bias", 336, "One bias is missing: the last neuron has one too.", hint=2),
        Mistake("the first two layers", 320, "The last layer is missing: one neuron with 17 parameters.", hint=2),
    ),
)


def hinge(scores, labels):
    """The mean of max(0, 1 - label * score) over all samples, as a Value."""
    losses = [(1 - label * score).relu() for score, label in zip(scores, labels)]
    return sum(losses) / len(losses)


def _loss_and_gradients(function, scores, labels):
    scores = [Value(score) for score in scores]
    loss = function(scores, labels)
    if not isinstance(loss, Value):
        return _not_a_value(loss)
    loss.backward()
    return {"loss": loss.data, "gradients of the scores": [score.grad for score in scores]}


HINGE = Exercise(
    id="03.6",
    title="The hinge loss",
    prompt="Write `hinge(scores, labels)`: the mean over all samples of `max(0, 1 - label * score)`. Scores are "
    "Values, labels are -1 or 1, and the loss is a Value: `.relu()` computes max(0, ...). A sample on the right "
    "side with a margin of 1 costs nothing.",
    minutes=6,
    difficulty=2,
    solution=hinge,
    hints=(
        "For one sample: `(1 - label * score).relu()` is max(0, 1 - label * score).",
        "Collect these in a list and divide their `sum` by their number.",
    ),
    cases=(
        ([2.0, -0.5], [1, 1]),
        ([0.3, -0.4, 3.0], [1, -1, -1]),
        ([-2.0], [-1]),
        ([-0.999, 1.001, 0.25], [-1, 1, 1]),
        ([1.5, -1.25], [1, -1]),
        *drawn(2, lambda rng: (rng.normal(size=4).tolist(), rng.choice([-1, 1], size=4).tolist())),
    ),
    run=_loss_and_gradients,
    mistakes=slips(
        hinge,
        r"""
@ return sum(losses) / len(losses)
sum (2)
+ return sum(losses)
! That is the sum. The mean does not grow with the number of samples, so the same learning rate works for 10 samples and
! for 100.
plain numbers
+ return (sum(losses) / len(losses)).data
! Compute with the Values themselves, not with their .data: the backward pass starts at the loss.

@ losses = [(1 - label * score).relu() for score, label in zip(scores, labels)]
no margin
+ losses = [(-label * score).relu() for score, label in zip(scores, labels)]
! Without the 1, a score of exactly 0 would cost nothing, and the network could settle for scores of 0.
sign
+ losses = [(1 + label * score).relu() for score, label in zip(scores, labels)]
! Check the sign: a score on its label's side should make the loss smaller, so compute 1 minus label * score.
no hinge
+ losses = [(1 - label * score) for score, label in zip(scores, labels)]
! Without the relu, max(0, ...), samples that are already right can push the loss further and further below zero.
Python's max
+ losses = [max(0, 1 - label * score) for score, label in zip(scores, labels)]
! If no sample costs anything, Python's max returns only plain zeros, and there is no graph for the backward pass. `(1 -
! label * score).relu()` is max(0, ...) as a Value.
squared
+ losses = [(1 - label * score).relu() ** 2 for score, label in zip(scores, labels)]
! That is the squared hinge. Here the cost grows in a straight line.

relu of the mean
- losses = [(1 - label * score).relu() for score, label in zip(scores, labels)]
- return sum(losses) / len(losses)
+ losses = [(1 - label * score) for score, label in zip(scores, labels)]
+ return (sum(losses) / len(losses)).relu()
! The relu belongs around each sample. Around the mean, a sample that is right by a wide margin would pay for one that
! is wrong.
""",
    ),
    also_right=r"""
# by the Value's max
lambda scores, labels: sum((1 - s * y).max(0) for s, y in zip(scores, labels)) / len(labels)
""",
)


def train_step(model, inputs, labels, learning_rate):
    """One gradient step on the hinge loss. Returns the loss before the step, a number."""
    loss = hinge([model(x) for x in inputs], labels)
    model.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.data -= learning_rate * p.grad
    return loss.data


def a_small_model():
    """MLP(2, [3, 1]) with four points"""
    before = random.getstate()  # so that the reader's random state does not change
    random.seed(1)
    model = MLP(2, [3, 1])
    random.setstate(before)
    return model


def _three_steps(function, build, learning_rate):
    """The losses of three steps, and all parameters after them."""
    model = build()
    before = [p.data for p in model.parameters()]
    losses = [function(model, POINTS, SIDES, learning_rate) for _ in range(3)]
    after = [p.data for p in model.parameters()]
    if any(isinstance(number, Value) for number in after):
        return Told("nothing wrong yet, but the `.data` of a parameter is now a Value instead of a number")
    if None in losses:
        return None
    if any(isinstance(loss, Value) for loss in losses):
        return Told("a Value")
    if after == before:
        has_grads = any(p.grad for p in model.parameters())
        return Told(f"losses, but no parameter has moved ({'the' if has_grads else 'no'} gradients are there)")
    return {"losses": losses, "norm of all parameters": math.hypot(*after)}


STEP = Exercise(
    id="03.7",
    title="A training step",
    prompt="Write `train_step(model, inputs, labels, learning_rate)`. Compute the loss of all samples with "
    "`hinge(scores, labels)`, call `model.zero_grad()` and `loss.backward()`, and then move every `p` in "
    "`model.parameters()` one step against its gradient. Return the loss as a number, `loss.data`.",
    minutes=8,
    difficulty=2,
    solution=train_step,
    hints=(
        "Four lines: loss, zero_grad, backward, update. The scores are `[model(x) for x in inputs]`.",
        "The update: `for p in model.parameters(): p.data -= learning_rate * p.grad`.",
        "zero_grad comes before backward, because backward adds to the gradients.",
    ),
    cases=((a_small_model, 0.1), (a_small_model, 0.02), (a_small_model, 2.0)),
    run=_three_steps,
    mistakes=slips(
        train_step,
        r"""
never zero (3)
- model.zero_grad()
! The first step is right and the second is not: the gradients of the first step are still there, and backward adds to
! them.

@ p.data -= learning_rate * p.grad
uphill (2)
+ p.data += learning_rate * p.grad
! The loss grows: the gradient points uphill, so the step goes against it, `-=`.
another thing called p (2)
+ p = p - learning_rate * p.grad
! `p = p - ...` and `p -= ...` create a new Value named p, but the model keeps the old one. Change the number inside,
! `p.data -= ...`.
minus itself (2)
+ p.data -= learning_rate * p.data
! Subtract the learning rate times the gradient, `p.grad`; your step only shrinks every number.
no learning rate (2)
+ p.data -= p.grad
! Multiply the gradient by the learning rate.
the data a Value (2)
+ p.data = p - learning_rate * p.grad
! `p` is a Value and `p.data` is its number: compute with `p.data`.

no step (3)
- loss.backward()
! All gradients are 0 at the update. Do you call `backward()`? And is there a `zero_grad()` between that call and the
! update?

@ return loss.data
returns a Value
+ return loss
! Return `loss.data`: a Value would keep its whole graph in memory for as long as you keep the history of losses.
the loss afterwards
+ return hinge([model(x) for x in inputs], labels).data
! That is the loss after the step, and it costs a second forward pass: return the loss that you already have.
return in the loop (2)
+     return loss.data
! Only the first parameter has moved: the `return` is inside the loop.

one sample
- loss = hinge([model(x) for x in inputs], labels)
+ loss = hinge([model(x) for x in inputs[:1]], labels[:1])
! Compute the loss of all samples.
""",
    ),
    also_right=r"""
from mlx_grpo_kit.scalar import nn

# zero grad at the end
def zero_grad_at_the_end(model, inputs, labels, learning_rate):
    loss = hinge([model(x) for x in inputs], labels)
    loss.backward()
    nn.sgd_step(model.parameters(), learning_rate)
    model.zero_grad()
    return loss.data
""",
)


def accuracy(scores, labels):
    """The share of samples whose score has the sign of its label, between 0 and 1."""
    right = sum((score.data > 0) == (label > 0) for score, label in zip(scores, labels))
    return right / len(labels)


ACCURACY = Exercise(
    id="03.8",
    title="Accuracy",
    prompt="Write `accuracy(scores, labels)`: the share of samples whose score (a Value) has the sign of its label (-1 "
    "or 1), a number between 0 and 1.",
    minutes=4,
    difficulty=1,
    solution=accuracy,
    hints=(
        "`score.data > 0` says whether the network predicts +1, and `label > 0` whether the label is +1.",
        "`(score.data > 0) == (label > 0)` is True for a right answer, and `sum` counts True as 1. Divide by the "
        "number of samples.",
    ),
    cases=(
        ([2.0, -0.5, 0.1, -3.0], [1, 1, 1, -1]),
        ([0.2, -0.2], [-1, 1]),
        ([1.0, -1.0, 5.0], [1, -1, -1]),
        ([1e-9], [1]),
        ([2.0, 2.0, -1.0, 2.0], [1, 1, 1, -1]),
        *drawn(3, lambda rng: (rng.normal(size=7).tolist(), rng.choice([-1, 1], size=7).tolist())),
    ),
    run=lambda function, scores, labels: function([Value(score) for score in scores], labels),
    mistakes=slips(
        accuracy,
        r"""
@ return right / len(labels)
count (2)
+ return right
! That is the number of right samples. Divide it by the number of samples.
percent (2)
+ return 100 * right / len(labels)
! That is a percentage; a share is between 0 and 1.

@ right = sum((score.data > 0) == (label > 0) for score, label in zip(scores, labels))
equal
+ right = sum(score.data == label for score, label in zip(scores, labels))
! A score is almost never exactly -1 or 1. Only its sign counts.
margin
+ right = sum(score.data * label >= 1 for score, label in zip(scores, labels))
! A score on the right side of 0 counts as right; it does not need a margin of 1.
rounded
+ right = sum(round(score.data) == label for score, label in zip(scores, labels))
! Rounding turns a small score into 0 and a large one into 2. Only the sign counts.
label 1 alone
+ right = sum(score.data > 0 and label > 0 for score, label in zip(scores, labels))
! A negative score with label -1 is right as well.
errors
+ right = sum((score.data > 0) != (label > 0) for score, label in zip(scores, labels))
! That is the share of wrong answers.
""",
    ),
    also_right=r"""
import numpy as np

# by the sign
lambda scores, labels: np.mean(np.sign([s.data for s in scores]) == labels)
# by the product
lambda scores, labels: sum(s * y > 0 for s, y in zip(scores, labels)) / len(scores)
""",
)
