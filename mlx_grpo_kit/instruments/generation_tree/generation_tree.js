// Interactive generation. The kernel sends a text's logits once; the effect of filters and temperature on every
// probability is computed here, within a frame.

const SHOWN = 10;  // bars
const LEVEL = 44, STEP = 96, BOX = 60, ROOT = 96;  // pixels: height of a branch, distance of tokens, widths of boxes

// The number of likeliest tokens that each filter keeps, in the kit's order: top-k, min-p, top-p. Logits are sorted in
// descending order, so a filter always keeps the first few.
const keptBy = (logits, {top_k: topK, min_p: minP, top_p: topP}) => {
  const kept = {"top-k": topK > 0 ? Math.min(topK, logits.length) : logits.length};
  kept["min-p"] = kept["top-k"];
  if (minP > 0) {
    const least = logits[0] + Math.log(minP);
    while (logits[kept["min-p"] - 1] < least) kept["min-p"] -= 1;
  }
  kept["top-p"] = kept["min-p"];
  if (topP < 1) {  // probabilities are normalized after the earlier filters
    let total = 0, likelier = 0, count = 0;
    for (let place = 0; place < kept["min-p"]; place++) total += Math.exp(logits[place] - logits[0]);
    for (; count < kept["min-p"] && likelier < topP; count++) likelier += Math.exp(logits[count] - logits[0]) / total;
    kept["top-p"] = count;
  }
  return kept;
};

// The distribution to sample from: the first `count` tokens at this temperature, or only the likeliest at 0.
const shared = (logits, count, temperature) => {
  if (temperature === 0) return Float64Array.of(1);
  const powers = Float64Array.from(logits.subarray(0, count), logit => Math.exp((logit - logits[0]) / temperature));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map(power => power / total);
};

const percent = share => share === 0 ? "0" : share < 0.001 ? "<0.1%"
  : share < 0.01 ? `${(100 * share).toFixed(1)}%` : `${(100 * share).toFixed(0)}%`;

