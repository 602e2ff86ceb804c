// A strip of colour for each layer: the norm of its gradient, step by step, on a logarithmic scale.

const CELL = 12;  // pixels, the height of a strip

class Layers {
  constructor(toggled) {
    this.rows = h("div", {class: "kit-strips", role: "img"});
    this.scale = h("div", {class: "kit-soft"});
    this.node = h("details", {hidden: true, ontoggle: toggled}, h("summary", {}, "Gradient norms by layer"), this.rows,
                  this.scale);
    this.names = [];
  }

  draw(run, view) {
    if (JSON.stringify(run.layers) !== JSON.stringify(this.names)) {
      this.names = run.layers;
      this.node.hidden = !this.names.length;
      this.strips = this.names.map(() => h("canvas", {height: CELL}));
      this.values = this.names.map(() => h("b", {}));
      this.rows.replaceChildren(...this.names.flatMap((name, place) =>
        [h("span", {}, name), this.strips[place], this.values[place]]));
    }
    if (!this.node.open || !this.names.length) return;
    const columns = this.names.map(name => run.columns[`layer norm/${name}`] ?? []);
    const inside = run.steps.map((step, place) => step >= view.from && step <= view.to ? place : -1).filter(at => at >= 0);
    let low = Infinity, high = 0;
    for (const column of columns) for (const at of inside) if (column[at] > 0) {
      low = Math.min(low, column[at]);
      high = Math.max(high, column[at]);
    }
    const ink = getComputedStyle(this.rows).getPropertyValue("--kit-positive-ink").trim(), span = Math.log(high / low) || 1;
    this.strips.forEach((strip, place) => {
      const width = strip.width = strip.clientWidth || 300, pen = strip.getContext("2d");
      pen.fillStyle = ink;
      for (const at of inside) {
        const value = columns[place][at];
        if (!(value > 0)) continue;
        const [left, right] = [run.steps[at] - 0.5, run.steps[at] + 0.5]
          .map(step => width * Math.min(Math.max((step - view.from) / (view.to - view.from), 0), 1));
        pen.globalAlpha = 0.06 + 0.94 * Math.log(value / low) / span;
        pen.fillRect(left, 0, Math.max(right - left, 1), CELL);
      }
    });
    this.scale.textContent = high ? `From ${threeDigits(low)}, pale, to ${threeDigits(high)}, dark, on a logarithmic scale.` : "";
  }

  drawCursor(run, place, step) {
    if (!this.node.open || !this.names.length) return;
    const words = this.names.map((name, row) => {
      const value = threeDigits(run.columns[`layer norm/${name}`]?.[place]);
      this.values[row].textContent = value;
      return `${name} ${value}`;
    });
    this.rows.setAttribute("aria-label", `gradient norms by layer at step ${step}: ${words.join(", ")}`);
  }
}
