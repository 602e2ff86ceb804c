// Functions that are prepended to every widget's module: elements, numbers as text, questions to the kernel.
//
// A module ends with `export default {render({model, el}) { ... }}`. Text, above all a model's, is put onto the page as
// a text node and never as markup.

// An element with attributes and children; a child that is not a node becomes text. `on...` attributes are listeners,
// and an attribute that is null, undefined or false is left out.
const makeElement = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined));
  return node;
};
const h = (tag, attributes, ...children) => makeElement(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  makeElement(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// A number with three digits, so that its width stays constant while it changes: 0.71 is "0.710"; null is "–".
const threeDigits = value => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0.00";
  const power = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3)))));
  if (power < -4 || power > 4) return value.toExponential(2).replace("e+", "e");
  return value.toFixed(Math.max(0, 2 - power));
};

// Questions to the kernel: `const ask = asker(model, answer => ...)`, then `ask({anything: "JSON"})`.
// While one question is unanswered, only the latest of the following ones waits, so that a drag builds up no queue. A
// restarted kernel never answers, so after `patience` milliseconds the next question is sent anyway. If an answer is
// late, a message says so until the answer arrives.
const BUSY = "The kernel is busy, perhaps with another cell. It will answer when it is done.", LATE = 1500;
const asker = (model, hear, patience = 5000) => {
  let number = 0, asked = 0, underWay = null, waiting = null, late = null;
  const send = question => {
    underWay = ++number + Math.random();  // a number that no other view of this model has
    asked = performance.now();
    clearTimeout(late);
    late = setTimeout(() => hear({complaint: BUSY}), LATE);
    model.send({number: underWay, question});
  };
  model.on("msg:custom", message => {
    if (message.number === undefined || message.number !== underWay) return;
    underWay = null;
    clearTimeout(late);
    const next = waiting;
    waiting = null;
    if (next) send(next);
    hear(message.answer);
  });
  return question => {
    if (underWay !== null && performance.now() - asked < patience) waiting = question;
    else send(question);
  };
};

// Call `draw` at most once per frame, however often it is requested.
const onceAFrame = draw => {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; draw(); });
  };
};
