// The settings of the run, and other runs to compare it with.

// [name, value in words, true if it is a default] for each setting; `changed` has [[step, value], ...] by name.
class Settings {
  constructor(rows) {
    this.rows = rows;
    this.summary = h("summary", {});
    this.body = h("tbody");
    this.node = h("details", {class: "kit-settings", hidden: !rows.length}, this.summary,
      h("div", {class: "kit-box", tabindex: 0, role: "group", "aria-label": "settings"}, h("table", {},
        h("thead", {}, h("tr", {}, ...["setting", "value", "source"].map(words => h("th", {scope: "col"}, words)))), this.body)));
    this.known = null;
    this.show({});
  }

  show(changed) {
    if (JSON.stringify(changed) === this.known) return;
    this.known = JSON.stringify(changed);
    const names = Object.keys(changed), first = this.rows.filter(([name]) => names.includes(name));
    const others = this.rows.filter(([name]) => !names.includes(name));
    this.summary.textContent = "Settings" + (names.length ? `, ${names.length} changed during the run` : "");
    this.body.replaceChildren(...[...first, ...others].map(([name, value, isDefault]) => {
      const later = (changed[name] ?? []).map(([step, words]) => `, then ${words} from step ${step}`).join("");
      return h("tr", {class: isDefault && !later ? "kit-soft" : null}, h("th", {scope: "row"}, name),
               h("td", {class: "kit-mono"}, value, later ? h("b", {}, later) : null),
               h("td", {}, later ? "changed" : isDefault ? "default" : "chosen"));
    }));
  }
}

// Check boxes with the names of runs; `choose` gets the names that are checked, at most as many as there are letters.
class Others {
  constructor(ask, choose) {
    this.chosen = [];
    this.list = h("div", {role: "group", "aria-label": "runs to compare with"});
    this.note = h("div", {class: "kit-soft", role: "status"});
    this.node = h("details", {class: "kit-others", ontoggle: () => { if (this.node.open) ask(); }},
                  h("summary", {}, "Other runs"), this.list, this.note);
    this.choose = choose;
  }

  show(names) {
    this.note.textContent = names.length ? "" : "This notebook has no other saved runs. " +
      "You can pass records of other runs to the dashboard: Dashboard(..., compare=[\"outputs/my_run\"]).";
    this.list.replaceChildren(...names.map(name => {
      const place = this.chosen.indexOf(name);
      const mark = s("svg", {width: 34, height: 12, "aria-hidden": "true"},
                     s("path", {class: `kit-over kit-over${Math.max(place, 0)}`, d: "M2 6H32"}));
      const box = h("input", {type: "checkbox", checked: place >= 0, disabled: place < 0 && this.chosen.length >= 4,
        onchange: event => {
          this.chosen = event.target.checked ? [...this.chosen, name] : this.chosen.filter(each => each !== name);
          this.choose(this.chosen);
          this.show(names);
          this.list.querySelectorAll("input")[names.indexOf(name)].focus();
        }});
      return h("label", {}, box, ` ${name} `, place >= 0 ? mark : null, place >= 0 ? h("b", {}, letterOf(place)) : null);
    }));
  }
}
