// A small curve: a heading, a drawing with round numbers at its axes, and a cursor that you can drag.

const HEIGHT = 104, LEFT = 44, RIGHT = 12, TOP = 6, BOTTOM = 18;  // of a curve and its margins, in pixels
const WORDS_HEIGHT = 15;  // of a line of words in a curve without values
const FEW = 60;  // the most steps of a line with its own heights that has points without being smoothed
const last = list => list[list.length - 1];
const isNumber = value => value !== null && value !== undefined;
const SAME = 1e-6;  // smaller relative differences count as 0, because the kernel sends numbers with five digits
const letterOf = number => "ABCD"[number];

// The index of the last step that is not after `step`, but at least 0.
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

// A number with an exponent and just so many digits that numbers which are `step` apart differ.
const withExponent = (value, step) => {
  const digits = Math.floor(Math.log10(Math.abs(value)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9);
  return value.toExponential(Math.min(Math.max(digits, 0), 6)).replace("e+", "e");
};

// Two to five round numbers for an axis, with their texts.
const ticks = (low, high) => {
  const rough = (high - low) / 3, power = 10 ** Math.floor(Math.log10(rough));
  const sizes = [1, 2, 5, 10].map(factor => factor * power), fits = sizes.findIndex(size => size >= rough * 0.999);
  const isAlone = Math.floor(high / sizes[fits]) === Math.ceil(low / sizes[fits]);
  const step = sizes[isAlone ? Math.max(fits - 1, 0) : fits];
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) {
    const value = at * step;
    found.push([value, value === 0 ? "0" : digits > 4 || Math.abs(value) >= 1e5 ? withExponent(value, step)
      : value.toFixed(digits)]);
  }
  return found;
};

// Powers of ten for a logarithmic axis, with multiples such as 2 and 5 between them if there are few.
const logTicks = (low, high) => {
  const powers = [], found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) powers.push(power);
  const inside = powers.filter(power => 10 ** power >= low && 10 ** power <= high);
  const every = Math.ceil(inside.length / 5), factors = inside.length > 2 ? [1] : inside.length ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7];
  for (const power of powers) for (const factor of factors) {
    const value = factor * 10 ** power;
    if (value < low || value > high || (factor === 1 && power % every)) continue;
    found.push([value, Math.abs(power) > 3 ? value.toExponential(factor % 1 ? 1 : 0).replace("e+", "e")
      : String(Number(value.toPrecision(2)))]);
  }
  return found.slice(0, 6);
};

// True if values are usually more than one step apart, such as those of an evaluation every 20 steps.
const isSparse = values => {
  const places = [], gaps = [];
  values.forEach((value, place) => { if (isNumber(value)) places.push(place); });
  for (let at = 1; at < places.length; at++) gaps.push(places[at] - places[at - 1]);
  gaps.sort((one, other) => one - other);
  return places.length === 1 || gaps[(gaps.length - 1) >> 1] > 1;
};

// A path through points; of many points in one column of pixels, it visits the lowest and the highest.
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

// The colour and the dashes of a panel's line.
const lookOf = line => `kit-color${line % 6} kit-dash${line % 4}`;

// A path of points: strokes without a length, whose caps are round.
const pointsOf = (steps, values, x, y) => steps.map((step, place) =>
  isNumber(values[place]) ? `M${x(step).toFixed(1)} ${y(values[place]).toFixed(1)}h.01` : "").join("");

// The attributes of a table's row whose completion a step pushes up or down.
const pushOf = advantage => ({
  class: advantage > 0 ? "kit-up" : advantage < 0 ? "kit-down" : null,
  style: advantage ? `--kit-strength:${(6 + 8 * Math.min(Math.abs(advantage), 2)).toFixed(0)}%` : null,
});

