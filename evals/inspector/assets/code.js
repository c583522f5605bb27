"use strict";
// Source with colours and numbered lines, logs with links into it, and differences between two sources.

const PYTHON = /(#[^\n]*)|([rRbBfFuU]{0,2}(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))|\b(and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False|self)\b|(\b\d[\w.]*)|(@[\w.]+)/g;
const CPP = /(\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|\b(alignas|auto|bool|break|case|char|class|const|constexpr|continue|default|do|double|else|enum|extern|float|for|half|if|inline|int|int32_t|int64_t|long|namespace|nullptr|return|short|signed|size_t|sizeof|static|struct|switch|template|typename|uint32_t|uint64_t|unsigned|using|void|volatile|while|__global__|__device__|__shared__|__host__|__restrict__|__launch_bounds__|true|false)\b|(\b\d[\w.]*)|(^[ \t]*#[^\n]*)/gm;
const CLASSES = [null, "comment", "string", "keyword", "number", "mark"];

function tokens(text, grammar) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(grammar)) {
    if (match.index > at) found.push(["", text.slice(at, match.index)]);
    const kind = CLASSES[match.slice(1).findIndex((group) => group !== undefined) + 1];
    if (kind === "string" && grammar === PYTHON && /^[rRbBfFuU]{0,2}("""|''')/.test(match[0]) && /#include|__global__|;\s*\n/.test(match[0])) {
      found.push(...tokens(match[0], CPP));
    } else found.push([kind, match[0]]);
    at = match.index + match[0].length;
  }
  if (at < text.length) found.push(["", text.slice(at)]);
  return found;
}

function codeLines(text) {
  // One list of [class, text] for each line.
  const lines = [[]];
  for (const [kind, piece] of tokens(text, PYTHON)) {
    piece.split("\n").forEach((part, i) => {
      if (i) lines.push([]);
      if (part) lines[lines.length - 1].push([kind, part]);
    });
  }
  return lines;
}

const spans = (line) => line.map(([kind, text]) => (kind ? h("span", { class: kind }, text) : text));

function sourceView(text, name) {
  return longText(text, (shown) => h("ol", { class: "code", "data-source": name },
    codeLines(shown.replace(/\n$/, "")).map((line, i) => h("li", { "data-line": i + 1 }, spans(line), "\n"))));
}

function showLine(line, name) {
  const target = document.querySelector(`[data-source="${name}"] [data-line="${line}"]`);
  if (!target) return;
  for (let box = target.parentElement; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
  document.querySelectorAll(".pointed").forEach((one) => one.classList.remove("pointed"));
  target.classList.add("pointed");
  target.scrollIntoView({ block: "center" });
}

function quotedLines(log, source) {
  // A compiler counts the lines of a string inside the candidate; the line that it quotes says which one is meant.
  const places = new Map();
  (source || "").split("\n").forEach((line, i) => {
    const key = line.trim();
    if (key.length > 3) places.set(key, places.has(key) ? 0 : i + 1);
  });
  const found = new Map();
  for (const match of log.matchAll(/^\s*(\d+) \|(.*)$/gm)) {
    const place = places.get(match[2].trim());
    if (place) found.set(Number(match[1]), place);
  }
  return found;
}

function logView(log, source) {
  const quoted = quotedLines(log, source);
  return longText(log, (shown) => h("pre", { tabindex: 0 }, shown.split("\n").map((line) => {
    const python = line.match(/candidate\.py", line (\d+)/);
    const native = line.match(/^\s*(\d+) \||[\w.]+:(\d+):(?:\d+:)?/);
    const place = python ? Number(python[1]) : native ? quoted.get(Number(native[1] ?? native[2])) : null;
    if (!place) return [line, "\n"];
    return [h("button", { type: "button", class: "link", click: () => showLine(place, "candidate") }, line), "\n"];
  })));
}

function lineDiff(before, after) {
  // Myers' greedy algorithm over lines, after the common head and tail. Gives [mark, line, numberBefore, numberAfter].
  const a = before.split("\n"), b = after.split("\n");
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const middle = changes(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const marked = [...a.slice(0, head).map((line) => [" ", line]), ...middle, ...a.slice(a.length - tail).map((line) => [" ", line])];
  let left = 0, right = 0;
  return marked.map(([mark, line]) => {
    if (mark !== "+") left++;
    if (mark !== "-") right++;
    return [mark, line, mark === "+" ? "" : left, mark === "-" ? "" : right];
  });
}

const FARTHEST = 1500;

function changes(a, b) {
  const trail = [];
  let reach = new Map([[1, 0]]);
  for (let d = 0; d <= a.length + b.length; d++) {
    if (d > FARTHEST) return [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
    trail.push(new Map(reach));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? reach.get(k + 1) ?? 0 : (reach.get(k - 1) ?? 0) + 1;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) { x++; y++; }
      reach.set(k, x);
      if (x >= a.length && y >= b.length) return walked(a, b, trail, d);
    }
  }
  return [];
}

function walked(a, b, trail, last) {
  const steps = [];
  let x = a.length, y = b.length;
  for (let d = last; d > 0; d--) {
    const reach = trail[d], k = x - y;
    const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const px = reach.get(from) ?? 0, py = px - from;
    while (x > px && y > py && x > 0 && y > 0 && a[x - 1] === b[y - 1]) { steps.push([" ", a[--x]]); y--; }
    if (down) steps.push(["+", b[--y]]); else steps.push(["-", a[--x]]);
  }
  while (x > 0 && y > 0) { steps.push([" ", a[--x]]); y--; }
  return steps.reverse();
}

const CONTEXT = 3;

function diffView(before, after) {
  if (before === after) return h("p", { class: "quiet" }, "The two are the same.");
  const lines = lineDiff(cutLines(before), cutLines(after));
  const near = new Set();
  lines.forEach(([mark], i) => { if (mark !== " ") for (let j = i - CONTEXT; j <= i + CONTEXT; j++) near.add(j); });
  const rows = [];
  let skipped = 0;
  const skip = () => { if (skipped) rows.push(h("tr", { class: "skipped" }, h("td", { colspan: 4 }, `${skipped} equal lines`))); skipped = 0; };
  lines.forEach(([mark, line, left, right], i) => {
    if (!near.has(i)) { skipped++; return; }
    skip();
    const kind = mark === "+" ? "added" : mark === "-" ? "removed" : "";
    rows.push(h("tr", { class: kind }, h("td", { class: "line" }, left), h("td", { class: "line" }, right), h("td", {}, mark), h("td", { class: "text" }, spans(codeLines(line)[0]))));
  });
  skip();
  const count = (which) => lines.filter(([mark]) => mark === which).length;
  return h("div", { class: "wide diff" }, h("p", { class: "quiet" }, `${count("+")} lines added, ${count("-")} removed`), h("table", {}, h("tbody", {}, rows)));
}
