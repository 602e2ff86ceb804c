// The dashboard's page: small linked curves, the completions of the step under the cursor, and the controls.
//
// The kernel sends columns of numbers: all of them once, then only those of new steps. The cursor and the table work
// here, without the kernel. The completions of the newest steps come along with the numbers; those of other steps are
// requested when they are needed.

const MOST_KEPT = 800;  // steps whose completions the page remembers
const NEIGHBOURS = 24;  // steps on each side of the cursor whose completions are requested along with its own

const secondsInWords = seconds => seconds < 90 ? `${seconds.toFixed(0)} s`
  : seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;

const render = ({model, el}) => {
  const about = model.get("data");
  const run = {steps: [], columns: {}, abandoned: [], changes: {}, changed: {}, kept: new Set(), panels: [], layers: [], turns: 0,
               longest: 5};
  let status = {state: "", over: true, health: []}, cursor = null, curves = [], isNew = true, width = 0;
  const texts = new Map();  // step -> rows of its completions
  let over = [];  // runs that are drawn over this one

  // -- controls
  const order = (name, others = {}) => {
    const question = {order: name, step: stepNow() ?? 0, rate: rate.value, reward: reward.value, ...others};
    if (length.typed && order.uses(name).includes(length)) question.steps = length.value;
    model.send({number: "order", question});
    order.gives = order.uses(name);
    clearTimeout(order.timer);
    order.timer = setTimeout(() => say(BUSY), LATE);
  };
  order.uses = name => ({change: fields(), rewind: fields(), "go on": [length]}[name] ?? []);  // the fields it reads
  const fields = () => [rate, length, reward];
  const button = (words, title, onclick) => h("button", {type: "button", title, onclick}, words);
  // The second click of a double click would have the opposite effect.
  const main = button("Start", "", event => { if (event.detail < 2) order(main.order); });
  const single = button("Step", "Do one step, then pause", () => order("step"));
  const stop = button("Stop", "End the run after this step; you can continue it later", () => order("stop"));
  const rate = h("input", {type: "text", inputmode: "decimal", size: 8, "aria-label": "learning rate"});
  const length = h("input", {type: "text", inputmode: "numeric", size: 6, "aria-label": "number of steps"});
  const reward = h("select", {"aria-label": "reward"}, ...about.rewards.map(name => h("option", {value: name}, name)));
  const change = button("Use from now on", "Continue with these settings", () => order("change"));
  const rewind = button("Rewind", "", () => order("rewind"));
  const schedule = about.schedule === "constant" ? null : h("span", {class: "kit-soft"}, `(then ${about.schedule})`);
  const settings = h("form", {class: "kit-row", hidden: !about.steers, onsubmit: event => {
    event.preventDefault();
    order("change");
  }}, h("label", {}, "learning rate ", rate), schedule,
    about.rewards.length ? h("label", {}, "reward ", reward) : null, h("label", {}, "steps ", length), change, rewind);
  const controls = h("div", {class: "kit-row", hidden: !about.trains}, main, single, stop);

  // -- words
  const state = h("b", {role: "status"}), words = h("span", {});
  const bar = h("i"), progress = h("div", {class: "kit-progress", role: "progressbar", "aria-label": "steps done"}, bar);
  const complaint = h("div", {class: "kit-complaint", role: "alert", hidden: true});
  const health = h("ul", {class: "kit-health", "aria-label": "health of the run", hidden: true});
  const say = text => { complaint.textContent = text; complaint.hidden = !text; };

  // -- curves and completions
  const grid = h("div", {class: "kit-curves"}), moreGrid = h("div", {class: "kit-curves"});
  const moreWords = h("summary", {});
  const more = h("details", {class: "kit-more", ontoggle: () => { isNew = true; changed(); }}, moreWords, moreGrid);
  const layers = new Layers(() => changed());
  const view = new View(() => changed(), () => cursor);
  const chosen = new Settings(about.settings);
  const askOthers = asker(model, answer => {
    say(answer.complaint ?? status.complaint);  // a late answer takes back that the kernel is busy
    if (answer.names) others.show(answer.names);
    if (answer.over) { over = answer.over; changed(); }
  });
  const others = new Others(() => askOthers({others: true}), names => askOthers({over: names}));
  const saved = h("div", {class: "kit-soft", role: "status"});
  const newest = button("Newest step", "Follow the run again", () => go(Infinity));
  const where = h("span", {class: "kit-where"});
  const completions = new Completions(!about.looks ? null : group => {
    order("look", {step: completions.step, group});
    looking.textContent = `Step ${completions.step} is repeated, and then shown in the microscope below.`;
  });
  const looking = h("div", {class: "kit-soft", role: "status"});
  el.classList.add("kit-widget", "kit-run", "kit-dashboard");
  el.replaceChildren(
    h("div", {class: "kit-row"}, about.title ? h("b", {class: "kit-title"}, about.title) : null, state, words),
    progress, h("div", {class: "kit-row kit-controls"}, controls, settings), complaint, health, view.node, grid, more,
    layers.node,
    h("div", {class: "kit-row"}, where, newest), completions.node, looking, chosen.node, others.node, saved);

  // The cursor may be before the first step, if the run can be rewound to there; its place is then -1.
  const least = () => Math.min(status.first ?? Infinity, run.steps[0]);
  const isBefore = () => cursor !== null && cursor < run.steps[0];
  const place = () => cursor === null ? Math.max(run.steps.length - 1, 0) : isBefore() ? -1 : placeOf(run.steps, cursor);
  const stepNow = () => isBefore() ? cursor : run.steps[place()];
  const go = step => {
    if (!run.steps.length) return;
    cursor = step >= last(run.steps) ? null : Math.max(Math.round(step), least());
    view.show(cursor);
    moved();
  };
  const key = event => {
    const now = stepNow(), page = Math.max(1, Math.round(run.longest / 20));
    const to = {ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - page,
                PageUp: now + page, Home: -Infinity, End: Infinity}[event.key];
    const zoom = {"+": 0.5, "=": 0.5, "-": 2, "0": Infinity}[event.key];
    if ((to ?? zoom) === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (zoom) view.by(zoom, cursor); else go(to);
  };

  const ask = asker(model, answer => {
    if (answer.complaint) return say(answer.complaint);
    if (answer.completions) remember(answer.completions);
    else {
      texts.clear();
      take(answer, true);
      status = answer.status;
      showStatus();
      changed();
    }
    say(status.complaint);
    if (answer.completions) moved();
  });
  const remember = found => {
    for (const [name, rows] of Object.entries(found)) {
      const step = Number(name), known = texts.get(step) ?? rows;  // rows that come twice are not drawn again
      texts.delete(step);
      texts.set(step, known);
    }
    for (const step of texts.keys()) { if (texts.size <= MOST_KEPT) break; texts.delete(step); }
  };
  // The latest step whose completions were kept, at the cursor or before it.
  const keptBefore = step => {
    for (let at = placeOf(run.steps, step); at >= 0; at--) if (run.kept.has(run.steps[at])) return run.steps[at];
    return null;
  };

  const drawCompletions = () => {
    const step = stepNow();
    if (step === undefined) return completions.show([], "Completions will appear here after the first step.");
    if (isBefore() || step === 0) return completions.show([], `Step ${step}, before training: no completions.`);
    const kept = keptBefore(step);
    if (kept === null) return completions.show([], "No completions were kept.");
    const rows = texts.get(kept);
    completions.step = kept;
    if (rows) return completions.show(rows, `Step ${kept}` + (kept === step ? "" : `; none were kept of step ${step}`));
    completions.heading.textContent = `Step ${kept}: waiting for the kernel …`;
    const near = run.steps.slice(Math.max(0, place() - NEIGHBOURS), place() + NEIGHBOURS)
      .filter(each => run.kept.has(each) && !texts.has(each) && each !== kept)
      .sort((one, other) => Math.abs(one - kept) - Math.abs(other - kept));
    ask({completions: [kept, ...near]});
  };
  const drawCursor = () => {
    const at = place(), step = stepNow();
    curves.forEach(curve => curve.drawCursor(run, at, step, least()));
    layers.drawCursor(run, at, step);
    where.textContent = step === undefined ? "" : `step ${step}` + (run.changes[step] ? `: ${run.changes[step]}` : "") +
      (cursor === null ? ", the latest. Drag over a curve, or press ← on it, to look back."
        : isBefore() ? ", before training, under the cursor" : ", under the cursor");
    newest.hidden = cursor === null;
    rewind.textContent = cursor === null ? "Rewind" : `Rewind to step ${step}`;
    rewind.title = status.noWayBack || (cursor === null ? "Drag over a curve to an earlier step first"
      : `Continue from the weights of step ${step} with these settings`);
    rewind.disabled = cursor === null || !isNumber(status.first) || step < status.first;
    drawCompletions();
  };
  const draw = () => {
    if (isNew) {
      const hooks = {go, key, zoom: (one, other) => view.between(one, other)};
      const [first, rest] = [false, true].map(isMore => run.panels.filter(spec => spec.more === isMore));
      const make = specs => specs.map(spec => new Curve(spec, hooks)), main = make(first), extra = more.open ? make(rest) : [];
      moreWords.textContent = `More curves (${rest.length})`;
      more.hidden = !rest.length;
      curves = [...main, ...extra];
      grid.replaceChildren(...main.map(curve => curve.node));
      moreGrid.replaceChildren(...extra.map(curve => curve.node));
      if (curves.length) curves[0].svg.setAttribute("tabindex", 0);
      isNew = false;
    }
    const inside = curves[0]?.node.clientWidth;
    if (inside) width = inside;
    run.longest = Math.max(5, status.maxSteps ?? 0, ...[run, ...run.abandoned, ...over].map(each => last(each.steps) ?? 0));
    view.fit(run.longest, last(run.steps) ?? 0);
    curves.forEach(curve => curve.draw(run, width || 300, view, over));
    chosen.show(run.changed);
    layers.draw(run, view);
    drawCursor();
  };
  const moved = onceAFrame(drawCursor), changed = onceAFrame(draw);

  const showStatus = () => {
    const {maxSteps, step, over: isOver} = status;
    state.textContent = status.state;
    words.textContent = (step ? `step ${step}${maxSteps ? ` of ${maxSteps}` : ""}` : "no step yet") +
      (status.seconds ? ` · ${secondsInWords(status.seconds)}` : "") +
      (!isOver && isNumber(status.left) ? `, about ${secondsInWords(status.left)} left` : "") +
      (about.steers ? ` · learning rate ${status.rate}${status.reward ? `, reward ${status.reward}` : ""}` : "");
    progress.hidden = !maxSteps;
    bar.style.width = `${100 * step / (maxSteps || 1)}%`;
    for (const [name, value] of Object.entries({valuemin: 0, valuemax: maxSteps ?? 0, valuenow: step ?? 0}))
      progress.setAttribute(`aria-${name}`, value);
    const paused = !isOver && status.state === "paused", atEnd = maxSteps && step >= maxSteps;
    [main.order, main.textContent] = isOver ? ["go on", step ? "Continue" : "Start"] : paused ? ["go on", "Resume"] : ["pause", "Pause"];
    const isLonger = Number(length.value) > step;
    main.disabled = status.state === "pausing" || status.state === "stopping" || (isOver && atEnd && !isLonger);
    main.title = isOver && atEnd && !isLonger ? "All steps are done; type a larger number of steps to continue" : "";
    single.disabled = atEnd || status.state === "stopping";
    stop.disabled = isOver || status.state === "stopping";
    if (document.activeElement !== rate && !rate.typed && isNumber(status.rate)) rate.value = String(status.rate);
    if (status.reward && !reward.typed) reward.value = status.reward;
    if (document.activeElement !== length && !length.typed && isNumber(maxSteps)) length.value = String(maxSteps);
    change.disabled = !fields().some(field => field.typed);
    saved.textContent = status.saved;
    health.hidden = !status.health.length;
    if (health.textContent !== status.health.join(""))
      health.replaceChildren(...status.health.map(text => h("li", {}, text)));
  };
  for (const field of fields())
    field.addEventListener("input", () => { field.typed = true; showStatus(); });

  // Append new columns to the present ones, or replace all of them.
  const take = (message, all) => {
    if (all) Object.assign(run, {steps: [], columns: {}, changes: {}, abandoned: message.abandoned, kept: new Set()});
    else if (message.first > run.steps.length || message.turns > run.turns + 1) return ask({all: true});
    else if (message.first < run.steps.length) cutAt(message.first, message.turns > run.turns);
    const before = run.steps.length;
    for (const [name, values] of Object.entries(message.columns)) {
      const column = run.columns[name] ??= [];
      while (column.length < before) column.push(null);
      for (const value of values) column.push(value);
    }
    for (const step of message.steps) run.steps.push(step);
    for (const column of Object.values(run.columns)) while (column.length < run.steps.length) column.push(null);
    for (const step of message.kept) run.kept.add(step);
    Object.assign(run.changes, message.changes);
    Object.assign(run, {changed: message.changed, layers: message.layers});
    run.turns = message.turns;
    if (JSON.stringify(run.panels) !== JSON.stringify(message.panels)) { run.panels = message.panels; isNew = true; }
    if (message.completions) remember(message.completions);
  };
  const cutAt = (first, rewound) => {
    const gone = run.steps.splice(first), columns = {};
    for (const [name, column] of Object.entries(run.columns)) columns[name] = column.splice(first);
    for (const step of gone) { run.kept.delete(step); texts.delete(step); delete run.changes[step]; }
    if (rewound) { run.abandoned.push({steps: gone, columns}); cursor = null; }
  };
  const hear = message => {
    if (message.number === "order") {
      clearTimeout(order.timer);
      const answer = message.answer;
      say(answer.complaint ?? answer.status.complaint);
      if (answer.complaint) return;
      for (const field of order.gives) field.typed = false;
      status = answer.status;
      showStatus();
      return moved();
    }
    if (!message.status) return;
    if (message.columns) { take(message, false); changed(); }
    if (message.status.complaint || status.complaint) say(message.status.complaint);
    status = message.status;
    showStatus();
    moved();
  };
  model.on("msg:custom", hear);
  ask({all: true});
  if (about.compare.length) {
    others.chosen = about.compare;
    askOthers({over: about.compare});
  }
  const watcher = new ResizeObserver(() => { if (grid.clientWidth && curves[0]?.node.clientWidth !== width) changed(); });
  watcher.observe(grid);
  return () => { watcher.disconnect(); model.off("msg:custom", hear); };
};

export default {render};
