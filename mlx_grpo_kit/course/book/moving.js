// Pictures that move on a page without a kernel: flip-books, and instruments that get foreseen answers.
//
// A still picture stands before each `.kit-moving`. Its part is loaded when the reader comes near, and then takes the
// place of the still picture on the screen; paper, and a browser in which anything here fails, keep the still one.
(() => {
const folder = new URL("moving/", document.currentScript.src);
const arrivals = new Map(), instruments = new Map(), scripts = new Map();

const load = name => {
  if (!scripts.has(name)) scripts.set(name, new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, {src: new URL(name, folder), onload: resolve, onerror: reject});
    document.head.append(script);
  }));
  return scripts.get(name);
};
const unpack = async packed => {
  const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
};
// What the files in the folder call.
window.kitPart = (id, kind, packed) => arrivals.set(id, {kind, packed});
window.kitInstrument = (kind, css, module) => {
  const sheet = document.createElement("style");
  sheet.textContent = css;
  document.head.append(sheet);
  instruments.set(kind, module);
};

const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

// Controls whose values choose one of the stored pictures.
const flipBook = (el, {controls, pictures, frames, note}) => {
  const at = controls.map(control => control.start), view = make("div", {class: "kit-view"});
  const draw = () => {
    const open = new Map([...view.querySelectorAll("details[data-box]")].map(box => [box.dataset.box, box.open]));
    view.style.minHeight = `${view.clientHeight}px`;  // a lower picture moves nothing
    view.innerHTML = pictures[frames[controls.reduce((sum, {words}, place) => sum * words.length + at[place], 0)]];
    view.querySelectorAll("[style*=overflow-x]").forEach(box => reach.observe(box));  // book.js
    for (const box of view.querySelectorAll("details[data-box]"))
      if (open.has(box.dataset.box)) box.open = open.get(box.dataset.box);
  };
  const field = ({name, kind, words, start}, place) => {
    const go = value => { at[place] = value; draw(); };
    if (kind === "range") {
      const input = make("input", {type: "range", min: 0, max: words.length - 1, value: start, "aria-label": name});
      const readout = make("output", {}, words[start]);
      readout.style.minWidth = `${Math.max(...words.map(each => each.length))}ch`;
      const say = () => { readout.textContent = words[input.value]; input.setAttribute("aria-valuetext", words[input.value]); };
      input.addEventListener("input", () => { say(); go(Number(input.value)); });
      say();
      return make("label", {}, name, input, readout);
    }
    if (kind === "check") {
      const box = make("input", {type: "checkbox", "aria-label": name});
      box.checked = start > 0;
      box.addEventListener("change", () => go(Number(box.checked)));
      return make("label", {}, box, name);
    }
    const menu = make("select", {"aria-label": name}, ...words.map(each => make("option", {}, each)));
    menu.selectedIndex = start;
    menu.addEventListener("change", () => go(menu.selectedIndex));
    return make("label", {}, name, menu);
  };
  el.append(make("div", {class: "kit-fields"}, ...controls.map(field)), view, make("div", {class: "kit-note"}, note));
  draw();
};

// The answer of an instrument to a question of its module; see foreseen.py.
const answerers = {
  dashboard: ({answers: {all, completions}}) => question =>
    question.completions
      ? {completions: Object.fromEntries(question.completions.flatMap(step => completions[step] ? [[step, completions[step]]] : []))}
      : question.others ? {names: []} : question.over ? {over: []} : all,
  generation_tree: ({data, answers, missing}) => ({prompt, path}) =>
    prompt === data.prompt && answers[path.join(" ")] || {complaint: `${missing}.`},
  microscope: ({data, answers, missing}) => ({rewards, ...settings}) => {
    const isOwn = data.batch.completions.every(({reward}, place) => rewards[place] === reward);
    return isOwn && answers[JSON.stringify(Object.values(settings))] || {complaint: missing};
  },
};
// A model like that of a widget, with a kernel that knows the foreseen answers.
const modelOf = (kind, foreseen) => {
  const answer = answerers[kind](foreseen), hearers = new Set();
  return {
    get: name => name === "data" ? foreseen.data : undefined,
    set() {},
    save_changes() {},
    on: (event, hear) => { if (event === "msg:custom") hearers.add(hear); },
    off: (event, hear) => hearers.delete(hear),
    send: ({number, question}) => setTimeout(() => hearers.forEach(hear => hear({number, answer: answer(question)}))),
  };
};
const instrument = async (el, kind, foreseen, words) => {
  await load(`${kind}.js`);
  el.append(make("p", {class: "kit-words"}, words));
  instruments.get(kind).render({model: modelOf(kind, foreseen), el: el.appendChild(make("div"))});
  for (const [name, step] of Object.entries(foreseen.steps ?? {}))
    el.querySelector(`input[type=range][aria-label="${name}"]`).step = step;
};

const move = async place => {
  const id = place.dataset.part, still = place.previousElementSibling;
  await load(`${id}.js`);
  const {kind, packed} = arrivals.get(id), part = await unpack(packed);
  const el = make("div", {role: "group", "aria-label": kind === "flip_book" ? "a picture with controls" : kind.replace("_", " ")});
  if (kind === "flip_book") flipBook(el, part);
  else await instrument(el, kind, part, still.querySelector("img")?.alt ?? still.querySelector("title")?.textContent ?? "");
  place.append(el);
  still.classList.add("kit-moved");
};
const near = new IntersectionObserver(changes => changes.filter(each => each.isIntersecting).forEach(({target}) => {
  near.unobserve(target);
  move(target).catch(error => console.error(`${target.dataset.part} stays a still picture:`, error));
}), {rootMargin: "800px"});
document.addEventListener("DOMContentLoaded", () =>
  document.querySelectorAll(".kit-moving").forEach(place => near.observe(place)));
})();
