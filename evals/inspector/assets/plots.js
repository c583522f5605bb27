"use strict";
// Plots as SVG. Each has a title for those who cannot see it, and colours that the style sheet sets by class.

const WIDTH = 640;
const HEIGHT = 240;
const EDGE = { left: 56, right: 12, top: 12, bottom: 36 };

function scale(domain, range, log = false) {
  const map = log ? Math.log : (x) => x;
  const [low, high] = domain.map(map);
  const span = high - low || 1;
  return (x) => range[0] + ((map(x) - low) / span) * (range[1] - range[0]);
}

function ticks(low, high, log) {
  if (log) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)) - 1; e <= Math.ceil(Math.log10(high)); e++) {
      for (const m of [1, 2, 5]) { const t = m * 10 ** e; if (t >= low * 0.999 && t <= high * 1.001) found.push(t); }
    }
    if (found.length >= 3) return found.length > 8 ? found.filter((_, i) => i % Math.ceil(found.length / 8) === 0) : found;
  }
  const raw = (high - low || 1) / 5, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * size).find((one) => one >= raw);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step / 1e6; t += step) found.push(Math.abs(t) < step / 1e6 ? 0 : t);
  return found;
}

function frame(title, x, y, labels, height = HEIGHT) {
  const box = { left: EDGE.left, right: WIDTH - EDGE.right, top: EDGE.top, bottom: height - EDGE.bottom };
  const at = { x: scale(x.domain, [box.left, box.right], x.log), y: scale(y.domain, [box.bottom, box.top], y.log) };
  const plot = s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", class: "plot" }, s("title", {}, title));
  for (const t of ticks(...x.domain, x.log)) {
    plot.append(s("line", { class: "grid", x1: at.x(t), x2: at.x(t), y1: box.top, y2: box.bottom }),
      s("text", { x: at.x(t), y: box.bottom + 15, "text-anchor": "middle" }, (x.format || number)(t)));
  }
  for (const t of y.silent ? [] : ticks(...y.domain, y.log)) {
    plot.append(s("line", { class: "grid", x1: box.left, x2: box.right, y1: at.y(t), y2: at.y(t) }),
      s("text", { x: box.left - 6, y: at.y(t) + 4, "text-anchor": "end" }, (y.format || number)(t)));
  }
  plot.append(s("text", { x: (box.left + box.right) / 2, y: height - 3, "text-anchor": "middle", class: "label" }, labels[0]));
  if (labels[1]) plot.append(s("text", { x: -(box.top + box.bottom) / 2, y: 12, transform: "rotate(-90)", "text-anchor": "middle", class: "label" }, labels[1]));
  return { plot, at, box };
}

function figure(caption, plot) {
  return h("figure", {}, h("div", { class: "wide" }, plot), h("figcaption", {}, caption));
}

function fastCurve(problems) {
  const total = problems.length;
  const sides = [["best", "against the fastest baseline"], ["eager", "against eager"], ["shipped", "against eager as shipped"], ["compile", "against the best torch.compile"]]
    .filter(([side]) => side !== "shipped" || problems.some((one) => one.speedups.shipped !== one.speedups.eager));
  const known = sides.map(([side, label]) => [side, label, problems.map((one) => one.counted[side]).filter((x) => x !== null)]).filter(([, , list]) => list.length);
  const most = Math.max(2, ...known.flatMap(([, , list]) => list)) * 1.05;
  const { plot, at, box } = frame("fast_p by p", { domain: [0, Math.min(most, 20)] }, { domain: [0, 1], format: percent }, ["p", "fast_p"]);
  known.forEach(([side, label, list], i) => {
    const sorted = [...list].sort((a, b) => a - b);
    let path = `M${at.x(0)} ${at.y(sorted.length / total)}`;
    sorted.forEach((x, j) => { path += `H${at.x(Math.min(x, 20))}V${at.y((sorted.length - j - 1) / total)}`; });
    path += `H${box.right}`;
    plot.append(s("path", { d: path, class: `curve c${i}` }));
  });
  plot.append(s("line", { class: "rule", x1: at.x(1), x2: at.x(1), y1: box.top, y2: box.bottom }));
  const legend = known.map(([, label], i) => h("span", { class: `name c${i}` }, `${label} `));
  return figure([`The share of the ${total} problems with a correct kernel more than p times as fast: `, legend], plot);
}

