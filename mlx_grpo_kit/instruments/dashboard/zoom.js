// The view of the curves: smoothing, a logarithmic axis, and a range of steps.

const SMOOTHING = 0.8, LEAST = 5;  // the initial smoothing; the fewest steps that you can zoom in to

class View {
  // `changed` is called after each change; `centre` returns the step to zoom in to.
  constructor(changed, centre) {
    Object.assign(this, {smoothing: SMOOTHING, log: false, size: null, end: null, longest: LEAST, changed});
    this.words = h("output", {class: "kit-number-words"});
    this.slider = h("input", {type: "range", min: 0, max: 0.99, step: 0.01, value: SMOOTHING, "aria-label": "smoothing", oninput: event => {
      this.smoothing = Number(event.target.value);
      this.say();
      changed();
    }});
    const log = h("input", {type: "checkbox", onchange: event => { this.log = event.target.checked; changed(); }});
    const button = (words, title, onclick) => h("button", {type: "button", title, onclick}, words);
    this.nearer = button("Zoom in", "Show half as many steps, around the cursor. Or press + on a curve, or drag over it with Shift", () => this.by(0.5, centre()));
    this.farther = button("Zoom out", "Show twice as many steps. Or press − on a curve", () => this.by(2, centre()));
    this.all = button("All steps", "Show the whole run. Or press 0 on a curve", () => this.by(Infinity));
    this.range = h("span", {class: "kit-soft", role: "status"});
    this.node = h("div", {class: "kit-row kit-view", role: "group", "aria-label": "view of the curves"},
                  h("label", {}, "smoothing ", this.slider, this.words), h("label", {}, log, " log axis"),
                  this.nearer, this.farther, this.all, this.range);
    this.say();
  }

  say() {
    this.words.textContent = this.smoothing.toFixed(2);
    this.slider.setAttribute("aria-valuetext", this.smoothing ? this.smoothing.toFixed(2) : "none");
    this.nearer.disabled = (this.size ?? this.longest) <= LEAST;
    this.farther.disabled = this.all.disabled = this.size === null;
    const {from, to} = this;
    this.range.textContent = this.size === null ? "" : `steps ${Math.round(from)} to ${Math.round(to)} of ${this.longest}`;
  }

  // Set the length of the run and its newest step.
  fit(longest, newest) {
    Object.assign(this, {longest, newest});
    this.say();
  }

  get to() { return this.size === null ? this.longest : Math.max(this.end ?? Math.max(this.newest, this.size), this.size); }
  get from() { return this.size === null ? 0 : this.to - this.size; }

  // Show `factor` times as many steps, around `centre`; null follows the newest step.
  by(factor, centre = null) {
    const size = Math.max(Math.round((this.size ?? this.longest) * factor), LEAST);
    this.size = size >= this.longest ? null : size;
    this.end = this.size === null || centre === null ? null : Math.min(Math.round(centre + size / 2), this.longest);
    this.say();
    this.changed();
  }

  between(one, other) {
    const [from, to] = [Math.min(one, other), Math.max(one, other)].map(Math.round);
    this.size = Math.max(to - from, LEAST);
    this.end = Math.min(from + this.size, this.longest);
    this.say();
    this.changed();
  }

  // Move the range until the step is in it; null follows the newest step.
  show(step) {
    if (this.size === null) return;
    if (step === null) this.end = null;
    else if (step > this.to) this.end = step;
    else if (step < this.from) this.end = step + this.size;
    else return;
    this.say();
    this.changed();
  }
}
