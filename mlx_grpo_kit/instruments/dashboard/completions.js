// The completions of the step under the cursor: groups to choose from, and a table to sort and to filter.

const MOST_ROWS = 300;  // in the table
const FIRST_ROWS = 16, REST = 120;  // rows drawn at once, which fill the box; milliseconds until the others are drawn

// The completions of one step, as rows from the kernel's `_row`.
class Completions {
  // `look(group)` opens a group in the microscope; it is null if this is not possible.
  constructor(look) {
    this.look = look;
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
      ...(this.look ? [{title: "microscope", of: row => row[0], words: row => this.looker(row)}] : []),
      {title: "reward", of: row => row[3], words: row => threeDigits(row[3])},
      ...functions.map(name => ({title: name, of: row => row[7]?.[name], words: row => threeDigits(row[7]?.[name])})),
      {title: "advantage", of: row => row[4], words: row => !isNumber(row[4]) ? "–" :
        (row[4] < 0 ? "−" : row[4] > 0 ? "+" : "") + Math.abs(row[4]).toFixed(2) + (row[4] > 0 ? " ▲" : row[4] < 0 ? " ▼" : " •")},
      {title: "tokens", of: row => row[5], words: row => isNumber(row[5]) ? String(row[5]) : "–"},
      {title: "end", of: row => row[6], words: row => row[6] === null ? "–" : row[6] ? "finished" : "cut off"},
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
      if (!isNumber(a) || !isNumber(b)) return isNumber(b) - isNumber(a);  // rows without a value come last
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
    return h("tr", pushOf(row[4]), ...this.columns.map(each =>
      h("td", {class: each.text ? "kit-mono" : null}, each.text ? this.cell(each.of(row)) : each.words(row))));
  }

  looker(row) {
    const group = isNumber(row[0]) ? row[0] : 0;
    const words = `open group ${group + 1} in the microscope`;
    return h("button", {type: "button", title: words, "aria-label": words, onclick: () => this.look(group)}, "open");
  }

  // A text; a long one can be opened.
  cell(text) {
    if (text === "") return h("span", {class: "kit-soft"}, "(empty)");
    if (text.length <= 160) return text;
    return h("details", {}, h("summary", {}, text.slice(0, 140) + "…"), text.slice(140));
  }
}