function histogram(counts) {
  const rows = [...counts].sort((a, b) => b[1] - a[1]);
  const most = Math.max(1, ...rows.map(([, count]) => count));
  const height = rows.length * 24 + 8;
  const plot = s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", class: "plot" }, s("title", {}, "How the attempts ended"));
  rows.forEach(([name, count], i) => {
    const y = 4 + 24 * i;
    plot.append(s("text", { x: 200, y: y + 15, "text-anchor": "end" }, name), s("rect", { x: 208, y: y + 3, height: 16, width: Math.max(2, (count / most) * 370), class: `bar ${kindOf(name)}` }),
      s("text", { x: 214 + (count / most) * 370, y: y + 15 }, count));
  });
  return figure("How the attempts ended.", plot);
}

function progressPlot(attempts, along, label, link) {
  const passing = attempts.filter((one) => one.speedup !== null && along(one) !== null);
  if (!passing.length) return h("p", { class: "quiet" }, `No correct kernel${attempts.some((one) => one.speedup !== null) ? " of a known cost" : ""} yet.`);
  const ends = attempts.map(along).filter((x) => x !== null);
  const speedups = passing.flatMap((one) => [one.speedup, one.counted]);
  const y = { domain: [Math.min(0.9, ...speedups) * 0.95, Math.max(1.1, ...speedups) * 1.05], log: true, format: (t) => `${number(t, 2)} ×` };
  const { plot, at, box } = frame(`Best speedup so far against ${label}`, { domain: [0, Math.max(...ends) || 1] }, y, [label, "speedup"]);
  plot.append(s("line", { class: "rule", x1: box.left, x2: box.right, y1: at.y(1), y2: at.y(1) }));
  let best = 0, path = "";
  for (const one of passing) {
    if (one.counted > best) { path += best ? `H${at.x(along(one))}V${at.y(one.counted)}` : `M${at.x(along(one))} ${at.y(one.counted)}`; best = one.counted; }
  }
  plot.append(s("path", { d: `${path}H${box.right}`, class: "curve c0" }));
  for (const one of passing) {
    plot.append(s("a", { href: link(one.n), "aria-label": `attempt ${one.n}, ${times(one.speedup)}${one.marks}` }, s("circle", { cx: at.x(along(one)), cy: at.y(one.speedup), r: 3.5, class: "dot passed" }, s("title", {}, `attempt ${one.n}: ${times(one.speedup)}${one.marks}`))));
  }
  return figure(`Best so far, and every correct kernel, against ${label}.`, plot);
}

function lineage(attempts, link, best) {
  const children = new Map();
  for (const one of attempts) children.set(one.parent ?? 0, [...(children.get(one.parent ?? 0) || []), one]);
  const placed = new Map();
  let lane = 0, deepest = 0;
  const stack = [...(children.get(0) || [])].reverse().map((one) => [one, 0]);
  while (stack.length) {
    const [one, depth] = stack.pop();
    const siblings = children.get(one.parent ?? 0);
    if (siblings[0] !== one || depth === 0) lane += placed.size ? 1 : 0;
    placed.set(one.n, { one, depth, lane });
    deepest = Math.max(deepest, depth);
    for (const child of [...(children.get(one.n) || [])].reverse()) stack.push([child, depth + 1]);
  }
  const stepX = 80, stepY = 22, width = (deepest + 1) * stepX + 60, height = (lane + 1) * stepY + 8;
  const plot = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "tree", role: "img" }, s("title", {}, "Which attempt started from which"));
  const x = (place) => 16 + place.depth * stepX, y = (place) => 14 + place.lane * stepY;
  for (const place of placed.values()) {
    const parent = placed.get(place.one.parent);
    if (parent) plot.append(s("path", { class: "branch", d: `M${x(parent)} ${y(parent)}V${y(place)}H${x(place)}` }));
  }
  for (const place of placed.values()) {
    const { one } = place;
    const label = `${one.n}${one.speedup === null ? "" : ` ${one.speedup.toFixed(1)}×${one.counted < one.speedup ? "?" : ""}`}`;
    plot.append(s("a", { href: link(one.n), "aria-label": `attempt ${one.n}: ${one.outcome}` }, s("title", {}, `attempt ${one.n}, ${one.role}: ${one.outcome}${one.marks && `, ${times(one.speedup)}${one.marks}`}${one.idea ? `, ${one.idea}` : ""}`),
      s("circle", { cx: x(place), cy: y(place), r: one.n === best ? 7 : 5, class: `dot ${kindOf(one.outcome)}${one.n === best ? " best" : ""}` }), s("text", { x: x(place) + 9, y: y(place) - 4 }, label)));
  }
  return h("div", { class: "wide" }, plot);
}