// One curve: a heading with the numbers under the cursor, and a drawing whose cursor follows the pointer and the keys.
// `spec` is a RunPanel (dashboard/panels.py), whose lines are computed here, or a panel from curves_for_page (curves.py),
// which has its own log axis, `heights` of its lines, by metric, and a list of the metrics that are `rare`. The numbers
// of these panels are those of the lines, and the measured values are points, with numbers in parentheses.
class Curve {
  constructor(spec, hooks, height = HEIGHT) {
    Object.assign(this, {spec, height});
    const several = Object.keys(spec.lines).length > 1;
    this.values = Object.keys(spec.lines).map((words, line) => {
      const value = h("b", {}, ""), measured = h("span", {class: "kit-measured", hidden: !spec.heights});
      const mark = h("i", {class: `kit-mark ${lookOf(line)}`});
      const parts = several ? [mark, h("span", {}, words), value, measured] : [measured, value];
      return {name: several ? `${words} ` : "", value, measured, node: h("span", {}, ...parts)};
    });
    const heading = h("div", {class: `kit-heading${several ? " kit-several" : ""}`, title: spec.help || null},
                      h("span", {}, spec.title), ...this.values.map(({node}) => node));
    this.still = s("g");
    this.inside = s("rect", {x: LEFT - 1, y: TOP - 1, height: height - TOP - BOTTOM + 1});
    this.clip = `kit-inside-${Math.random().toString(36).slice(2)}`;  // in the page's one space of names
    this.cursor = s("g");
    this.mark = s("g");
    this.svg = s("svg", {height, role: "slider", "aria-label": `step on the curve of ${spec.title}`, tabindex: -1},
                 s("defs", {}, s("clipPath", {id: this.clip}, this.inside)), this.still, this.mark, this.cursor);
    this.node = h("div", {class: "kit-curve"}, heading, this.svg);
    const stepAt = event => {
      const box = this.svg.getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT), 0), 1);
      return this.from + share * (this.to - this.from);
    };
    let marked = null;  // the step at which a drag with Shift began
    this.svg.addEventListener("pointerdown", event => {
      if (event.button) return;
      this.svg.setPointerCapture(event.pointerId);
      this.svg.focus({preventScroll: true});
      marked = event.shiftKey && hooks.zoom ? stepAt(event) : null;
      if (marked === null) hooks.go(stepAt(event));
    });
    this.svg.addEventListener("pointermove", event => {
      if (!(event.buttons & 1)) return;
      if (marked === null) return hooks.go(stepAt(event));
      const ends = [marked, stepAt(event)].map(step => this.x(step)).sort((one, other) => one - other);
      this.mark.replaceChildren(s("rect", {class: "kit-zoomed", x: ends[0], y: TOP, width: ends[1] - ends[0],
                                           height: height - TOP - BOTTOM}));
    });
    this.svg.addEventListener("pointerup", event => {
      this.mark.replaceChildren();
      if (marked !== null) hooks.zoom(marked, stepAt(event));
      marked = null;
    });
    this.svg.addEventListener("keydown", event => hooks.key(event));
  }

  // `view` has the first and the last step to draw, the smoothing, and whether the axis is logarithmic. `over` has the
  // runs to draw over this one.
  draw(run, width, view, over) {
    const {spec, height} = this, names = Object.values(spec.lines), {from, to} = view;
    const smooth = smoothed(spec.smoothing ? view.smoothing : 0);
    const column = name => run.columns[name] ?? [];
    const isInside = step => step >= from && step <= to;
    const inside = (steps, values) => values.map((value, place) => isInside(steps[place]) ? value : null);
    const main = names.map(column);
    const others = [
      ...run.abandoned.map((branch, number) =>
        ({...branch, class: `kit-abandoned kit-branch${number % 4}`, mark: run.abandoned.length > 1 ? number + 1 : null})),
      ...over.map((other, number) => ({...other, class: `kit-over kit-over${number}`, mark: letterOf(number)})),
    ].map(each => ({...each, values: each.columns[names[0]] ?? []}));
    const edges = spec.between ? spec.between.map(column) : spec.spread ? [-1, 1].map(sign =>
      main[0].map((value, place) => {
        const spread = column(spec.spread)[place], end = column(spec.within?.[sign < 0 ? 0 : 1])[place];
        if (!isNumber(value) || !isNumber(spread)) return null;
        const edge = value + sign * spread;
        return !isNumber(end) ? edge : sign < 0 ? Math.max(edge, end) : Math.min(edge, end);
      })) : [];
    this.sparse = names.map((name, line) => spec.rare?.includes(name) ?? isSparse(main[line]));
    this.smooth = names.map((name, line) => spec.heights?.[name] ?? (this.sparse[line] ? main[line] : smooth(main[line])));
    const visible = [
      ...main.map(values => inside(run.steps, values)), ...edges.map(values => inside(run.steps, smooth(values))),
      ...others.map(each => inside(each.steps, isSparse(each.values) ? each.values : smooth(each.values))),
    ];
    const positive = value => isNumber(value) && value > 0;
    const isLog = this.isLog = (spec.log ?? view.log) && visible.some(values => values.some(positive));
    let low = Infinity, high = -Infinity;
    for (const values of visible) for (const value of values) if (isLog ? positive(value) : isNumber(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    const empty = this.empty = low > high;
    if (empty) [low, high] = [0, 1];
    if (high - low <= SAME * Math.max(Math.abs(low), Math.abs(high))) high = low;  // smoothing rounds
    const flat = low === high ? [[low, String(Number(low.toPrecision(3)))]] : null;
    const scale = isLog ? Math.log10 : value => value;
    const [bottom, top] = [scale(low), scale(high)];
    const margin = 0.06 * (top - bottom) || (isLog ? 0.3 : 0.06 * Math.abs(high) || 0.05);
    Object.assign(this, {from, to});
    this.x = step => LEFT + (width - LEFT - RIGHT) * (step - from) / (to - from);
    this.y = value => TOP + (height - TOP - BOTTOM) * (top + margin - scale(value)) / (top - bottom + 2 * margin);
    this.isShown = (step, value) => isInside(step) && (isLog ? positive(value) : isNumber(value));

    const {x, y} = this, parts = [], floor = height - BOTTOM;
    // On a logarithmic axis a smoothed line can fall below the lowest value: it ends at the axis.
    const drawn = (kind, d) => s("path", {class: kind, d, "clip-path": `url(#${this.clip})`});
    const ends = isLog ? [10 ** (bottom - margin), 10 ** (top + margin)] : [bottom - margin, top + margin];
    for (const [value, words] of empty ? [] : flat ?? (isLog ? logTicks : ticks)(...ends)) {
      parts.push(s("path", {class: "kit-grid", d: `M${LEFT} ${y(value).toFixed(1)}H${width - RIGHT}`}));
      parts.push(s("text", {x: LEFT - 5, y: y(value) + 4, "text-anchor": "end"}, words));
    }
    for (const [value, words] of ticks(from, to)) {
      const anchor = x(value) > width - 28 ? "end" : "middle";
      parts.push(s("text", {x: anchor === "end" ? width : x(value), y: height - 5, "text-anchor": anchor}, words));
    }
    if (spec.xlabel) parts.push(s("text", {x: LEFT - 12, y: height - 5, "text-anchor": "end"}, spec.xlabel));
    parts.push(s("path", {class: "kit-axis", d: `M${LEFT} ${TOP}V${floor}H${width - RIGHT}`}));
    for (const step of empty ? [] : Object.keys(run.changes)) if (isInside(step - 0.5))
      parts.push(s("path", {class: "kit-change", d: `M${x(step - 0.5).toFixed(1)} ${TOP}V${floor}`}));
    // The visible points: [steps, values], without gaps if a line is sparse.
    const seen = (steps, values, sparse) => {
      const places = values.map((_, place) => place).filter(place =>
        isInside(steps[place]) && (!sparse || isNumber(values[place])));
      return [places.map(place => steps[place]), places.map(place => isLog && values[place] <= 0 ? null : values[place])];
    };
    for (const {steps, values, class: kind, mark} of others) {
      const sparse = isSparse(values), [at, heights] = seen(steps, sparse ? values : smooth(values), sparse);
      const end = heights.findLastIndex(isNumber);
      if (end < 0) continue;
      parts.push(drawn(kind, pathOf(at, heights, x, y)));
      if (mark !== null)
        parts.push(s("text", {class: "kit-number", x: Math.min(x(at[end]) + 3, width - 9), y: y(heights[end]) + 4}, mark));
    }
    if (edges.length) {
      const [[at, below], [, above]] = edges.map(values => seen(run.steps, smooth(values), false));
      const known = at.map((_, place) => place).filter(place => isNumber(below[place]) && isNumber(above[place]));
      const edge = (values, places) => pathOf(places.map(place => at[place]), places.map(place => values[place]), x, y);
      if (known.length)
        parts.push(drawn("kit-band", edge(above, known) + edge(below, known.reverse()).replace("M", "L") + "z"));
    }
    const isAlone = (heights, at) => isNumber(heights[at]) && !isNumber(heights[at - 1]) && !isNumber(heights[at + 1]);
    main.forEach((values, line) => {
      const look = lookOf(line), sparse = this.sparse[line], [at, heights] = seen(run.steps, this.smooth[line], sparse);
      const raw = sparse ? [[], []] : seen(run.steps, values);
      if (!spec.heights) parts.push(drawn(`kit-raw ${look}`, pathOf(...raw, x, y)));
      else if (spec.heights[names[line]] || run.steps.length <= FEW)
        parts.push(drawn(`kit-points ${look}`, pointsOf(...raw, x, y)));
      const d = pathOf(at, heights, x, y);
      parts.push(drawn("kit-halo", d), drawn(`kit-line ${look}`, d));
      at.forEach((step, each) => {  // a line does not show a value between two gaps
        if (isNumber(heights[each]) && (sparse || isAlone(heights, each)))
          parts.push(s("circle", {class: `kit-dot ${look}`, cx: x(step), cy: y(heights[each]), r: 2.5}));
      });
      const isZero = place => isNumber(values[place]) && values[place] <= 0;
      const zeros = isLog ? run.steps.filter((step, place) => isInside(step) && isZero(place)) : [];
      const triangles = zeros.map(step => `M${x(step).toFixed(1)} ${floor}l-3.5 -6h7z`).join("");
      if (zeros.length) parts.push(s("path", {class: `kit-floor ${look}`, d: triangles}));
    });
    if (empty) {
      const words = main.some(values => values.some(isNumber)) ? "no values here"
        : run.steps.length || spec.heights ? spec.empty : "no values yet";
      words.split("\n").forEach((line, place, {length}) => parts.push(s("text", {x: (LEFT + width) / 2,
        y: height / 2 + WORDS_HEIGHT * (place - (length - 1) / 2), "text-anchor": "middle"}, line)));
    }
    this.svg.setAttribute("width", width);
    this.inside.setAttribute("width", Math.max(width - LEFT - RIGHT + 2, 0));
    this.still.replaceChildren(...parts);
  }

  drawCursor(run, place, step, least) {
    const parts = [];
    Object.values(this.spec.lines).forEach((name, line) => {
      const column = run.columns[name] ?? [], {heights} = this.spec, {value: number, measured} = this.values[line];
      // A line that is measured now and then shows its last measurement, as does the end of a line with its own heights.
      const isLast = this.sparse?.[line] || (heights && place === run.steps.length - 1);
      const at = isLast ? column.slice(0, place + 1).findLastIndex(isNumber) : place;
      const value = heights?.[name]?.[at] ?? column[at];  // on a log axis 0 has no height
      number.textContent = threeDigits(value);
      measured.textContent = heights?.[name] && isNumber(column[at]) ? `(${threeDigits(column[at])})` : "";
      if (this.isShown(run.steps[at] ?? step, value))
        parts.push(s("circle", {class: `kit-dot ${lookOf(line)}`, cx: this.x(run.steps[at] ?? step), cy: this.y(value),
                                r: 3.5}));
    });
    if (step !== undefined) {
      const at = this.x(step).toFixed(1);
      if (step >= this.from && step <= this.to)
        parts.unshift(s("path", {class: "kit-cursor", d: `M${at} ${TOP}V${this.height - BOTTOM}`}));
      this.svg.setAttribute("aria-valuemin", least);
      this.svg.setAttribute("aria-valuemax", last(run.steps));
      this.svg.setAttribute("aria-valuenow", step);
      const words = this.values.map(({name, value, measured}) =>
        `${name}${value.textContent}${measured.textContent && ` ${measured.textContent}`}`).join(", ");
      this.svg.setAttribute("aria-valuetext", `step ${step}: ${this.spec.title} ${words}`);
    } else this.svg.removeAttribute("aria-valuenow");
    this.cursor.replaceChildren(...(this.empty ? [] : parts));
  }
}
