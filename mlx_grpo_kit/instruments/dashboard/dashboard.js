// The dashboard's page: small linked curves, the completions of the step under the cursor, and the controls.
//
// The kernel sends columns of numbers: all of them once, then those of new steps only. The cursor moves, the table is
// sorted and filtered here, without the kernel; what a step's completions were comes along with the newest steps, and
// is asked for where it is not at hand.

const HEIGHT = 104, LEFT = 44, RIGHT = 12, TOP = 6, BOTTOM = 18;  // of a curve and its margins, in pixels
const MOST_KEPT = 800;  // steps whose completions the page remembers
const NEIGHBOURS = 24;  // steps on each side that are asked for with the one under the cursor
const MOST_ROWS = 300;  // of the table
const FIRST_ROWS = 16, REST = 120;  // rows that are drawn at once, which fill its box; milliseconds until the others are

const last = list => list[list.length - 1];
const isNumber = value => value !== null && value !== undefined;

// The place of the last step that is not after `step`, 0 at least.
const placeOf = (steps, step) => {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle - 1;
  }
  return low;
};

// Exponential moving average with weights that sum to one from the first value on; null stays a gap.
const smoothed = smoothing => values => {
  let total = 0, weight = 0;
  return values.map(value => {
    if (!isNumber(value)) return null;
    total = smoothing * total + value;
    weight = smoothing * weight + 1;
    return total / weight;
  });
};

// Round numbers for an axis, two to five, with their words.
const ticks = (low, high) => {
  const rough = (high - low) / 3, power = 10 ** Math.floor(Math.log10(rough));
  const sizes = [1, 2, 5, 10].map(factor => factor * power), fits = sizes.findIndex(size => size >= rough * 0.999);
  const isAlone = Math.floor(high / sizes[fits]) === Math.ceil(low / sizes[fits]);
  const step = sizes[isAlone ? Math.max(fits - 1, 0) : fits];
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) {
    const value = at * step;
    found.push([value, value === 0 ? "0" : digits > 4 ? value.toExponential(1).replace(".0e", "e")
      : Math.abs(value) >= 1e5 ? value.toExponential(1) : value.toFixed(digits)]);
  }
  return found;
};

// A path through points; where many share a pixel's column, through the lowest and the highest of them.
const pathOf = (steps, values, x, y) => {
  const path = [];
  let pen = "M", column = null, low = 0, high = 0, end = 0;
  const flush = () => {
    if (column === null) return;
    path.push(pen, column, " ", y(low).toFixed(1));
    if (high !== low) path.push("L", column, " ", y(high).toFixed(1));
    if (end !== high) path.push("L", column, " ", y(end).toFixed(1));
    pen = "L";
    column = null;
  };
  steps.forEach((step, place) => {
    const value = values[place];
    if (!isNumber(value)) { flush(); pen = "M"; return; }
    const at = x(step).toFixed(steps.length > 400 ? 0 : 1);
    if (at !== column) { flush(); column = at; low = high = end = value; return; }
    low = Math.min(low, value);
    high = Math.max(high, value);
    end = value;
  });
  flush();
  return path.join("");
};

// One curve: a heading with the numbers under the cursor, and a drawing that is pulled along by a pointer or by keys.
class Curve {
  constructor(spec, hooks) {
    this.spec = spec;
    const several = Object.keys(spec.lines).length > 1;
    this.values = Object.keys(spec.lines).map((words, place) => {
      const mark = h("i", {class: `kit-mark kit-color${place}`});
      const value = h("b", {}, "");
      return {value, node: h("span", {}, several ? mark : null, several ? h("span", {}, words) : null, value)};
    });
    const heading = h("div", {class: `kit-heading${several ? " kit-several" : ""}`, title: spec.help || null},
                      h("span", {}, spec.title), ...this.values.map(({node}) => node));
    this.still = s("g");
    this.cursor = s("g");
    this.svg = s("svg", {height: HEIGHT, role: "slider", "aria-label": `step, over ${spec.title}`, tabindex: -1},
                 this.still, this.cursor);
    this.node = h("div", {class: "kit-curve"}, heading, this.svg);
    const move = event => {
      const box = this.svg.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      hooks.go(share * this.longest);
    };
    this.svg.addEventListener("pointerdown", event => {
      if (event.button) return;
      this.svg.setPointerCapture(event.pointerId);
      this.svg.focus({preventScroll: true});
      move(event);
    });
    this.svg.addEventListener("pointermove", event => { if (event.buttons & 1) move(event); });
    this.svg.addEventListener("keydown", event => hooks.key(event));
  }

