// The page of a LivePlot: the state of a run, linked curves with a cursor, and the newest completions.
//
// Each frame from the kernel has everything, because a kernel that runs a loop in a cell answers no questions, not even
// those of a page that is reloaded.

const TALL = 170;  // pixels, the height of a curve

const render = ({model, el}) => {
  let data = model.get("data"), cursor = null, width = 0, table = "";
  const run = {steps: [], columns: {}, changes: {}, abandoned: []};

  // -- controls
  let ordered = "";  // the words of a button until its order is carried out: a step may take seconds
  const ask = asker(model, answer => {
    complaint.textContent = answer.complaint ?? "";
    complaint.hidden = !answer.complaint;
  });
  const order = (name, words) => {
    ordered = words;
    ask({order: name});
    showState();
  };
  const button = (words, title, onclick) => h("button", {type: "button", title, onclick}, words);
  // The second click of a double click would have the opposite effect.
  const pause = button("Pause", "Pause the run after this step", event => {
    if (event.detail < 2) order(...(data.state === "paused" ? ["resume", ""] : ["pause", "Pausing…"]));
  });
  const stop = button("Stop", "End the run after this step", () => order("stop", "Stopping…"));
  const newest = button("Newest step", "Follow the run again", () => go(Infinity));

  const state = h("b", {role: "status"}), words = h("span", {}), where = h("span", {class: "kit-where"});
  const bar = h("i"), progress = h("div", {class: "kit-progress", role: "progressbar", "aria-label": "steps done"}, bar);
  const complaint = h("div", {class: "kit-complaint", role: "alert", hidden: true});
  const health = h("ul", {class: "kit-health", "aria-label": "health of the run", hidden: true});
  const completions = h("div", {class: "kit-newest"});
  const hooks = {go: step => go(step), key: event => key(event)};
  const curves = data.panels.map(spec => new Curve(spec, hooks, TALL));
  curves[0].svg.setAttribute("tabindex", 0);
  const grid = h("div", {class: `kit-curves${curves.length > 1 ? " kit-pairs" : ""}`}, ...curves.map(curve => curve.node));
  el.classList.add("kit-widget", "kit-run", "kit-live-plot");
  el.replaceChildren(
    data.title ? h("b", {class: "kit-title"}, data.title) : "",
    h("div", {class: "kit-row"}, pause, stop, h("span", {}, state, words)), progress, complaint,
    h("div", {role: "status"}, health), grid, h("div", {class: "kit-row"}, where, newest), completions);

  // -- the cursor: a step, or null, which follows the run
  const place = () => cursor === null ? run.steps.length - 1 : placeOf(run.steps, cursor);
  const goTo = at => {
    cursor = at >= run.steps.length - 1 ? null : run.steps[Math.max(at, 0)];
    moved();
  };
  const go = step => {
    const at = placeOf(run.steps, step), isNext = run.steps[at + 1] - step < step - run.steps[at];
    goTo(at + (isNext ? 1 : 0));
  };
  const key = event => {
    const now = place(), page = Math.max(1, Math.round(run.steps.length / 20));
    const to = {ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - page,
                PageUp: now + page, Home: 0, End: Infinity}[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    goTo(to);
  };

  // -- drawing
  const drawCursor = () => {
    const at = place(), step = run.steps[at], isOld = cursor !== null;
    curves.forEach(curve => curve.drawCursor(run, at, step, run.steps[0]));
    const some = run.steps.length < data.count ? ` ${run.steps.length} of ${data.count} steps are shown.` : "";
    where.textContent = step === undefined ? "" : isOld
      ? `step ${step}, under the cursor.${data.smoothed ? " The numbers in parentheses are not smoothed." : ""}${some}`
      : `step ${step}, the latest. Drag over a curve, or press ← on it, to look back.`;
    newest.hidden = !isOld;
    grid.classList.toggle("kit-latest", !isOld);
  };
  const draw = () => {
    const view = {from: 0, to: Math.max(5, data.length ?? 0, last(run.steps) ?? 0), smoothing: 0, log: false};
    width = curves[0].node.clientWidth || width;
    curves.forEach(curve => curve.draw(run, width || 300, view, []));
    drawCursor();
  };
  const moved = onceAFrame(drawCursor), changed = onceAFrame(draw);

  const showState = () => {
    if (data.over || (ordered === "Pausing…" && data.state === "paused")) ordered = "";
    pause.hidden = stop.hidden = data.over || !data.stoppable;
    pause.textContent = ordered === "Pausing…" ? ordered : data.state === "paused" ? "Resume" : "Pause";
    stop.textContent = ordered === "Stopping…" ? ordered : "Stop";
    pause.disabled = ordered !== "";
    stop.disabled = ordered === "Stopping…";
    if (state.textContent !== data.state) state.textContent = data.state;  // a screen reader reads what changes
    words.textContent = data.status.slice(data.state.length);
    progress.hidden = !data.length;
    bar.style.width = `${100 * data.step / (data.length || 1)}%`;
    for (const [name, value] of Object.entries({valuemin: 0, valuemax: data.length ?? 0, valuenow: data.step}))
      progress.setAttribute(`aria-${name}`, value);
    health.hidden = !data.warnings.length;
    if (health.textContent !== data.warnings.join(""))
      health.replaceChildren(...data.warnings.map(text => h("li", {}, text)));
  };
  const showTable = () => {
    if (JSON.stringify(data.table) === table) return;
    table = JSON.stringify(data.table);
    const {header, rows} = data.table;
    const cells = (row, before) => row.cells.map((text, at) =>
      h("td", {class: at < 2 ? "kit-mono" : null}, at === 0 && text === before?.cells[0] ? "" : text));
    completions.replaceChildren(h("table", {},
      h("thead", {}, h("tr", {}, ...header.map(name => h("th", {scope: "col"}, name)))),
      h("tbody", {}, ...rows.map((row, at) => h("tr", pushOf(row.advantage), ...cells(row, rows[at - 1]))))));
  };
  const hear = () => {
    data = model.get("data");
    Object.assign(run, {steps: data.steps, columns: data.columns});
    curves.forEach((curve, at) => { curve.spec = data.panels[at]; });
    showState();
    if (data.table) showTable();
    changed();
  };
  hear();
  model.on("change:data", hear);
  const watcher = new ResizeObserver(() => { if (grid.clientWidth && curves[0].node.clientWidth !== width) changed(); });
  watcher.observe(grid);
  return () => { watcher.disconnect(); model.off("change:data", hear); };
};

export default {render};
