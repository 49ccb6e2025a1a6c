"use strict";
// Draws the figures of a report from the JSON in the page. Text reaches the document only as text
// nodes and attributes, never as markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { level: "95", order: "weight", stage: 0, playing: null };
  const plots = {};

  // --- small tools ---------------------------------------------------------------------------

  function make(tag, attributes, parent, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function canvas(host, width, height) {
    host.replaceChildren();
    const view = `0 0 ${width} ${height}`;
    return make("svg", { viewBox: view, width, height, "aria-hidden": "true" }, host);
  }

  const known = (x) => typeof x === "number" && Number.isFinite(x);

  function show(x, digits = 3) {
    if (!known(x)) return "–";
    let text = Number(x.toPrecision(digits)).toString();
    if (text.length > 9) text = x.toExponential(Math.max(digits - 1, 0));
    return text.replace("-", "\u2212");
  }

  function ticks(low, high, count) {
    const rough = (high - low) / Math.max(count, 1);
    if (!(rough > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
      found.push(Number((i * step).toPrecision(12)));
    }
    return found;
  }

  function wholeTicks(low, high, count) {
    return ticks(low, high, count).filter(Number.isInteger);
  }

  function scale(from, to, left, right) {
    const span = to - from || 1;
    return (x) => left + ((x - from) / span) * (right - left);
  }

  function shorten(name, width, size = 7.2) {
    const room = Math.max(3, Math.floor(width / size));
    const letters = Array.from(name);
    return letters.length <= room ? name : letters.slice(0, room - 1).join("") + "…";
  }

  // --- hover ---------------------------------------------------------------------------------

  const tip = document.getElementById("tip");

  function showTip(event, title, lines) {
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = title;
    tip.appendChild(head);
    for (const line of lines) {
      const row = document.createElement("span");
      row.textContent = line;
      tip.appendChild(row);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
    let top = event.clientY - box.height - 12;
    if (top < 8) top = event.clientY + 18;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${top}px`;
  }

  function hideTip() {
    tip.hidden = true;
  }

  function hover(node, tell) {
    const enter = (event) => showTip(event, ...tell(event));
    node.addEventListener("pointermove", enter);
    node.addEventListener("pointerdown", enter);
    node.addEventListener("pointerleave", hideTip);
  }
  window.addEventListener("scroll", hideTip, { passive: true });

  // --- weights -------------------------------------------------------------------------------

  function drawWeights(host, width) {
    const found = data.weights;
    const n = found.weight.length;
    const names = found.index.map((j) => data.names[j]);
    const order = [...Array(n).keys()];
    if (state.order === "weight") order.sort((a, b) => found.weight[b] - found.weight[a]);
    const ends = found.intervals[state.level];
    const longest = Math.max(...names.map((name) => Array.from(name).length));
    const left = Math.min(width * 0.34, 16 + 7.4 * longest);
    const right = width < 480 ? 52 : 108;
    const row = n > 60 ? 20 : 32;
    const top = 24;
    const height = top + row * n + 46;
    let low = 0;
    let high = 0;
    for (const level of Object.keys(found.intervals)) {
      found.intervals[level].forEach((pair, i) => {
        for (const x of [found.weight[i], pair[0], pair[1]]) {
          if (known(x)) [low, high] = [Math.min(low, x), Math.max(high, x)];
        }
      });
    }
    if (low === high) [low, high] = [-1, 1];
    const pad = (high - low) * 0.04;
    const x = scale(low - pad, high + pad, left, width - right);
    const svg = canvas(host, width, height);
    const bottom = top + row * n;
    for (const tick of ticks(low, high, width < 480 ? 4 : 8)) {
      make("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "gridline" }, svg);
      make("text", { x: x(tick), y: bottom + 18, "text-anchor": "middle" }, svg, show(tick));
    }
    make("line", { x1: x(0), x2: x(0), y1: top - 6, y2: bottom, class: "zero" }, svg);
    const middle = (left + width - right) / 2;
    const unit = `weight (${found.unit})`;
    make("text", { x: middle, y: bottom + 38, "text-anchor": "middle", class: "label" }, svg, unit);
    const head = width < 480 ? "P(>0)" : "P(weight > 0)";
    make("text", { x: width, y: top - 10, "text-anchor": "end" }, svg, head);
    order.forEach((i, place) => {
      const y = top + row * (place + 0.5);
      const verdict = found.verdict[i];
      const kind = { paid: "for", pays: "against" }[verdict] || "open";
      const w = found.weight[i];
      const name = shorten(names[i], left - 12);
      make("text", { x: left - 12, y: y + 4, "text-anchor": "end", class: "name" }, svg, name);
      const [a, b] = ends[i];
      if (known(a) && known(b)) {
        const line = { x1: x(a), x2: x(b), y1: y, y2: y, class: `${kind} interval`, "stroke-width": 3 };
        make("line", { ...line, "stroke-linecap": "round", "stroke-opacity": 0.55 }, svg);
      }
      const dot = { cx: x(w), cy: y, r: 5.5, "stroke-width": 2 };
      dot.class = kind === "open" ? "open fill-card" : `${kind} fill-${kind}`;
      make("circle", dot, svg);
      const p = found.positive[i];
      if (known(p)) {
        const percent = p >= 0.995 ? "> 99%" : p <= 0.005 ? "< 1%" : `${Math.round(100 * p)}%`;
        make("text", { x: width, y: y + 4, "text-anchor": "end" }, svg, percent);
        if (width >= 480) {
          const bar = { x: width - 92, y: y - 3, height: 6, rx: 3 };
          make("rect", { ...bar, width: 44, class: "track" }, svg);
          make("rect", { ...bar, width: Math.max(44 * p, 0.01), class: "fill-open" }, svg);
        }
      }
      const hot = make(
        "rect",
        { x: 0, y: y - row / 2, width, height: row, rx: 6, class: "hot", fill: "transparent" },
        svg,
      );
      hot.setAttribute("data-feature", found.index[i]);
      hover(hot, () => [
        names[i],
        [
          `weight ${show(w)}, std err ${show(found.error[i])}`,
          `${state.level}% interval ${show(a)} to ${show(b)}`,
          `P(weight > 0) ${known(p) ? `${(100 * p).toFixed(1)}%` : "unknown"}`,
        ],
      ]);
    });
  }
  plots.weights = drawWeights;

  // --- learner by learner --------------------------------------------------------------------

  plots.forest = (host, width) => {
    const { blocks, unit } = data.forest;
    const all = blocks.flatMap((block) => block.rows);
    const longest = Math.max(...all.map((r) => Array.from(r.name).length));
    const left = Math.min(width * 0.4, 28 + 7.2 * longest);
    const row = all.length > 120 ? 14 : 22;
    const head = 26;
    const top = 8;
    const bottom = top + row * all.length + head * blocks.length;
    let [low, high] = [0, 0];
    for (const r of all) {
      for (const v of [r.weight, r.low, r.high]) {
        if (known(v)) [low, high] = [Math.min(low, v), Math.max(high, v)];
      }
    }
    if (low === high) [low, high] = [-1, 1];
    const pad = (high - low) * 0.04;
    const x = scale(low - pad, high + pad, left, width - 14);
    const svg = canvas(host, width, bottom + 46);
    for (const tick of ticks(low, high, width < 480 ? 4 : 8)) {
      make("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "gridline" }, svg);
      make("text", { x: x(tick), y: bottom + 18, "text-anchor": "middle" }, svg, show(tick));
    }
    make("line", { x1: x(0), x2: x(0), y1: top, y2: bottom, class: "zero" }, svg);
    make("text", { x: (left + width) / 2, y: bottom + 38, "text-anchor": "middle", class: "label" }, svg, unit);
    let y = top;
    for (const block of blocks) {
      make("text", { x: 0, y: y + 18, class: "name", "font-weight": 700 }, svg, shorten(block.name, width - 12));
      y += head;
      for (const r of block.rows) {
        const middle = y + row / 2;
        const at = { x: left - 12, y: middle + 4, "text-anchor": "end" };
        make("text", r.whole ? { ...at, class: "name" } : at, svg, shorten(r.name, left - 24));
        const kind = r.low > 0 ? "for" : r.high < 0 ? "against" : "open";
        if (known(r.low) && known(r.high)) {
          const ends = { x1: x(r.low), x2: x(r.high), y1: middle, y2: middle, class: `${kind} interval` };
          make("line", { ...ends, "stroke-width": r.whole ? 4 : 2, "stroke-linecap": "round", "stroke-opacity": 0.6 }, svg);
        }
        if (known(r.weight) && r.whole) {
          const c = x(r.weight);
          const points = `${c - 7},${middle} ${c},${middle - 7} ${c + 7},${middle} ${c},${middle + 7}`;
          make("polygon", { points, class: `${kind} fill-${kind}` }, svg);
        } else if (known(r.weight)) {
          make("circle", { cx: x(r.weight), cy: middle, r: 4, "stroke-width": 2, class: `${kind} fill-card` }, svg);
        }
        const hot = make("rect", { x: 0, y, width, height: row, rx: 6, fill: "transparent", class: "hot" }, svg);
        hover(hot, () => [
          `${block.name}: ${r.name}`,
          [`weight ${show(r.weight)}`, `95% interval ${show(r.low)} to ${show(r.high)}`],
        ]);
        y += row;
      }
    }
  };

  // --- a number per step ---------------------------------------------------------------------

  function drawSeries(host, width, options) {
    const { xs, ys, errors, xLabel, yLabel, lines = [], floor, ceiling, marker, bars } = options;
    const height = options.height || 230;
    let values = ys.filter(known);
    if (errors) {
      ys.forEach((y, i) => {
        if (known(y) && known(errors[i])) values.push(y - 2 * errors[i], y + 2 * errors[i]);
      });
    }
    values = values.concat(lines.map((line) => line.at).filter(known));
    for (const line of lines) values = values.concat((line.values || []).filter(known));
    if (bars) values.push(0);
    if (!values.length) values = [0, 1];
    let low = Math.min(...values);
    let high = Math.max(...values);
    if (known(floor)) low = Math.max(low, floor);
    if (known(ceiling)) high = Math.max(high, ceiling);
    if (high - low <= 1e-9 * Math.max(Math.abs(high), Math.abs(low))) {
      const around = Math.abs(high) * 0.5 || 1;
      [low, high] = [low - around, high + around];
    }
    const yTicks = ticks(low, high, 4);
    const step = yTicks.length > 1 ? yTicks[1] - yTicks[0] : 1;
    const size = Math.max(Math.abs(low), Math.abs(high));
    const digits = Math.min(8, Math.max(3, Math.ceil(Math.log10(size / step + 1)) + 1));
    const widest = Math.max(...yTicks.map((tick) => show(tick, digits).length));
    const box = { left: 32 + 7 * widest, right: width - 12, top: 14, bottom: height - 46 };
    const pad = bars ? 0 : (high - low) * 0.06;
    const y = scale(low - pad, high + (high - low) * 0.06, box.bottom, box.top);
    const edge = bars || xs.length < 2 ? 0.6 : 0;
    const x = scale(xs[0] - edge, xs[xs.length - 1] + edge, box.left + 8, box.right - 8);
    const svg = canvas(host, width, height);
    for (const tick of yTicks) {
      make("line", { x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), class: "gridline" }, svg);
      make("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, svg, show(tick, digits));
    }
    for (const tick of wholeTicks(xs[0], xs[xs.length - 1], Math.min(8, width / 60))) {
      make("text", { x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, svg, String(tick));
    }
    make("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }, svg);
    const centre = (box.left + box.right) / 2;
    make("text", { x: centre, y: height - 8, "text-anchor": "middle" }, svg, xLabel);
    const turned = { x: -(box.top + box.bottom) / 2, y: 12, transform: "rotate(-90)" };
    make("text", { ...turned, "text-anchor": "middle" }, svg, yLabel);
    const late = [];
    for (const line of lines) {
      const dash = { class: "ink", "stroke-dasharray": "4 4", "stroke-opacity": 0.55, fill: "none" };
      if (line.values) {
        const path = line.values
          .map((v, i) => (known(v) ? `${x(xs[i])},${y(v)}` : null))
          .filter((p) => p !== null);
        make("polyline", { ...dash, points: path.join(" ") }, svg);
      } else if (known(line.at)) {
        make("line", { ...dash, x1: box.left, x2: box.right, y1: y(line.at), y2: y(line.at) }, svg);
        late.push([{ x: box.right - 2, y: y(line.at) - 6, "text-anchor": "end", class: "halo" }, line.label]);
      }
    }
    if (errors) {
      const upper = [];
      const lower = [];
      ys.forEach((v, i) => {
        if (!known(v) || !known(errors[i])) return;
        upper.push(`${x(xs[i])},${y(v + 2 * errors[i])}`);
        lower.unshift(`${x(xs[i])},${y(v - 2 * errors[i])}`);
      });
      if (upper.length > 1) make("polygon", { points: upper.concat(lower).join(" "), class: "band" }, svg);
    }
    const clip = (v) => (known(floor) && v < floor ? floor : v);
    if (bars) {
      const thick = Math.max(1, Math.min(22, (0.7 * (box.right - box.left)) / xs.length));
      ys.forEach((v, i) => {
        if (!known(v)) return;
        const [a, b] = [y(Math.max(v, 0)), y(Math.min(v, 0))];
        const shape = { x: x(xs[i]) - thick / 2, y: a, width: thick, height: Math.max(b - a, 0.5) };
        const dim = known(marker) && xs[i] !== marker ? 0.45 : 1;
        make("rect", { ...shape, rx: Math.min(2, thick / 2), class: "fill-for", "fill-opacity": dim }, svg);
      });
    } else {
      let run = [];
      const flush = () => {
        const path = { points: run.join(" "), class: "for", "stroke-width": 2, fill: "none" };
        if (run.length > 1) make("polyline", { ...path, "stroke-linejoin": "round" }, svg);
        run = [];
      };
      ys.forEach((v, i) => (known(v) ? run.push(`${x(xs[i])},${y(clip(v))}`) : flush()));
      flush();
      const radius = xs.length > 60 ? 0 : xs.length > 30 ? 2.2 : 3;
      ys.forEach((v, i) => {
        if (!known(v)) return;
        const [px, py] = [x(xs[i]), y(clip(v))];
        if (clip(v) !== v) {
          // Off the scale: an arrowhead at the edge, the number on hover.
          const points = `${px - 5},${py - 4} ${px + 5},${py - 4} ${px},${py + 5}`;
          make("polygon", { points, class: "fill-against" }, svg);
        } else if (radius) make("circle", { cx: px, cy: py, r: radius, class: "fill-for" }, svg);
      });
      if (known(marker)) {
        const i = xs.indexOf(marker);
        make("line", { x1: x(marker), x2: x(marker), y1: box.top, y2: box.bottom, class: "zero" }, svg);
        if (known(ys[i])) {
          const spot = { cx: x(marker), cy: y(clip(ys[i])), r: 6, "stroke-width": 2.5 };
          make("circle", { ...spot, class: "for fill-card" }, svg);
        }
      }
    }
    for (const [at, words] of late) make("text", at, svg, words);
    const rule = make("line", { y1: box.top, y2: box.bottom, class: "axis", visibility: "hidden" }, svg);
    const area = { x: box.left, y: 0, width: box.right - box.left, height: box.bottom };
    const hot = make("rect", { ...area, fill: "transparent", class: "reader" }, svg);
    hover(hot, (event) => {
      const frame = svg.getBoundingClientRect();
      const at = ((event.clientX - frame.left) / frame.width) * width;
      let best = 0;
      xs.forEach((v, i) => {
        if (Math.abs(x(v) - at) < Math.abs(x(xs[best]) - at)) best = i;
      });
      rule.setAttribute("x1", x(xs[best]));
      rule.setAttribute("x2", x(xs[best]));
      rule.setAttribute("visibility", "visible");
      const told = [`${yLabel} ${show(ys[best], 4)}`];
      if (errors && known(errors[best])) told.push(`std err ${show(errors[best])}`);
      for (const line of lines) if (line.values) told.push(`${line.label} ${show(line.values[best])}`);
      return [`${xLabel} ${xs[best]}`, told];
    });
    hot.addEventListener("pointerleave", () => rule.setAttribute("visibility", "hidden"));
  }

  const indices = (values) => values.map((_, i) => i);

  plots.cosines = (host, width) =>
    drawSeries(host, width, {
      xs: indices(data.steps.cosines), ys: data.steps.cosines, xLabel: "step", yLabel: "cosine",
      lines: [{ at: data.steps.chance, label: "chance" }, { at: 0, label: "" }], ceiling: 1,
    });
  plots.explained = (host, width) =>
    drawSeries(host, width, {
      xs: indices(data.steps.explained), ys: data.steps.explained, xLabel: "step",
      yLabel: "share explained", lines: [{ at: 0, label: "nothing" }], floor: -1, ceiling: 1,
    });
  plots.rates = (host, width) =>
    drawSeries(host, width, {
      xs: indices(data.steps.rates), ys: data.steps.rates, xLabel: "step",
      yLabel: "learning rate", bars: true,
    });
  plots["held-out"] = (host, width) =>
    drawSeries(host, width, {
      xs: indices(data.held_out), ys: data.held_out, xLabel: "stage", yLabel: "log-likelihood per step",
    });
  plots.trace = (host, width) =>
    drawSeries(host, width, {
      xs: data.trace.update, ys: data.trace.value, xLabel: "update", yLabel: "objective",
    });

  // --- movement and prediction ---------------------------------------------------------------

  plots.course = (host, width) => {
    const { moved, predicted, explained, noise, cosines, replayed } = data.course;
    const n = moved.length;
    const percent = (v) => (known(v) ? `${show(100 * v, Math.abs(v) < 0.1 ? 2 : 3)}%` : "–");
    const lengths = [["bar", "how far it went"], ["mark", "predicted"]];
    const shares = [["dot", "explained"]];
    if (noise) shares.push(["band", "what chance would change"]);
    const left = 62;
    const right = width - 8;
    const one = { top: 34, bottom: 204 };
    const two = { top: 258, bottom: 368 };
    const svg = canvas(host, width, two.bottom + 44);
    const x = scale(-0.5, n - 0.5, left, right);
    const room = x(1) - x(0);

    const legend = (entries, y) => {
      let at = left;
      for (const [kind, words] of entries) {
        if (kind === "bar") make("rect", { x: at, y: y - 7, width: 10, height: 14, rx: 2, class: "went" }, svg);
        if (kind === "band") make("rect", { x: at, y: y - 7, width: 14, height: 14, class: "band" }, svg);
        if (kind === "dot") make("circle", { cx: at + 5, cy: y, r: 4, class: "fill-for" }, svg);
        if (kind === "mark") {
          const line = { x1: at + 1, x2: at + 13, y1: y, y2: y, class: "for", "stroke-width": 3 };
          make("line", { ...line, "stroke-linecap": "round" }, svg);
        }
        const gap = kind === "mark" || kind === "band" ? 21 : 16;
        make("text", { x: at + gap, y: y + 4 }, svg, words);
        at += gap + 20 + 6.4 * words.length;
      }
    };
    legend(lengths, 12);
    legend(shares, 236);

    // Off the scale: an arrowhead at the edge, the number on hover.
    const arrowhead = (px, py, down) => {
      const wide = Math.max(2, Math.min(5, 0.45 * room));
      const points = `${px - wide},${py - 8 * down} ${px + wide},${py - 8 * down} ${px},${py}`;
      make("polygon", { points, class: "fill-against" }, svg);
    };
    const frame = (box, y, values, form, label) => {
      for (const tick of values) {
        make("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "gridline" }, svg);
        make("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, svg, form(tick));
      }
      const turned = { x: -(box.top + box.bottom) / 2, y: 12, transform: "rotate(-90)" };
      make("text", { ...turned, "text-anchor": "middle" }, svg, label);
    };
    const went = Math.max(...moved.filter(known)) || 1;
    // A prediction far too long must not make the rest invisible.
    const longest = Math.min(Math.max(went, ...predicted.filter(known)), 2.5 * went);
    const length = scale(0, longest * 1.04, one.bottom, one.top);
    frame(one, length, ticks(0, longest, 4), (v) => show(v), replayed ? "length, √(2 KL)" : "length");
    const thick = Math.max(1, Math.min(26, 0.62 * room));
    moved.forEach((v, i) => {
      if (!known(v)) return;
      const shape = { x: x(i) - thick / 2, y: length(v), width: thick, height: Math.max(one.bottom - length(v), 0.5) };
      make("rect", { ...shape, rx: Math.min(2, thick / 3), class: "went" }, svg);
    });
    make("line", { x1: left, x2: right, y1: one.bottom, y2: one.bottom, class: "axis" }, svg);
    const reach = Math.min(0.46 * room, thick / 2 + 4);
    predicted.forEach((v, i) => {
      if (!known(v)) return;
      if (v > longest) return arrowhead(x(i), one.top, -1);
      const line = { x1: x(i) - reach, x2: x(i) + reach, y1: length(v), y2: length(v), class: "for" };
      make("line", { ...line, "stroke-width": room < 8 ? 2 : 3, "stroke-linecap": "round" }, svg);
    });

    // Dots have no need of a zero, and the interesting part is at the top.
    const lows = explained.map((v, i) => Math.min(known(v) ? v : 1, noise && known(noise[i]) ? 1 - noise[i] : 1));
    const lowest = Math.min(...lows);
    const low = lowest >= 0.85 ? 0.8 : lowest >= 0.6 ? 0.5 : 0;
    const share = scale(low, 1, two.bottom, two.top);
    frame(two, share, ticks(low, 1, low === 0.5 ? 5 : 4), (v) => `${Math.round(100 * v)}%`, "explained");
    if (noise) {
      noise.forEach((v, i) => {
        if (!known(v)) return;
        const edge = share(Math.max(1 - v, low));
        make("rect", { x: x(i - 0.5), y: two.top, width: room + 0.05, height: Math.max(edge - two.top, 0.5), class: "band" }, svg);
      });
    }
    make("line", { x1: left, x2: right, y1: two.bottom, y2: two.bottom, class: "axis" }, svg);
    const radius = Math.max(1.6, Math.min(4, 0.3 * room));
    explained.forEach((v, i) => {
      if (!known(v)) return;
      if (v < low) {
        arrowhead(x(i), two.bottom, 1);
      } else make("circle", { cx: x(i), cy: share(v), r: radius, class: "fill-for" }, svg);
    });
    for (const tick of wholeTicks(0, n - 1, Math.min(n - 1, 10, width / 60))) {
      make("text", { x: x(tick), y: two.bottom + 18, "text-anchor": "middle" }, svg, String(tick));
    }
    make("text", { x: (left + right) / 2, y: two.bottom + 38, "text-anchor": "middle" }, svg, "step");

    const rule = make("line", { y1: one.top, y2: two.bottom, class: "axis", visibility: "hidden" }, svg);
    const area = { x: left, y: 0, width: right - left, height: two.bottom };
    const hot = make("rect", { ...area, fill: "transparent", class: "reader" }, svg);
    hover(hot, (event) => {
      const box = svg.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * width;
      const i = Math.max(0, Math.min(n - 1, Math.round((place - x(0)) / room)));
      for (const end of ["x1", "x2"]) rule.setAttribute(end, x(i));
      rule.setAttribute("visibility", "visible");
      const told = [
        `went ${show(moved[i])}, predicted ${show(predicted[i])}`,
        `cosine ${show(cosines[i])}, explained ${percent(explained[i])}`,
      ];
      if (noise) told.push(`chance would change ${percent(noise[i])}`);
      return [`step ${i}`, told];
    });
    hot.addEventListener("pointerleave", () => rule.setAttribute("visibility", "hidden"));
  };

  // --- bars by name --------------------------------------------------------------------------

  function drawBars(host, width, rows, label) {
    const longest = Math.max(...rows.map(([name]) => Array.from(name).length));
    const left = Math.min(width * 0.36, 16 + 7.2 * longest);
    const row = 30;
    const height = rows.length * row + 46;
    const values = rows.map(([, value]) => value).filter(known).concat([0]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = 52;
    const x = scale(low, high, left + (low < 0 ? room : 4), width - (high > 0 ? room : 4));
    const svg = canvas(host, width, height);
    rows.forEach(([name, value], i) => {
      const y = row * (i + 0.5);
      const at = { x: left - 8, y: y + 4, "text-anchor": "end", class: "name" };
      make("text", at, svg, shorten(name, left - 12));
      if (!known(value)) return;
      const [a, b] = [x(Math.min(value, 0)), x(Math.max(value, 0))];
      const shape = { x: a, y: y - 7, width: Math.max(b - a, 1), height: 14, rx: 2 };
      make("rect", { ...shape, class: value > 0 ? "fill-for" : "fill-open" }, svg);
      const end = value > 0 ? { x: b + 6, "text-anchor": "start" } : { x: a - 6, "text-anchor": "end" };
      make("text", { ...end, y: y + 4 }, svg, show(value));
      const hot = make("rect", { x: 0, y: y - row / 2, width, height: row, rx: 6, fill: "transparent", class: "hot" }, svg);
      hover(hot, () => [name, [`${label}: ${show(value, 4)}`]]);
    });
    make("line", { x1: x(0), x2: x(0), y1: 0, y2: rows.length * row, class: "zero" }, svg);
    make("text", { x: (left + width) / 2, y: height - 10, "text-anchor": "middle" }, svg, label);
  }
  plots.models = (host, width) => drawBars(host, width, data.models, "log evidence over a random walk");
  plots.gauge = (host, width) => {
    const names = data.weights.index.map((j) => data.names[j]);
    const rows = data.gauge.rows;
    if (rows.length === 1) {
      const used = rows[0].map((c, i) => [names[i], c]).filter(([, c]) => Math.abs(c) > 0.05);
      drawBars(host, width, used.slice(0, 80), "coefficient (largest = 1)");
      return;
    }
    const longest = Math.max(...names.map((name) => Array.from(name).length));
    const left = Math.min(width * 0.34, 16 + 7.2 * longest);
    const cell = Math.min(64, (width - left - 4) / rows.length);
    const tall = 20;
    const bottom = tall * names.length;
    const svg = canvas(host, width, bottom + 46);
    names.forEach((name, i) => {
      const y = tall * i;
      make("text", { x: left - 8, y: y + 14, "text-anchor": "end", class: "name" }, svg, shorten(name, left - 12));
      rows.forEach((row, k) => {
        const place = { x: left + k * cell, y, width: cell, height: tall };
        const look = colour(row[i]);
        const shape = make("rect", { ...place, ...look, class: `${look.class} cell` }, svg);
        hover(shape, () => [name, [`combination ${k + 1}: ${show(row[i], 2)}`]]);
      });
    });
    rows.forEach((_, k) => {
      make("text", { x: left + (k + 0.5) * cell, y: bottom + 18, "text-anchor": "middle" }, svg, k + 1);
    });
    const centre = left + (cell * rows.length) / 2;
    make("text", { x: centre, y: bottom + 38, "text-anchor": "middle" }, svg, "combination");
  };

  // --- maps ----------------------------------------------------------------------------------

  function drawCells(host, width, options) {
    const { rows, columns, paint, tell, after, labels } = options;
    host.classList.add("centred");
    const side = Math.min(width, 480);
    const margin = { left: options.extent ? 56 : 30, top: 4, bottom: options.key ? 74 : 40 };
    const cell = (side - margin.left - 4) / columns;
    const tall = options.square === false ? Math.min(cell, 300 / rows) : cell;
    const height = margin.top + tall * rows + margin.bottom;
    const svg = canvas(host, side, height);
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        const place = { x: margin.left + c * cell, y: margin.top + r * tall, width: cell, height: tall };
        const look = paint(r, c);
        const shape = make("rect", { ...place, ...look }, svg);
        if (options.fine) {
          // Edges on whole pixels: half-covered ones would show as a lattice.
          shape.setAttribute("shape-rendering", "crispEdges");
        }
        if (labels && cell >= 44) {
          const at = { x: place.x + cell / 2, "text-anchor": "middle", "pointer-events": "none" };
          const kind = (look["fill-opacity"] || 0) > 0.5 ? "name inverse" : "name";
          const [text, under] = labels(r, c);
          const middle = place.y + tall / 2;
          const above = under && tall >= 40 ? middle - 3 : middle + 4;
          if (text) make("text", { ...at, y: above, class: kind }, svg, shorten(text, cell - 6, 6.6));
          if (under && tall >= 40) {
            make("text", { ...at, y: middle + 13, class: kind === "name" ? "label" : "inverse" }, svg, under);
          }
        }
        if (after) after(svg, r, c, place);
        hover(shape, () => tell(r, c));
      }
    }
    const bottom = margin.top + tall * rows;
    const wide = cell * columns;
    const extent = options.extent;
    if (extent) {
      const x = scale(extent[0], extent[1], margin.left, margin.left + wide);
      const y = scale(extent[2], extent[3], bottom, margin.top);
      for (const t of ticks(extent[0], extent[1], 6)) {
        make("text", { x: x(t), y: bottom + 16, "text-anchor": "middle" }, svg, show(t));
      }
      for (const t of ticks(extent[2], extent[3], 6)) {
        make("text", { x: margin.left - 4, y: y(t) + 4, "text-anchor": "end" }, svg, show(t));
      }
    } else {
      for (let c = 0; c < columns; c += Math.ceil(columns / 12)) {
        make("text", { x: margin.left + (c + 0.5) * cell, y: bottom + 16, "text-anchor": "middle" }, svg, c + 1);
      }
      for (let r = 0; r < rows; r += Math.ceil(rows / 12)) {
        const at = { x: margin.left - 6, y: margin.top + (r + 0.5) * tall + 4, "text-anchor": "end" };
        make("text", at, svg, r + 1);
      }
    }
    const centre = margin.left + wide / 2;
    make("text", { x: centre, y: bottom + 34, "text-anchor": "middle" }, svg, options.x);
    const turned = { x: -(margin.top + (tall * rows) / 2), y: 10, transform: "rotate(-90)" };
    make("text", { ...turned, "text-anchor": "middle" }, svg, options.y);
    if (options.key) drawKey(svg, margin.left, bottom + 48, wide, options.key);
  }

  function drawKey(svg, left, top, wide, most) {
    const n = 24;
    const from = left + wide * 0.2;
    const part = (wide * 0.6) / n;
    for (let i = 0; i < n; i++) {
      const v = ((i + 0.5) / n) * 2 - 1;
      const place = { x: from + i * part, y: top, width: part + 0.4, height: 8 };
      make("rect", { ...place, ...colour(v) }, svg);
    }
    make("text", { x: from - 6, y: top + 8, "text-anchor": "end" }, svg, show(-most, 2));
    make("text", { x: from + wide * 0.6 + 6, y: top + 8 }, svg, show(most, 2));
    make("text", { x: from + wide * 0.3, y: top + 24, "text-anchor": "middle" }, svg, "reward per step");
  }

  function colour(share) {
    return { class: share < 0 ? "fill-against" : "fill-for", "fill-opacity": Math.min(1, Math.abs(share)) * 0.85 };
  }

  plots.map = (host, width) => {
    const { values, labels, extent, x, y } = data.map;
    const most = Math.max(...values.flat().filter(known).map(Math.abs)) || 1;
    const columns = values[0].length;
    const label = (r, c) => (labels.length ? labels[r * columns + c] : "");
    drawCells(host, width, {
      rows: values.length, columns, extent, x, y, key: most, fine: Boolean(extent),
      labels: extent ? null : (r, c) => [label(r, c), known(values[r][c]) ? show(values[r][c], 2) : ""],
      paint: (r, c) => {
        const v = values[r][c];
        if (!known(v)) return { class: "cell empty" };
        const look = colour(v / most);
        return extent ? look : { ...look, class: `${look.class} cell` };
      },
      tell: (r, c) => {
        const place = extent
          ? `${show(extent[0] + ((c + 0.5) / columns) * (extent[1] - extent[0]), 2)}, ` +
            `${show(extent[3] - ((r + 0.5) / values.length) * (extent[3] - extent[2]), 2)}`
          : `row ${r + 1}, column ${c + 1}`;
        return [label(r, c) || place, [known(values[r][c]) ? `reward ${show(values[r][c])}` : "never entered", place]];
      },
    });
  };

  plots.visits = (host, width) => {
    const views = data.stages;
    const visits = views.visits[state.stage];
    const policy = views.policies[state.stage];
    const n = visits.length;
    const drawn = data.map && !data.map.extent ? data.map : null;
    const columns = drawn ? drawn.values[0].length : Math.min(n, 10);
    const moves = drawn ? drawn.moves : [];
    const most = Math.max(...views.visits.map((row) => Math.max(...row)));
    drawCells(host, width, {
      rows: Math.ceil(n / columns), columns, x: "column", y: "row",
      paint: (r, c) => {
        const share = visits[r * columns + c];
        if (!share) return { class: "cell empty" };
        return { class: "cell fill-for", "fill-opacity": 0.06 + 0.7 * Math.sqrt(share / most) };
      },
      after: (svg, r, c, place) => {
        const s = r * columns + c;
        if (!visits[s] || place.width < 14) return;
        const [cx, cy] = [place.x + place.width / 2, place.y + place.height / 2];
        moves.forEach(([down, right], a) => {
          const p = policy[s][a];
          if (!known(p) || p < 0.04 || (!down && !right)) return;
          const reach = place.width * 0.46 * (0.2 + 0.8 * p);
          arrow(svg, cx, cy, right, down, reach, p);
        });
      },
      tell: (r, c) => {
        const s = r * columns + c;
        const told = [`${(100 * (visits[s] || 0)).toFixed(1)}% of the steps`];
        const words = { "1,0": "down", "-1,0": "up", "0,-1": "left", "0,1": "right", "0,0": "stays" };
        (policy[s] || []).forEach((p, a) => {
          if (known(p)) told.push(`${words[String(moves[a])] || `action ${a}`} ${Math.round(100 * p)}%`);
        });
        return [`state ${s}: row ${r + 1}, column ${c + 1}`, told];
      },
    });
  };

  function arrow(svg, cx, cy, dx, dy, reach, p) {
    const head = Math.min(6.5, reach * 0.5);
    const [ex, ey] = [cx + dx * reach, cy + dy * reach];
    const shade = 0.35 + 0.65 * p;
    const style = { "pointer-events": "none", "stroke-opacity": shade };
    make("line", { ...style, x1: cx, y1: cy, x2: ex - dx * head * 0.6, y2: ey - dy * head * 0.6, class: "ink", "stroke-width": 1.2 + 1.4 * p }, svg);
    const [px, py] = [-dy, dx];
    const points = [
      [ex, ey],
      [ex - dx * head + px * head * 0.6, ey - dy * head + py * head * 0.6],
      [ex - dx * head - px * head * 0.6, ey - dy * head - py * head * 0.6],
    ];
    const shape = { points: points.map((q) => q.join(",")).join(" "), class: "fill-ink", "fill-opacity": shade };
    make("polygon", { ...shape, "pointer-events": "none" }, svg);
  }

  // --- stages --------------------------------------------------------------------------------

  plots.returns = (host, width) => {
    const views = data.stages;
    drawSeries(host, width, {
      xs: views.stages, ys: views.returns, errors: views.return_errors, xLabel: "stage",
      yLabel: "mean return", marker: views.stages[state.stage], height: 260,
    });
  };
  plots.movement = (host, width) => {
    const views = data.stages;
    const noise = views.movement_noise;
    drawSeries(host, width, {
      xs: views.stages.slice(0, -1), ys: views.movement, bars: true, xLabel: "step from stage",
      yLabel: "movement", marker: views.stages[Math.min(state.stage, views.movement.length - 1)],
      lines: noise ? [{ values: noise, label: "by sampling alone" }] : [], height: 260,
    });
  };
  plots.expectations = (host, width) => {
    const views = data.stages;
    const names = views.features.map((j) => data.names[j]);
    const now = views.expectations[state.stage];
    const longest = Math.max(...names.map((name) => Array.from(name).length));
    const left = Math.min(width * 0.36, 16 + 7.2 * longest);
    const row = names.length > 20 ? 20 : 34;
    const bottom = row * names.length;
    const all = views.expectations.flat().filter(known).concat([0]);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const x = scale(low, high === low ? low + 1 : high, left + 6, width - 12);
    const svg = canvas(host, width, bottom + 46);
    for (const tick of ticks(low, high, Math.min(6, width / 70))) {
      make("line", { x1: x(tick), x2: x(tick), y1: 0, y2: bottom, class: "gridline" }, svg);
      make("text", { x: x(tick), y: bottom + 18, "text-anchor": "middle" }, svg, show(tick));
    }
    const centre = (left + width) / 2;
    make("text", { x: centre, y: bottom + 38, "text-anchor": "middle" }, svg, "discounted sum per episode");
    names.forEach((name, i) => {
      const y = row * (i + 0.5);
      const at = { x: left - 8, y: y + 4, "text-anchor": "end", class: "name" };
      make("text", at, svg, shorten(name, left - 12));
      const column = views.expectations.map((values) => values[i]).filter(known);
      const [a, b] = [Math.min(...column), Math.max(...column)];
      make("rect", { x: x(a), y: y - 5, width: Math.max(x(b) - x(a), 1), height: 10, rx: 5, class: "band" }, svg);
      const first = views.expectations[0][i];
      if (known(first)) {
        make("line", { x1: x(first), x2: x(first), y1: y - 8, y2: y + 8, class: "zero", "stroke-width": 2 }, svg);
      }
      if (known(now[i])) make("circle", { cx: x(now[i]), cy: y, r: 5.5, class: "fill-for" }, svg);
      const hot = make("rect", { x: 0, y: y - row / 2, width, height: row, rx: 6, fill: "transparent", class: "hot" }, svg);
      hover(hot, () => [
        name,
        [
          `stage ${views.stages[state.stage]}: ${show(now[i])} (std err ${show(views.expectation_errors[state.stage][i])})`,
          `first stage: ${show(first)}`,
        ],
      ]);
    });
  };

  // --- planning ------------------------------------------------------------------------------

  plots.planning = (host, width) => {
    const found = data.planning;
    const names = data.weights.index.map((j) => data.names[j]);
    const longest = Math.max(...names.map((name) => Array.from(name).length));
    const left = Math.min(width * 0.34, 16 + 7.4 * longest);
    const row = names.length > 60 ? 20 : 30;
    const top = 30;
    const bottom = top + row * names.length;
    const most = Math.max(...[found.now, found.episodes, found.stages].flat().filter(known)) || 1;
    const x = scale(0, most * 1.04, left, width - 14);
    const svg = canvas(host, width, bottom + 46);
    const kinds = [
      ["now", "now", "open fill-open"],
      ["episodes", width < 480 ? "2× episodes" : "twice the episodes", "for fill-card"],
      ["stages", width < 480 ? "2× stages" : "twice the stages", "for fill-for"],
    ];
    let at = width < 480 ? 0 : left;
    for (const [, label, look] of kinds) {
      make("circle", { cx: at + 5, cy: 10, r: 4.5, class: look, "stroke-width": 2 }, svg);
      make("text", { x: at + 16, y: 14 }, svg, label);
      at += 34 + 6.4 * label.length;
    }
    for (const tick of ticks(0, most, width < 480 ? 4 : 8)) {
      make("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "gridline" }, svg);
      make("text", { x: x(tick), y: bottom + 18, "text-anchor": "middle" }, svg, show(tick));
    }
    const label = `width of the 95% interval (${data.weights.unit})`;
    make("text", { x: (left + width) / 2, y: bottom + 38, "text-anchor": "middle" }, svg, label);
    names.forEach((name, i) => {
      const y = top + row * (i + 0.5);
      make("text", { x: left - 12, y: y + 4, "text-anchor": "end", class: "name" }, svg, shorten(name, left - 12));
      const values = kinds.map(([key]) => found[key][i]).filter(known);
      if (!values.length) return;
      const ends = { x1: x(Math.min(...values)), x2: x(Math.max(...values)), y1: y, y2: y };
      make("line", { ...ends, class: "axis", "stroke-width": 2 }, svg);
      for (const [key, , look] of kinds) {
        if (known(found[key][i])) {
          make("circle", { cx: x(found[key][i]), cy: y, r: 4.5, class: look, "stroke-width": 2 }, svg);
        }
      }
      const hot = make("rect", { x: 0, y: y - row / 2, width, height: row, rx: 6, fill: "transparent", class: "hot" }, svg);
      hover(hot, () => [name, kinds.map(([key, words]) => `${words}: ${show(found[key][i])}`)]);
    });
  };

  // --- life ----------------------------------------------------------------------------------

  const hosts = [...document.querySelectorAll("[data-plot]")];

  function draw(names) {
    for (const host of hosts) {
      const name = host.dataset.plot;
      const width = Math.floor(host.getBoundingClientRect().width);
      if (plots[name] && width > 0 && (!names || names.includes(name))) plots[name](host, width);
    }
  }

  function choose(name) {
    for (const input of document.querySelectorAll(`input[name="${name}"]`)) {
      input.addEventListener("change", () => {
        state[name] = input.value;
        draw(["weights"]);
      });
    }
  }
  choose("level");
  choose("order");

  const slider = document.getElementById("stage");
  const play = document.getElementById("play");

  function go(stage) {
    state.stage = stage;
    slider.value = String(stage);
    const { stages, n_stages: n } = data.stages;
    document.getElementById("stage-name").textContent = `stage ${stages[stage]} of ${n - 1}`;
    slider.setAttribute("aria-valuetext", `stage ${stages[stage]}`);
    draw(["visits", "returns", "expectations", "movement"]);
  }

  function pause() {
    clearInterval(state.playing);
    state.playing = null;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  }

  if (slider) {
    const last = Number(slider.max);
    slider.addEventListener("input", () => {
      pause();
      go(Number(slider.value));
    });
    play.addEventListener("click", () => {
      if (state.playing !== null) return pause();
      if (state.stage >= last) go(0);
      play.textContent = "Pause";
      play.setAttribute("aria-pressed", "true");
      // A whole history takes about twelve seconds, whatever its length.
      const pace = Math.max(120, Math.min(700, 12000 / (last + 1)));
      state.playing = setInterval(() => (state.stage >= last ? pause() : go(state.stage + 1)), pace);
    });
    go(last);
  }

  for (const input of document.querySelectorAll('input[name="verdict"]')) {
    input.addEventListener("change", () => {
      for (const row of document.querySelectorAll("tr[data-verdict]")) {
        row.hidden = input.value !== "all" && row.dataset.verdict !== input.value;
      }
    });
  }

  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const wished = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : wished.matches);

  function nameTheme() {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(isDark()));
    theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  }
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  wished.addEventListener("change", nameTheme);
  nameTheme();

  let waiting = 0;
  let drawnAt = window.innerWidth;
  window.addEventListener("resize", () => {
    // Phones resize when their bars slide away; only a new width calls for new drawings.
    if (window.innerWidth === drawnAt) return;
    drawnAt = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => draw(), 80);
  });
  draw();
  root.dataset.ready = "true";
})();