  draw(run, width) {
    const {spec} = this, names = Object.values(spec.lines), smooth = smoothed(spec.smoothing);
    const column = name => run.columns[name] ?? [];
    const main = names.map(column);
    const greys = run.abandoned.map(branch => [branch.steps, branch.columns[names[0]] ?? []]);
    const edges = spec.between ? spec.between.map(column) : spec.spread ? [-1, 1].map(sign =>
      main[0].map((value, place) => {
        const spread = column(spec.spread)[place];
        return isNumber(value) && isNumber(spread) ? value + sign * spread : null;
      })) : [];
    let low = Infinity, high = -Infinity;
    for (const values of [...main, ...greys.map(([, values]) => values), ...edges.map(smooth)])
      for (const value of values) if (isNumber(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    const empty = this.empty = low > high;
    if (empty) [low, high] = [0, 1];
    const flat = low === high ? [[low, String(Number(low.toPrecision(3)))]] : null;
    const margin = 0.06 * (high - low) || 0.06 * Math.abs(high) || 0.05;
    [low, high] = [low - margin, high + margin];
    this.longest = run.longest;
    this.x = step => LEFT + (width - LEFT - RIGHT) * step / run.longest;
    this.y = value => TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low);
    this.smooth = main.map(smooth);

    const {x, y} = this, parts = [], floor = HEIGHT - BOTTOM;
    for (const [value, words] of empty ? [] : flat ?? ticks(low, high)) {
      parts.push(s("path", {class: "kit-grid", d: `M${LEFT} ${y(value).toFixed(1)}H${width - RIGHT}`}));
      parts.push(s("text", {x: LEFT - 5, y: y(value) + 4, "text-anchor": "end"}, words));
    }
    for (const [value, words] of ticks(0, run.longest)) {
      const anchor = x(value) > width - 28 ? "end" : "middle";
      parts.push(s("text", {x: anchor === "end" ? width : x(value), y: HEIGHT - 5, "text-anchor": anchor}, words));
    }
    parts.push(s("path", {class: "kit-axis", d: `M${LEFT} ${TOP}V${floor}H${width - RIGHT}`}));
    for (const step of empty ? [] : Object.keys(run.changes))
      parts.push(s("path", {class: "kit-change", d: `M${x(step - 0.5).toFixed(1)} ${TOP}V${floor}`}));
    greys.forEach(([steps, values], number) => {
      const end = values.findLastIndex(isNumber), drawn = smooth(values);
      if (end < 0) return;
      parts.push(s("path", {class: `kit-abandoned kit-branch${number % 4}`, d: pathOf(steps, drawn, x, y)}));
      if (greys.length > 1)
        parts.push(s("text", {class: "kit-number", x: x(steps[end]) + 3, y: y(drawn[end]) + 4}, number + 1));
    });
    if (edges.length) {
      const [below, above] = edges.map(smooth);
      const known = run.steps.map((_, place) => place).filter(place => isNumber(below[place]) && isNumber(above[place]));
      const edge = (values, places) => pathOf(places.map(place => run.steps[place]), places.map(place => values[place]), x, y);
      if (known.length)
        parts.push(s("path", {class: "kit-band",
                              d: edge(above, known) + edge(below, known.reverse()).replace("M", "L") + "z"}));
    }
    main.forEach((values, place) => {
      parts.push(s("path", {class: `kit-raw kit-color${place}`, d: pathOf(run.steps, values, x, y)}));
      const d = pathOf(run.steps, this.smooth[place], x, y);
      parts.push(s("path", {class: "kit-halo", d}), s("path", {class: `kit-line kit-color${place}`, d}));
    });
    if (empty) parts.push(s("text", {x: (LEFT + width) / 2, y: HEIGHT / 2, "text-anchor": "middle"},
                           run.steps.length ? spec.empty : "no values yet"));
    this.svg.setAttribute("width", width);
    this.still.replaceChildren(...parts);
  }

  drawCursor(run, place, step, least) {
    const parts = [];
    Object.values(this.spec.lines).forEach((name, line) => {
      const value = run.columns[name]?.[place];
      this.values[line].value.textContent = threeDigits(value);
      if (isNumber(value))
        parts.push(s("circle", {class: `kit-dot kit-color${line}`, cx: this.x(step), cy: this.y(value), r: 3.5}));
    });
    if (step !== undefined) {
      const at = this.x(step).toFixed(1);
      parts.unshift(s("path", {class: "kit-cursor", d: `M${at} ${TOP}V${HEIGHT - BOTTOM}`}));
      this.svg.setAttribute("aria-valuemin", least);
      this.svg.setAttribute("aria-valuemax", last(run.steps));
      this.svg.setAttribute("aria-valuenow", step);
      const words = this.values.map(({value}) => value.textContent).join(", ");
      this.svg.setAttribute("aria-valuetext", `step ${step}: ${this.spec.title} ${words}`);
    } else this.svg.removeAttribute("aria-valuenow");
    this.cursor.replaceChildren(...(this.empty ? [] : parts));
  }
}

// The completions of one step, which are rows as the kernel's `_row` makes them.
class Completions {
  constructor() {
    this.rows = [];
    this.sort = {title: "group", down: false};
    this.group = null;
    this.filter = h("input", {type: "search", placeholder: "filter by text", "aria-label": "filter completions by text",
                              oninput: () => this.drawTable()});
    this.count = h("span", {class: "kit-soft", role: "status"});
    this.groups = h("div", {class: "kit-groups", role: "group", "aria-label": "groups of this step"});
    this.head = h("thead");
    this.body = h("tbody");
    this.heading = h("b");
    this.box = h("div", {class: "kit-scroll", tabindex: 0, role: "group", "aria-label": "completions"},
                 h("table", {}, this.head, this.body));
    this.node = h("div", {}, h("div", {class: "kit-row"}, this.heading, this.filter, this.count), this.groups, this.box);
  }