function render({model, el}) {
  const data = model.get("data");
  const settings = {...data.settings}, ends = new Set(data.ends);
  let prompt = data.prompt, nodes = new Map(), drawings = 0;
  let here = "", wanted = "";  // the chosen node, and the node to choose once the kernel has answered

  // -- the tree: a node for each text, by the ids of the tokens after the prompt -------------------------------------
  const keyOf = path => path.join(" ");
  const learn = answer => {
    const bytes = Uint8Array.from(atob(answer.logits), letter => letter.charCodeAt(0));
    const node = nodes.get(keyOf(answer.path)) ?? grow(answer.path);
    Object.assign(node, {ids: answer.ids, names: answer.names, logits: new Float32Array(bytes.buffer)});
    node.policy = shared(node.logits, node.logits.length, 1);
  };
  const grow = path => {
    const node = {path, key: keyOf(path), children: [], over: path.length > 0 && ends.has(path.at(-1))};
    nodes.set(node.key, node);
    if (path.length) {
      node.parent = nodes.get(keyOf(path.slice(0, -1)));
      node.place = node.parent.ids.indexOf(path.at(-1));
      node.name = node.parent.names[node.place];
      node.parent.children.push(node);
      node.parent.children.sort((one, other) => one.place - other.place);
    }
    return node;
  };
  const begin = (answers, paths) => {
    nodes = new Map();
    [...answers].sort((one, other) => one.path.length - other.path.length).forEach(learn);
    paths.filter(path => !nodes.has(keyOf(path))).forEach(grow);
    here = wanted = "";
  };
  // A token's probability in the policy and in the distribution to sample from.
  const shareOf = node => node.parent
    ? {policy: node.parent.policy[node.place], drawn: node.parent.drawn[node.place] ?? 0} : {policy: 1, drawn: 1};
  const pathOf = node => {
    if (!node.parent) return {policy: 1, drawn: 1};
    const before = pathOf(node.parent), share = shareOf(node);
    return {policy: before.policy * share.policy, drawn: before.drawn * share.drawn};
  };
  const textOf = node => node.parent ? `${textOf(node.parent)} ${node.name}` : prompt;

  // -- choosing a node -----------------------------------------------------------------------------------------------
  const hear = answer => {
    complaint.hidden = !answer.complaint;
    complaint.textContent = answer.complaint ?? "";
    if (answer.complaint) {
      wanted = here;
      back.disabled = !nodes.get(here).parent;
      return;
    }
    if (answer.prompt !== prompt) {
      prompt = text.value = answer.prompt;
      begin([answer], []);
    } else {
      if (answer.path.length && !nodes.has(keyOf(answer.path.slice(0, -1)))) return;  // for an old tree
      learn(answer);
      if (wanted === keyOf(answer.path)) here = wanted;
    }
    draw();
  };
  const ask = asker(model, hear);
  const go = node => {
    wanted = node.key;
    if (node.logits || node.over) here = node.key;
    else ask({prompt, path: node.path});
    draw();
  };
  const force = id => {
    const node = nodes.get(here);
    if (!node.logits) return;
    const path = [...node.path, id];
    go(nodes.get(keyOf(path)) ?? grow(path));
  };
  const drawOne = () => {
    const {drawn, ids, over} = nodes.get(here);
    if (over) return;
    let left = Math.random(), place = 0;
    while (place < drawn.length - 1 && (left -= drawn[place]) > 0) place += 1;
    if (place < ids.length) force(ids[place]);
  };

  // -- controls ------------------------------------------------------------------------------------------------------
  const slider = (name, setting, most, step, least = 0, off = null) => {
    const words = () => settings[setting] === off ? "off" : String(settings[setting]);
    const readout = h("output", {class: "kit-mono"}, words());
    const input = h("input", {type: "range", min: least, max: most, step, "aria-label": name, oninput: () => {
      settings[setting] = Number(input.value);
      readout.textContent = words();
      redraw();
    }});
    input.value = settings[setting];
    return h("label", {class: "control"}, h("span", {}, name), input, readout);
  };
  const readPrompt = () => { if (text.value !== prompt) ask({prompt: text.value, path: []}); };
  const text = h("input", {type: "text", "aria-label": "prompt", size: 10, onchange: readPrompt,
    onkeydown: event => { if (event.key === "Enter") readPrompt(); }});
  text.value = prompt;
  const complaint = h("div", {class: "kit-complaint", role: "alert", hidden: true});
  const button = (words, act) => h("button", {onclick: act}, words);
  const draws = button("draw a token", drawOne), likeliest = button("take the likeliest", () => force(nodes.get(here).ids[0]));
  const back = button("back one token", () => go(nodes.get(wanted).parent));
  const again = button("new tree", () => {
    const root = nodes.get("");
    root.children = [];
    nodes = new Map([["", root]]);
    here = wanted = "";
    draw();
  });

  // -- the bars ------------------------------------------------------------------------------------------------------
  const title = h("div", {class: "title"}), rest = h("div", {class: "rest kit-soft"});
  const bars = Array.from({length: SHOWN}, (_, place) => {
    const name = h("span", {class: "kit-mono name"}), policy = h("i", {class: "policy"}), drawn = h("i", {class: "drawn"});
    const words = h("span", {class: "share"});
    const node = h("button", {class: "bar", tabindex: place ? -1 : 0,
      onclick: () => force(nodes.get(here).ids[place]),
      onkeydown: event => {
        const next = {ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: SHOWN - 1}[event.key];
        const target = bars[next]?.node;
        if (!target || target.hidden) return;
        event.preventDefault();
        node.tabIndex = -1;
        target.tabIndex = 0;
        target.focus();
      }}, name, h("span", {class: "room"}, policy, drawn), words);
    return {node, name, policy, drawn, words};
  });
  const drawBars = () => {
    const node = nodes.get(here);
    title.replaceChildren("after ", h("span", {class: "kit-mono"}, textOf(node)));
    if (!node.logits) {
      bars.forEach(bar => { bar.node.style.visibility = "hidden"; });  // their room stays
      rest.textContent = node.over ? "The text has ended: nothing comes after an end token." : "…";
      return;
    }
    const filters = Object.entries(node.kept);
    bars.forEach((bar, place) => {
      bar.node.hidden = place >= node.ids.length;
      bar.node.style.visibility = "";
      if (bar.node.hidden) return;
      const share = node.drawn[place] ?? 0, outBy = filters.find(([, count]) => place >= count)?.[0];
      bar.name.textContent = node.names[place];
      bar.policy.style.width = `${100 * node.policy[place]}%`;
      bar.drawn.style.width = `${100 * share}%`;
      bar.words.textContent = outBy ? `out: ${outBy}` : percent(share);
      bar.node.classList.toggle("out", Boolean(outBy));
      bar.node.setAttribute("aria-label", `${node.names[place]}: ${outBy ? `removed by ${outBy}` : percent(share)}; `
        + `${percent(node.policy[place])} in the policy`);
    });
    const sum = shares => Array.from(shares.subarray(SHOWN)).reduce((total, share) => total + share, 0);
    const more = node.logits.length - SHOWN;
    rest.textContent = `${node.kept["top-p"]} of ${node.logits.length} tokens kept.`
      + (more > 0 ? ` The ${more} without a bar: ${percent(sum(node.policy))} in the policy, ${percent(sum(node.drawn))} sampled.` : "");
  };

  // -- the picture of the tree ---------------------------------------------------------------------------------------
  const picture = s("svg", {role: "group", "aria-label": "tree of texts"});
  const path = h("div", {class: "path", "aria-live": "polite"});
  const drawTree = () => {
    let leaves = 0, deepest = 0;
    const lay = (node, depth) => {
      node.x = depth ? ROOT + 30 + STEP * (depth - 1) : 2;
      deepest = Math.max(deepest, depth);
      node.children.forEach(child => lay(child, depth + 1));
      const middles = node.children.map(child => child.y);
      node.y = middles.length ? (middles[0] + middles.at(-1)) / 2 : 24 + LEVEL * leaves++;
    };
    lay(nodes.get(""), 0);
    const chosen = new Set();
    for (let node = nodes.get(here); node; node = node.parent) chosen.add(node);
    const branches = [], boxes = [];
    for (const node of nodes.values()) {
      const share = shareOf(node), whole = pathOf(node), wide = node.parent ? BOX : ROOT, start = prompt.slice(-9);
      if (node.parent) {
        const from = node.parent.x + (node.parent.parent ? BOX : ROOT), {y} = node.parent;
        branches.push(s("path", {class: chosen.has(node) ? "branch chosen" : "branch",
          d: `M${from} ${y}C${from + 18} ${y} ${node.x - 18} ${node.y} ${node.x} ${node.y}`,
          "stroke-width": 1 + 6 * share.drawn}));
      }
      const said = `${textOf(node)}${node.parent
        ? `: ${percent(share.drawn)}, whole path ${percent(whole.drawn)}` : ", the beginning"}`;
      const act = event => {
        if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        const key = node.key;
        go(node);
        [...picture.querySelectorAll(".node")].find(other => other.dataset.key === key)?.focus();
      };
      const box = s("g", {class: "node", tabindex: 0, role: "button", "aria-label": said,
        "aria-current": node.key === here ? "true" : null, transform: `translate(${node.x} ${node.y})`,
        "data-key": node.key, onclick: act, onkeydown: act},
        s("title", {}, said),
        s("rect", {x: 0, y: -18, width: wide, height: 36, rx: 5}),
        s("text", {class: "name", x: wide / 2, y: node.parent ? -2 : 5},
          node.parent ? node.name : start === prompt ? prompt : `…${start}`));
      if (node.parent)
        box.append(s("text", {class: share.drawn ? "share" : "share out", x: wide / 2, y: 13},
          share.drawn ? percent(share.drawn) : "out"));
      if (!node.children.length && node.parent)
        box.append(s("text", {class: "whole", x: wide + 7, y: 5}, percent(whole.drawn)));
      boxes.push(box);
    }
    const wide = ROOT + 30 + STEP * Math.max(deepest, 1) + 40, high = Math.max(LEVEL * leaves + 6, LEVEL);
    for (const [name, value] of [["width", wide], ["height", high], ["viewBox", `0 0 ${wide} ${high}`]])
      picture.setAttribute(name, value);
    picture.replaceChildren(...branches, ...boxes);
    const node = nodes.get(here), whole = pathOf(node);
    path.textContent = node.parent
      ? `${textOf(node)}: ${percent(whole.drawn)} with these settings, ${percent(whole.policy)} in the policy.`
      : "Click a bar to add its token to the tree. Click a box to continue from there.";
  };

  const draw = () => {
    for (const node of nodes.values()) {
      if (!node.logits) continue;
      node.kept = keptBy(node.logits, settings);
      node.drawn = shared(node.logits, node.kept["top-p"], settings.temperature);
    }
    const node = nodes.get(here);
    back.disabled = !nodes.get(wanted).parent;
    again.disabled = nodes.size === 1;
    draws.disabled = likeliest.disabled = !node.logits;
    drawBars();
    drawTree();
    root.dataset.drawings = drawings += 1;
  };
  const redraw = onceAFrame(draw);

  const root = h("div", {class: "kit-widget kit-tree"},
    h("div", {class: "controls"},
      h("label", {class: "control"}, h("span", {}, "prompt"), text),
      slider("temperature", "temperature", 3, 0.05),
      slider("top-k", "top_k", Math.min(64, data.nodes[0].ids.length), 1, 0, 0),
      slider("top-p", "top_p", 1, 0.01, 0.01, 1),
      slider("min-p", "min_p", 1, 0.01, 0, 0)),
    h("div", {class: "kit-row"}, draws, likeliest, back, again),
    h("div", {class: "kit-slot"}, complaint, path),
    h("div", {class: "both"},
      h("div", {class: "bars"}, title, h("div", {class: "key kit-soft"}, h("i", {class: "policy"}), "the policy",
        h("i", {class: "drawn"}), "sampled with these settings"), bars.map(bar => bar.node), rest),
      h("div", {class: "tree"}, picture)));
  begin(data.nodes, data.paths);
  draw();
  el.append(root);
}

export default {render};
