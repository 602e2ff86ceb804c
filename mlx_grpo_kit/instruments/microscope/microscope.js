// The microscope. The advantages of dragged rewards are computed here, within a frame. Everything that depends on the
// loss is requested from the kernel, and the numbers that an answer changes are marked.

const ROW = 30, AXIS = 140, ADVANTAGE = 250, PUSH = 382, WIDE = 458;  // pixels: height of a row, positions of its parts
const FIRST = 24;  // tokens of an answer that are shown before it is chosen
const MEASURES = {
  pushes: "push: what the next update does to the token",
  log_ratios: "log-ratio: how far the token has moved",
  clips: "clip state",
  entropies: "entropy: how unsure the policy was",
};

// The arithmetic of compute_advantages in mlx_grpo_kit/grpo/advantages.py: float32 rewards, computed in float64.
const advantagesOf = (rewards, numGenerations, scale, estimator) => {
  const values = rewards.map(reward => reward === null ? null : Math.fround(reward));
  const meanOf = some => some.length ? some.reduce((sum, value) => sum + value, 0) / some.length : 0;
  const stdOf = some => {
    const mean = meanOf(some);
    return Math.sqrt(some.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(some.length - 1, 1));
  };
  const measured = [], advantages = [], means = [], stds = [];  // "batch" divides by the spread of `measured`
  for (let start = 0; start < values.length; start += numGenerations) {
    const group = values.slice(start, start + numGenerations), known = group.filter(value => value !== null);
    const mean = meanOf(known), std = stdOf(known);
    const leftOut = estimator === "rloo" ? known.length / Math.max(known.length - 1, 1) : 1;  // the mean of the others
    const above = group.map(value => value === null ? 0 : (value - mean) * leftOut);
    if (estimator !== "rloo") measured.push(...known);
    else if (known.length > 1) measured.push(...above.filter((_, place) => group[place] !== null));
    means.push(known.length ? mean : null);
    stds.push(known.length > 1 ? std : null);
    advantages.push(...above.map(value => scale === "group" ? value / (std + 1e-4) : value));
  }
  const divisor = scale === "batch" && measured.length > 1 ? stdOf(measured) + 1e-4 : 1;
  return {advantages: advantages.map(value => Math.fround(value / divisor)), means, stds};
};

const percent = share => {
  const points = 100 * share;
  return `${points >= 10 || points === 0 ? points.toFixed(1) : points >= 0.01 ? points.toPrecision(2) : "<0.01"}%`;
};
const signed = value => (value > 0 ? "+" : value < 0 ? "−" : "") + threeDigits(Math.abs(value ?? NaN));
const tint = (value, most) => {
  const share = most > 0 ? Math.min(Math.abs(value) / most, 1) : 0;
  const color = value > 0 ? "var(--kit-positive)" : "var(--kit-negative)";
  return `color-mix(in srgb, ${color} ${share ? (12 + 76 * share).toFixed(0) : 0}%, transparent)`;
};