  show(rows, heading) {
    this.heading.textContent = heading;
    if (rows === this.rows) return;
    this.rows = rows;
    const functions = [...new Set(rows.flatMap(row => Object.keys(row[7] ?? {})))];
    this.columns = [
      {title: "group", of: row => row[0], words: row => isNumber(row[0]) ? String(row[0] + 1) : ""},
      {title: "prompt", of: row => row[1], text: true},
      {title: "completion", of: row => row[2], text: true},
      ...(rows.some(row => isNumber(row[8])) ? [{title: "right answer", of: row => row[8] ?? "", text: true}] : []),
      {title: "reward", of: row => row[3], words: row => threeDigits(row[3])},
      ...functions.map(name => ({title: name, of: row => row[7]?.[name], words: row => threeDigits(row[7]?.[name])})),
      {title: "advantage", of: row => row[4], words: row => !isNumber(row[4]) ? "–" :
        (row[4] < 0 ? "−" : row[4] > 0 ? "+" : "") + Math.abs(row[4]).toFixed(2) + (row[4] > 0 ? " ▲" : row[4] < 0 ? " ▼" : " •")},
      {title: "tokens", of: row => row[5], words: row => isNumber(row[5]) ? String(row[5]) : "–"},
      {title: "ended", of: row => row[6], words: row => row[6] === null ? "–" : row[6] ? "itself" : "cut off"},
    ];
    this.drawGroups();
    this.drawTable();
  }