function rooflinePlot(attempts, limits, link) {
  const passing = attempts.filter((one) => one.ms);
  if (!passing.length) return h("p", { class: "quiet" }, "No time was measured.");
  const lines = [...Object.entries(limits.baselines), ...(limits.floor ? [["floor of the device", limits.floor]] : [])];
  const all = [...passing.map((one) => one.ms), ...lines.map(([, ms]) => ms)];
  const { plot, at, box } = frame("Time against the roofline's floor", { domain: [0, attempts.length] }, { domain: [Math.min(...all) * 0.85, Math.max(...all) * 1.15], log: true }, ["attempt", "ms"]);
  lines.forEach(([name, ms], i) => plot.append(s("line", { class: name.startsWith("floor") ? "floor" : "rule", x1: box.left, x2: box.right, y1: at.y(ms), y2: at.y(ms) }), s("text", i % 2 ? { x: box.left + 4, y: at.y(ms) - 4 } : { x: box.right - 4, y: at.y(ms) - 4, "text-anchor": "end" }, `${name}: ${number(ms)} ms`)));
  for (const one of passing) plot.append(s("a", { href: link(one.n), "aria-label": `attempt ${one.n}, ${number(one.ms)} ms` }, s("circle", { cx: at.x(one.n), cy: at.y(one.ms), r: 3.5, class: "dot passed" }, s("title", {}, `attempt ${one.n}: ${number(one.ms)} ms${limits.floor ? `, ${percent(limits.floor / one.ms)} of the floor` : ""}`))));
  return figure(limits.floor ? "Times of correct kernels, the baselines, and the least time that the device's peaks allow." : "Times of correct kernels and baselines. No floor has been traced for this problem.", plot);
}

function stripPlot(pairings) {
  const rows = pairings.flatMap((one) => [[`candidate (with ${one.baseline})`, one.candidate_ms, "candidate"], [one.baseline, one.baseline_ms, "baseline"]]);
  const all = rows.flatMap(([, list]) => list);
  const height = 34 * rows.length + 50;
  const { plot, at, box } = frame("Raw samples", { domain: [Math.min(...all) * 0.97, Math.max(...all) * 1.03], log: true }, { domain: [0, 1], silent: true }, ["ms, on the judge's clock", ""], height);
  rows.forEach(([name, list, kind], i) => {
    const y = box.top + 20 + 34 * i;
    const sorted = [...list].sort((a, b) => a - b), half = (list.length - 1) / 2;
    const middle = (sorted[Math.floor(half)] + sorted[Math.ceil(half)]) / 2;
    plot.append(s("text", { x: box.left, y: y - 9 }, `${name}: median ${number(middle)} ms, ${list.length} samples`));
    list.forEach((ms, j) => plot.append(s("circle", { cx: at.x(ms), cy: y + ((j * 7) % 9) - 3, r: 2.6, class: `sample ${kind}` })));
    plot.append(s("line", { class: "median", x1: at.x(middle), x2: at.x(middle), y1: y - 6, y2: y + 10 }));
  });
  return figure("Every timed call; candidate and baseline took turns on the same values.", plot);
}