function render({model, el}) {
  const {batch, settings: first, reading: start} = model.get("data");
  const size = batch.num_generations, own = batch.completions.map(each => each.reward);
  const settings = {...first, rewards: first.rewards ?? [...own]};
  const chosen = {answer: 0, token: 0, measure: "pushes", hovered: null};
  let reading = start, group = settings.group;  // what is shown; `settings` may already ask for more
  const rows = () => Array.from({length: size}, (_, place) => group * size + place);

  // Show a number, and mark it until the next reading if this reading has changed it.
  let changes = 0, shown = 0;
  const number = (node, text) => {
    shown += 1;
    const changed = node.dataset.said !== undefined && node.dataset.said !== text;
    changes += changed;
    node.classList.toggle("changed", changed);
    node.dataset.said = node.textContent = text;
  };

  const hear = answer => {
    complaint.hidden = !answer.complaint;
    complaint.textContent = answer.complaint ?? "";
    if (answer.complaint) return;
    const before = reading.loss;
    reading = answer;
    changes = shown = 0;
    if (group === reading.group) draw();
    else showGroup();
    said.textContent = changes
      ? `${changes} of ${shown} numbers changed; loss ${signed(before)} → ${signed(reading.loss)}.` : "Nothing changed.";
  };
  const ask = asker(model, hear);
  const askAgain = () => ask({...settings, rewards: [...settings.rewards]});

  // -- controls --------------------------------------------------------------------------------------------------
  const label = (words, ...nodes) => h("label", {class: "control"}, h("span", {}, words), ...nodes);
  const highName = h("span", {class: "high"});
  const choice = (name, options, value, act) => {
    const select = h("select", {"aria-label": name, onchange: () => act(select.value)},
      Object.entries(options).map(([key, words]) => h("option", {value: key, selected: key === String(value)}, words)));
    return select;
  };
  const same = names => Object.fromEntries(names.map(name => [name, name]));
  const slider = (name, least, most, step, value, words, act) => {
    const readout = h("output", {class: "kit-mono"}, words(value));
    const widest = Math.max(...[least, least + step, most].map(each => words(each).length));
    readout.style.minWidth = `${widest}ch`;  // as wide as the longest words, so that no control moves to another line
    const input = h("input", {type: "range", min: least, max: most, step, "aria-label": name, oninput: () => {
      readout.textContent = words(Number(input.value));
      act(Number(input.value));
    }});
    input.value = value;
    return label(name, input, readout);
  };
  const set = name => value => { settings[name] = value; high(); askAgain(); };

  const prompts = {};
  for (let place = 0; place < batch.completions.length / size; place++)
    prompts[place] = `${place + 1}: ${batch.completions[place * size].prompt}`;
  const ofUpdate = update => update === 0 ? "0, the policy that sampled" : `${update} of ${batch.updates}`;
  const epsilonHigh = h("input", {type: "number", min: 0, step: 0.01, "aria-label": "epsilon_high",
    onchange: () => typeHigh(), onkeydown: event => { if (event.key === "Enter") typeHigh(); }});
  const typeHigh = () => {
    const setting = settings.loss_type === "cispo" ? "cap" : "epsilon_high";
    const typed = epsilonHigh.value !== "" ? Number(epsilonHigh.value) : setting === "cap" ? first.cap : null;
    if (typed === settings[setting]) return;
    set(setting)(typed);
  };
  const high = () => {  // for cispo, epsilon_high is the largest weight itself
    const value = settings[settings.loss_type === "cispo" ? "cap" : "epsilon_high"];
    epsilonHigh.value = value ?? "";
    epsilonHigh.placeholder = "epsilon";
    highName.textContent = settings.loss_type === "cispo" ? "largest weight" : "epsilon_high";
  };
  const complaint = h("div", {class: "kit-complaint", role: "alert", hidden: true});
  const said = h("div", {class: "said kit-soft", "aria-live": "polite"});
  const lossValue = h("b", {class: "kit-mono loss"}), facts = h("span", {class: "facts kit-row"});
  const factNodes = new Map();

  // -- the answers: text, reward on an axis, advantage, push ------------------------------------------------------
  const answers = h("div", {class: "answers", role: "group", "aria-label": "answers"});
  const axis = s("svg", {viewBox: `0 0 ${WIDE} ${ROW * (size + 2)}`, width: WIDE, height: ROW * (size + 2), role: "group",
    "aria-label": "rewards, advantages and pushes of the answers"});
  const reset = h("button", {onclick: () => {
    settings.rewards = [...own];
    drawRewards();
    askAgain();
  }}, "reset rewards");

  let limits = [0, 1], step = 0.05;
  const findLimits = () => {
    const rewards = rows().flatMap(row => [own[row], settings.rewards[row]]).filter(reward => reward !== null);
    const least = Math.min(0, ...rewards), most = Math.max(1, ...rewards), room = (most - least) * 0.25;
    limits = [least - room, most + room];
    step = 10 ** Math.floor(Math.log10(most - least)) / 20;
  };
  const at = reward => 12 + AXIS * (reward - limits[0]) / (limits[1] - limits[0]);
  const snap = reward => Math.min(Math.max(Number((Math.round(reward / step) * step).toFixed(6)), limits[0]), limits[1]);
  const move = (row, reward) => {
    settings.rewards[row] = snap(reward);
    drawRewards();
    askAgain();
  };

  let lines = [];  // for each answer, the nodes that a drag moves
  const mean = s("line", {class: "mean", y1: ROW, y2: ROW * (size + 1)}), spread = s("rect", {class: "spread", y: ROW,
    height: ROW * size}), meanWords = s("text", {class: "words", x: 12, y: ROW * (size + 1) + 20});
  const build = () => {
    findLimits();
    const title = (x, words) => s("text", {class: "words", x, y: 19}, words);
    answers.replaceChildren();
    axis.replaceChildren(spread, mean, title(12, "reward (drag it)"), title(ADVANTAGE - 30, "advantage"),
      title(PUSH - 45, "total push"), meanWords);
    lines = rows().map((row, place) => {
      const y = ROW * (place + 1) + ROW / 2, completion = batch.completions[row];
      const spans = completion.tokens.slice(0, FIRST).map(token => h("span", {class: "kit-mono piece"}, token));
      const button = h("button", {class: "answer", "aria-label": `answer ${place + 1}, ${completion.text}`,
        "aria-pressed": "false", onclick: () => choose(place, 0),
        onkeydown: event => {
          const next = place + ({ArrowDown: 1, ArrowUp: -1}[event.key] ?? 0);
          if (next === place || !lines[next]) return;
          event.preventDefault();
          choose(next, 0);
          lines[next].button.focus();
        }},
        spans, completion.finished ? null : h("span", {class: "kit-soft"}, " cut off"));
      answers.append(button);
      const line = s("line", {class: "rail", x1: at(limits[0]), x2: at(limits[1]), y1: y, y2: y});
      const ghost = s("circle", {class: "ghost", r: 6, cy: y});
      const handle = s("circle", {class: "handle", r: 8, cy: y, tabindex: 0, role: "slider",
        "aria-label": `reward of answer ${place + 1}, ${completion.text}`});
      const words = s("text", {class: "words number", x: AXIS + 26, y: y + 4});
      const bar = s("rect", {class: "bar", y: y - 8, height: 16}), value = s("text", {class: "words number", y: y + 4});
      const push = s("rect", {class: "bar", y: y - 8, height: 16});
      const pushValue = s("text", {class: "words number", y: y + 4});
      handle.addEventListener("pointerdown", event => {
        handle.setPointerCapture(event.pointerId);
        handle.focus();
        event.preventDefault();
      });
      handle.addEventListener("pointermove", event => {
        if (!handle.hasPointerCapture(event.pointerId)) return;
        const box = axis.getBoundingClientRect(), x = (event.clientX - box.left) * WIDE / box.width;
        move(row, limits[0] + (x - 12) / AXIS * (limits[1] - limits[0]));
      });
      handle.addEventListener("keydown", event => {
        const by = {ArrowRight: step, ArrowUp: step, ArrowLeft: -step, ArrowDown: -step, PageUp: 5 * step,
          PageDown: -5 * step}[event.key];
        const to = event.key === "Home" ? limits[0] : event.key === "End" ? limits[1] : settings.rewards[row] + by;
        if (Number.isNaN(to)) return;
        event.preventDefault();
        move(row, to);
      });
      axis.append(line, ghost, words, bar, value, push, pushValue, handle);
      return {row, button, spans, ghost, handle, words, bar, value, push, pushValue};
    });
  };
  const drawBar = (bar, text, value, most, middle, room) => {
    const long = most > 0 ? Math.abs(value) / most * room : 0;
    bar.setAttribute("x", value < 0 ? middle - long : middle);
    bar.setAttribute("width", long);
    bar.setAttribute("class", `bar ${value < 0 ? "down" : "up"}`);
    text.setAttribute("x", value < 0 ? middle + 5 : middle - 5);
    text.setAttribute("text-anchor", value < 0 ? "start" : "end");
  };
  const drawRewards = () => {  // at once, in the browser
    const {advantages, means, stds} = advantagesOf(
      settings.rewards, size, settings.scale_rewards, settings.advantage_estimator);
    const middle = means[group], wide = stds[group] ?? 0;
    spread.setAttribute("x", at(middle - wide));
    spread.setAttribute("width", Math.max(at(middle + wide) - at(middle - wide), 0));
    for (const end of ["x1", "x2"]) mean.setAttribute(end, at(middle));
    for (const node of [mean, spread]) node.setAttribute("visibility", middle === null ? "hidden" : "visible");
    meanWords.textContent = `mean ${threeDigits(middle)}, standard deviation ${threeDigits(stds[group])}`;
    const most = Math.max(1, ...rows().map(row => Math.abs(advantages[row])));
    for (const {row, ghost, handle, words, bar, value} of lines) {
      const reward = settings.rewards[row], known = reward !== null;
      handle.setAttribute("visibility", known ? "visible" : "hidden");
      ghost.setAttribute("visibility", known && reward !== own[row] ? "visible" : "hidden");
      if (known) {
        handle.setAttribute("cx", at(reward));
        ghost.setAttribute("cx", at(own[row]));
        for (const [name, each] of [["valuenow", reward], ["valuemin", limits[0]], ["valuemax", limits[1]]])
          handle.setAttribute(`aria-${name}`, each);
      }
      words.textContent = known ? threeDigits(reward) : "none";
      drawBar(bar, value, advantages[row], most, ADVANTAGE, 45);
      value.textContent = signed(advantages[row]);
    }
    reset.disabled = settings.rewards.every((reward, row) => reward === own[row]);
  };

  // -- the tokens of one answer -----------------------------------------------------------------------------------
  const cells = h("div", {class: "cells", role: "toolbar", "aria-label": "tokens of the answer"});
  const detail = h("div", {class: "detail", "aria-live": "polite"}), heading = h("div", {class: "heading"});
  const legend = h("div", {class: "legend kit-soft"});
  let tokenNodes = [];
  const buildTokens = () => {
    const completion = batch.completions[lines[chosen.answer].row];
    heading.replaceChildren("Answer ", h("b", {}, String(chosen.answer + 1)), " to ",
      h("span", {class: "kit-mono"}, completion.prompt), ", token by token");
    tokenNodes = completion.tokens.map((token, place) => {
      const text = h("span", {class: "kit-mono token"}, token), value = h("span", {class: "value"});
      const node = h("button", {class: "cell", tabindex: place === chosen.token ? 0 : -1,
        onfocus: () => { chosen.token = place; drawDetail(); },
        onpointerenter: () => { chosen.hovered = place; drawDetail(); },
        onpointerleave: () => { chosen.hovered = null; drawDetail(); },
        onkeydown: event => {
          const last = tokenNodes.length - 1;
          const next = {ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: last}[event.key];
          if (next === undefined) return;
          event.preventDefault();
          tokenNodes[Math.min(Math.max(next, 0), last)].node.focus();
        }}, text, value);
      return {node, value};
    });
    cells.replaceChildren(...tokenNodes.map(each => each.node));
  };
  const clipWords = clip => clip > 0 ? "▲ high" : clip < 0 ? "▼ low" : "no";
  const background = (measure, value) => measure === "entropies"
    ? `color-mix(in srgb, var(--kit-line3) ${(80 * value / (reading.largest.entropies || 1)).toFixed(0)}%, transparent)`
    : tint(value, measure === "clips" ? 1.6 : reading.largest[measure]);
  const drawTokens = () => {
    lines.forEach(({spans}, answer) => spans.forEach((span, place) => {
      const each = reading.tokens[answer];
      span.style.background = background(chosen.measure, each[chosen.measure][place]);
      span.classList.toggle("clipped", each.clips[place] !== 0);
    }));
    const tokens = reading.tokens[chosen.answer], measure = chosen.measure;
    tokenNodes.forEach(({node, value}, place) => {
      const each = tokens[measure][place];
      number(value, measure === "clips" ? clipWords(each) : measure === "entropies" ? threeDigits(each) : signed(each));
      node.style.background = background(measure, each);
      node.classList.toggle("clipped", tokens.clips[place] !== 0);
      node.tabIndex = place === chosen.token ? 0 : -1;
    });
    legend.textContent = {
      pushes: "Blue: the next update makes the token likelier. Orange: less likely. Hatched: clipped.",
      log_ratios: "Blue: likelier than when it was sampled. Orange: less likely. Hatched: clipped.",
      clips: "▲ risen beyond 1 + epsilon_high where the advantage is positive, ▼ fallen below 1 − epsilon where it is "
        + "negative: in a clipped loss such a token gets no push from its advantage.",
      entropies: "Violet: the policy was unsure here. In nats.",
    }[measure];
  };
  const details = ["probability", "ratio", "clip", "entropy", "weight", "push"].map(name => {
    const node = h("span", {class: "kit-mono"});
    return [name, node, h("div", {}, h("div", {class: "kit-soft"}, name), node)];
  });
  const detailHead = h("div", {class: "detail-head"});
  detail.append(detailHead, h("div", {class: "details"}, details.map(([, , row]) => row)));
  let described = "";
  const drawDetail = () => {
    const place = chosen.hovered ?? chosen.token, tokens = reading.tokens[chosen.answer];
    const name = batch.completions[lines[chosen.answer].row].tokens[place];
    const of = key => tokens[key][place];
    const texts = {
      probability: `${percent(of("before"))} → ${percent(of("after"))}`,
      ratio: `${threeDigits(Math.exp(of("log_ratios")))}, log ${signed(of("log_ratios"))}`,
      clip: clipWords(of("clips")),
      entropy: threeDigits(of("entropies")),
      weight: threeDigits(of("weights")),
      push: `${signed(of("pushes"))} ${of("pushes") > 0 ? "▲ up" : of("pushes") < 0 ? "▼ down" : "neither way"}`,
    };
    detailHead.textContent = `token ${place + 1} of ${tokenNodes.length}: ${name}`;
    const which = `${group} ${chosen.answer} ${place}`;
    for (const [key, node] of details) {
      if (which !== described) delete node.dataset.said;  // the number of another token does not count as a change
      number(node, texts[key]);
    }
    described = which;
  };
  const choose = (answer, token) => {
    Object.assign(chosen, {answer, token, hovered: null});
    lines.forEach(({button}, place) => button.setAttribute("aria-pressed", place === answer));
    buildTokens();
    drawTokens();
    drawDetail();
  };

  // -- everything -------------------------------------------------------------------------------------------------
  const draw = () => {
    number(lossValue, signed(reading.loss));
    for (const name of [...factNodes.keys()].filter(name => !(name in reading.metrics))) {
      factNodes.get(name).parentNode.remove();
      factNodes.delete(name);
    }
    for (const [name, value] of Object.entries(reading.metrics)) {
      if (!factNodes.has(name)) {
        factNodes.set(name, h("span", {class: "kit-mono"}));
        facts.append(h("span", {}, `${name} `, factNodes.get(name)));
      }
      number(factNodes.get(name), threeDigits(value));
    }
    drawRewards();
    const sums = reading.tokens.map(tokens => tokens.pushes.reduce((sum, push) => sum + push, 0));
    const most = Math.max(...sums.map(Math.abs));
    lines.forEach(({push, pushValue}, place) => {
      drawBar(push, pushValue, sums[place], most, PUSH, 55);
      number(pushValue, signed(sums[place]));
    });
    drawTokens();
    drawDetail();
  };
  const showGroup = () => {
    group = reading.group;
    build();
    choose(0, 0);
    draw();
  };

  const controls = h("div", {class: "controls"},
    label("prompt", choice("prompt", prompts, group, value => { settings.group = Number(value); askAgain(); })),
    batch.updates ? slider("updates", 0, batch.updates, 1, settings.update, ofUpdate, set("update")) : null,
    label("loss type", choice("loss type", same(batch.loss_types), settings.loss_type, set("loss_type"))),
    label("ratio per", choice("importance sampling level", same(batch.importance_sampling_levels),
      settings.importance_sampling_level, set("importance_sampling_level"))),
    slider("epsilon", 0, 1, 0.01, settings.epsilon, value => value.toFixed(2), set("epsilon")),
    h("label", {class: "control"}, highName, epsilonHigh),
    slider("beta", 0, 1, 0.01, settings.beta, value => value.toFixed(2), set("beta")),
    label("advantages by", choice("advantage estimator", same(batch.advantage_estimators), settings.advantage_estimator,
      value => { settings.advantage_estimator = value; drawRewards(); askAgain(); })),
    label("scaled by", choice("scale rewards", same(batch.scale_rewards), settings.scale_rewards,
      value => { settings.scale_rewards = value; drawRewards(); askAgain(); })),
  );
  el.append(h("div", {class: "kit-widget kit-microscope"},
    controls, batch.note ? h("div", {class: "note kit-soft"}, batch.note) : null,
    h("div", {class: "kit-row summary"}, h("span", {}, "loss ", lossValue), facts),
    h("div", {class: "kit-slot"}, complaint, said),
    h("div", {class: "group"}, answers, axis),
    h("div", {class: "kit-row"}, heading,
      label("colour", choice("colour", MEASURES, chosen.measure, value => { chosen.measure = value; redraw(); })), reset),
    cells, legend, detail));
  const redraw = () => {  // showing another measure does not count as a change
    tokenNodes.forEach(({value}) => delete value.dataset.said);
    drawTokens();
  };
  high();
  showGroup();
}

export default {render};