  drawGroups() {
    const groups = [];
    for (const row of this.rows) {
      const before = last(groups);
      if (before && before.number === row[0] && before.prompt === row[1]) before.rows.push(row);
      else groups.push({number: row[0], prompt: row[1], rows: [row]});
    }
    if (!groups.some(group => group.number === this.group)) this.group = null;
    const focused = [...this.groups.children].indexOf(document.activeElement);
    this.groups.replaceChildren(...groups.map(group => {
      const scored = group.rows.filter(row => isNumber(row[3]));
      const mean = scored.length ? scored.reduce((sum, row) => sum + row[3], 0) / scored.length : null;
      const squares = group.rows.map(row => h("i", {class: row[4] > 0 ? "kit-up" : row[4] < 0 ? "kit-down" : "kit-tied",
        style: `--kit-strength:${row[4] ? (35 + 30 * Math.min(Math.abs(row[4]), 2)).toFixed(0) : 100}%`}));
      const words = `group ${isNumber(group.number) ? group.number + 1 : ""}, ${group.prompt}: mean reward ` +
        `${threeDigits(mean)}, ${group.rows.filter(row => row[4] > 0).length} of ${group.rows.length} pushed up`;
      return h("button", {type: "button", title: words, "aria-label": words, "aria-pressed": String(group.number === this.group),
        onclick: () => {
          this.group = group.number === this.group ? null : group.number;
          this.drawGroups();
          this.drawTable();
        }}, h("span", {class: "kit-mono"}, group.prompt.length > 18 ? group.prompt.slice(0, 17) + "…" : group.prompt),
        h("span", {class: "kit-squares"}, ...squares), h("span", {}, threeDigits(mean)));
    }));
    if (focused >= 0) this.groups.children[focused]?.focus({preventScroll: true});
  }

  drawTable() {
    if (!this.columns) return;
    const wanted = this.filter.value.toLowerCase();
    const column = this.columns.find(({title}) => title === this.sort.title) ?? this.columns[0];
    const rows = this.rows.filter(row => (this.group === null || row[0] === this.group) &&
      (!wanted || `${row[1]}\n${row[2]}\n${row[6] === false ? "cut off" : ""}`.toLowerCase().includes(wanted)));
    const sign = this.sort.down ? -1 : 1;
    rows.sort((one, other) => {
      const a = column.of(one), b = column.of(other);
      if (!isNumber(a) || !isNumber(b)) return isNumber(b) - isNumber(a);  // what has no value comes last
      return a < b ? -sign : a > b ? sign : 0;
    });
    const focused = [...this.head.querySelectorAll("button")].indexOf(document.activeElement);
    this.head.replaceChildren(h("tr", {}, ...this.columns.map(({title}) => {
      const sorted = title === column.title;
      return h("th", {scope: "col", "aria-sort": sorted ? (this.sort.down ? "descending" : "ascending") : null},
        h("button", {type: "button", title: `sort by ${title}`, onclick: () => {
          this.sort = {title, down: sorted ? !this.sort.down : ["reward", "advantage", "tokens"].includes(title)};
          this.drawTable();
        }}, title, sorted ? (this.sort.down ? " ▾" : " ▴") : ""));
    })));
    if (focused >= 0) this.head.querySelectorAll("button")[focused]?.focus({preventScroll: true});
    this.body.replaceChildren(...rows.slice(0, FIRST_ROWS).map(row => this.line(row)));
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.body.append(...rows.slice(FIRST_ROWS, MOST_ROWS).map(row => this.line(row))), REST);
    this.count.textContent = !this.rows.length ? "" : rows.length === this.rows.length ? `${rows.length} completions`
      : `${rows.length} of ${this.rows.length} completions`;
  }

  line(row) {
    const pushed = row[4] > 0 ? "kit-up" : row[4] < 0 ? "kit-down" : null;
    const strength = row[4] ? `--kit-strength:${(6 + 8 * Math.min(Math.abs(row[4]), 2)).toFixed(0)}%` : null;
    return h("tr", {class: pushed, style: strength}, ...this.columns.map(each =>
      h("td", {class: each.text ? "kit-mono" : null}, each.text ? this.cell(each.of(row)) : each.words(row))));
  }

  // Text to read; a long one opens.
  cell(text) {
    if (text === "") return h("span", {class: "kit-soft"}, "(empty)");
    if (text.length <= 160) return text;
    return h("details", {}, h("summary", {}, text.slice(0, 140) + "…"), text.slice(140));
  }
}

const secondsInWords = seconds => seconds < 90 ? `${seconds.toFixed(0)} s`
  : seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;

const render = ({model, el}) => {
  const about = model.get("data");
  const run = {steps: [], columns: {}, abandoned: [], changes: {}, kept: new Set(), panels: [], turns: 0, longest: 5};
  let status = {state: "", over: true, health: []}, cursor = null, curves = [], isNew = true, width = 0;
  const texts = new Map();  // step -> rows of its completions

  // -- controls
  const order = name => {
    model.send({number: "order", question: {order: name, step: stepNow() ?? 0, rate: rate.value,
                                            reward: reward.value}});
    order.gives = name === "change" || name === "rewind";  // what was typed
    clearTimeout(order.timer);
    order.timer = setTimeout(() => say(BUSY), LATE);
  };
  const button = (words, title, onclick) => h("button", {type: "button", title, onclick}, words);
  // The second click of a double one would mean the opposite.
  const main = button("Start", "", event => { if (event.detail < 2) order(main.order); });
  const single = button("Step", "Do one step, then pause", () => order("step"));
  const stop = button("Stop", "End the run after this step; it can go on later", () => order("stop"));
  const rate = h("input", {type: "text", inputmode: "decimal", size: 8, "aria-label": "learning rate"});
  const reward = h("select", {"aria-label": "reward"}, ...about.rewards.map(name => h("option", {value: name}, name)));
  const change = button("Use from now on", "The run goes on with this learning rate and reward", () => order("change"));
  const rewind = button("Rewind", "", () => order("rewind"));
  const schedule = about.schedule === "constant" ? null : h("span", {class: "kit-soft"}, `(then ${about.schedule})`);
  const settings = h("form", {class: "kit-row", hidden: !about.steers, onsubmit: event => {
    event.preventDefault();
    order("change");
  }}, h("label", {}, "learning rate ", rate), schedule,
    about.rewards.length ? h("label", {}, "reward ", reward) : null, change, rewind);
  const controls = h("div", {class: "kit-row", hidden: !about.trains}, main, single, stop);

  // -- words
  const state = h("b", {role: "status"}), words = h("span", {});
  const bar = h("i"), progress = h("div", {class: "kit-progress", role: "progressbar", "aria-label": "steps done"}, bar);
  const complaint = h("div", {class: "kit-complaint", role: "alert", hidden: true});
  const health = h("ul", {class: "kit-health", "aria-label": "health of the run", hidden: true});
  const say = text => { complaint.textContent = text; complaint.hidden = !text; };

  // -- curves and completions
  const grid = h("div", {class: "kit-curves"});
  const newest = button("Newest step", "Follow the run again", () => go(Infinity));
  const where = h("span", {class: "kit-where"});
  const completions = new Completions();
  el.classList.add("kit-widget", "kit-dashboard");
  el.replaceChildren(
    h("div", {class: "kit-row"}, about.title ? h("b", {class: "kit-title"}, about.title) : null, state, words),
    progress, h("div", {class: "kit-row kit-controls"}, controls, settings), complaint, health, grid,
    h("div", {class: "kit-row"}, where, newest), completions.node);

  // The cursor may stand before the first step, where the run can be turned back to: its place is -1 then.
  const least = () => Math.min(status.first ?? Infinity, run.steps[0]);
  const isBefore = () => cursor !== null && cursor < run.steps[0];
  const place = () => cursor === null ? Math.max(run.steps.length - 1, 0) : isBefore() ? -1 : placeOf(run.steps, cursor);
  const stepNow = () => isBefore() ? cursor : run.steps[place()];
  const go = step => {
    if (!run.steps.length) return;
    cursor = step >= last(run.steps) ? null : Math.max(Math.round(step), least());
    moved();
  };
  const key = event => {
    const now = stepNow(), page = Math.max(1, Math.round(run.longest / 20));
    const to = {ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - page,
                PageUp: now + page, Home: -Infinity, End: Infinity}[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    go(to);
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
      const step = Number(name), known = texts.get(step) ?? rows;  // what comes twice is not drawn twice
      texts.delete(step);
      texts.set(step, known);
    }
    for (const step of texts.keys()) { if (texts.size <= MOST_KEPT) break; texts.delete(step); }
  };
  // The step nearest to the cursor, not after it, of which completions were kept.
  const keptBefore = step => {
    for (let at = placeOf(run.steps, step); at >= 0; at--) if (run.kept.has(run.steps[at])) return run.steps[at];
    return null;
  };

  const drawCompletions = () => {
    const step = stepNow();
    if (step === undefined) return completions.show([], "Completions will stand here, from the first step on.");
    if (isBefore()) return completions.show([], `Step ${step}, before the training: no completions.`);
    const kept = keptBefore(step);
    if (kept === null) return completions.show([], "No completions were kept.");
    const rows = texts.get(kept);
    if (rows) return completions.show(rows, `Step ${kept}` + (kept === step ? "" : `, as none were kept of ${step}`));
    completions.heading.textContent = `Step ${kept}: asking the kernel …`;
    const near = run.steps.slice(Math.max(0, place() - NEIGHBOURS), place() + NEIGHBOURS)
      .filter(each => run.kept.has(each) && !texts.has(each) && each !== kept)
      .sort((one, other) => Math.abs(one - kept) - Math.abs(other - kept));
    ask({completions: [kept, ...near]});
  };
  const drawCursor = () => {
    const at = place(), step = stepNow();
    curves.forEach(curve => curve.drawCursor(run, at, step, least()));
    where.textContent = step === undefined ? "" : `step ${step}` + (run.changes[step] ? `: ${run.changes[step]}` : "") +
      (cursor === null ? ", the latest. Drag over a curve, or press ← on it, to look back."
        : isBefore() ? ", before the training, under the cursor" : ", under the cursor");
    newest.hidden = cursor === null;
    rewind.textContent = cursor === null ? "Rewind" : `Rewind to step ${step}`;
    rewind.title = status.noWayBack || (cursor === null ? "Drag over a curve to an earlier step first"
      : `Go on from the weights of step ${step} with this learning rate and reward`);
    rewind.disabled = cursor === null || !isNumber(status.first) || step < status.first;
    drawCompletions();
  };
  const draw = () => {
    if (isNew) {
      curves = run.panels.map(spec => new Curve(spec, {go, key}));
      grid.replaceChildren(...curves.map(curve => curve.node));
      if (curves.length) curves[0].svg.setAttribute("tabindex", 0);
      isNew = false;
    }
    const inside = curves[0]?.node.clientWidth;
    if (inside) width = inside;
    run.longest = Math.max(5, status.maxSteps ?? 0, last(run.steps) ?? 0, ...run.abandoned.map(each => last(each.steps)));
    curves.forEach(curve => curve.draw(run, width || 300));
    drawCursor();
  };
  const moved = onceAFrame(drawCursor), changed = onceAFrame(draw);

  const showStatus = () => {
    const {maxSteps, step, over} = status;
    state.textContent = status.state;
    words.textContent = (step ? `step ${step}${maxSteps ? ` of ${maxSteps}` : ""}` : "no step yet") +
      (status.seconds ? ` · ${secondsInWords(status.seconds)}` : "") +
      (!over && isNumber(status.left) ? `, about ${secondsInWords(status.left)} left` : "") +
      (about.steers ? ` · learning rate ${status.rate}${status.reward ? `, reward ${status.reward}` : ""}` : "");
    progress.hidden = !maxSteps;
    bar.style.width = `${100 * step / (maxSteps || 1)}%`;
    for (const [name, value] of Object.entries({valuemin: 0, valuemax: maxSteps ?? 0, valuenow: step ?? 0}))
      progress.setAttribute(`aria-${name}`, value);
    const paused = !over && status.state === "paused", atEnd = maxSteps && step >= maxSteps;
    [main.order, main.textContent] = over ? ["go on", step ? "Go on" : "Start"] : paused ? ["go on", "Resume"] : ["pause", "Pause"];
    main.disabled = status.state === "pausing" || status.state === "stopping" || (over && atEnd);
    single.disabled = atEnd || status.state === "stopping";
    stop.disabled = over || status.state === "stopping";
    if (document.activeElement !== rate && !rate.typed && isNumber(status.rate)) rate.value = String(status.rate);
    if (status.reward && !reward.typed) reward.value = status.reward;
    change.disabled = !rate.typed && !reward.typed;
    health.hidden = !status.health.length;
    if (health.textContent !== status.health.join(""))
      health.replaceChildren(...status.health.map(text => h("li", {}, text)));
  };
  for (const field of [rate, reward])
    field.addEventListener("input", () => { field.typed = true; change.disabled = false; });

  // New columns behind those that are here, or in the place of all.
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
      if (order.gives) rate.typed = reward.typed = false;
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
  const watcher = new ResizeObserver(() => { if (grid.clientWidth && curves[0]?.node.clientWidth !== width) changed(); });
  watcher.observe(grid);
  return () => { watcher.disconnect(); model.off("msg:custom", hear); };
};

export default {render};
