"use strict";
// The three pages: the run, a problem, an attempt. Each gives the elements of <main>.

const KINDS = ["passed", "scan", "build", "load", "run", "check", "time", "none"];

const LEFT = new Set(["problem", "family", "ended", "role", "idea", "outcome", "kernel"]);

function kindOf(outcome) {
  if (outcome === "passed") return "passed";
  return KINDS.find((kind) => outcome.endsWith(` ${kind}`)) || "none";
}

const problemLink = (name) => `#/p/${encodeURIComponent(name)}`;
const attemptLink = (name, n) => `#/a/${encodeURIComponent(name)}/${n}`;
const badge = (outcome) => h("span", { class: `badge ${kindOf(outcome)}` }, outcome);
const sum = (list) => (list.some((x) => x === null) ? null : list.reduce((a, b) => a + b, 0));
const jsonText = (value) => JSON.stringify(value, null, 2);

function runPage(index) {
  const { run, problems } = index;
  const attempts = problems.flatMap((one) => one.attempts.map((attempt) => ({ ...attempt, problem: one.name })));
  const solved = problems.filter((one) => one.best !== null).length;
  const counts = new Map();
  attempts.forEach((one) => counts.set(one.outcome, (counts.get(one.outcome) || 0) + 1));
  return [
    h("h1", {}, run.id),
    facts([["device", run.device], ["started", run.started], ["model", run.model], ["strategy", `${run.strategy}, target ${run.target}`],
      ["problems", `${solved} of ${problems.length} solved`], ["attempts", attempts.length], ["cost", dollars(sum(attempts.map((one) => one.cost)))],
      ["tokens", sum(attempts.map((one) => one.tokens))?.toLocaleString("en")], ["commit", run.commit]]),
    h("div", { class: "pair" }, fastCurve(problems), histogram(counts)),
    h("h2", {}, "Problems"), problemTable(problems),
    run.left_out.map((one) => h("p", { class: "warning" }, `${one.problem} was left out: ${one.why}`)),
    h("h2", {}, "Attempts"), attemptTable(attempts, true),
    fold("Configuration and versions", () => h("pre", { tabindex: 0 }, jsonText({ config: run.config, versions: run.versions }))),
  ];
}

function problemTable(problems) {
  const head = ["problem", "family", "attempts", "passed", "against the fastest", "against eager", "as shipped", "against compile", "ended"];
  return h("div", { class: "wide" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { class: LEFT.has(name) && "text" }, name)))),
    h("tbody", {}, problems.map((one) => h("tr", { "data-href": problemLink(one.name), tabindex: -1 },
      h("td", { class: "text" }, h("a", { href: problemLink(one.name) }, one.name), one.weak?.length ? h("span", { class: "badge time", title: one.weak.join("; ") }, "weak") : null),
      h("td", { class: "text" }, one.family), h("td", {}, one.attempts.length), h("td", {}, one.attempts.filter((a) => a.outcome === "passed").length),
      h("td", {}, one.best === null ? "–" : h("a", { href: attemptLink(one.name, one.best) }, one.said.best)),
      ["eager", "shipped", "compile"].map((side) => h("td", {}, one.said[side] || "–")), h("td", { class: "text" }, one.stopped || "not yet"))))));
}

function attemptTable(attempts, named) {
  const body = h("tbody", {}), count = h("span", { class: "quiet", role: "status" });
  const search = h("input", { type: "search", id: "search", placeholder: "search attempts ( / )", "aria-label": "search attempts" });
  const kinds = [...new Set(attempts.map((one) => one.outcome))].sort();
  const choice = h("select", { id: "outcome", "aria-label": "outcome" }, h("option", { value: "" }, "every outcome"), kinds.map((kind) => h("option", { value: kind }, kind)));
  const order = h("select", { id: "order", "aria-label": "order" }, [["n", "in order"], ["counted", "fastest first"], ["cost", "dearest first"]].map(([value, label]) => h("option", { value }, label)));
  const rows = attempts.map((one) => ({ one, row: attemptRow(one, named), words: `${one.problem} ${one.n} ${one.role} ${one.idea} ${one.outcome} ${one.model} ${one.auth || ""}`.toLowerCase() }));
  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter(({ one, words: text }) => (!choice.value || one.outcome === choice.value) && words.every((word) => text.includes(word)));
    if (order.value !== "n") found.sort((a, b) => (b.one[order.value] ?? -1) - (a.one[order.value] ?? -1));
    body.replaceChildren(...found.map(({ row }) => row));
    count.textContent = `${found.length} of ${rows.length}`;
  };
  [search, choice, order].forEach((control) => control.addEventListener("input", show));
  show();
  const head = [named && "problem", "attempt", "role", "from", "idea", "outcome", "speedup", "ms", "cost", "kernel"].filter(Boolean);
  return [h("div", { class: "controls" }, search, choice, order, count),
    h("div", { class: "wide" }, h("table", { class: "list", id: "attempts" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { class: LEFT.has(name) && "text" }, name)))), body))];
}

function attemptRow(one, named) {
  const link = attemptLink(one.problem, one.n);
  return h("tr", { "data-href": link, tabindex: -1 }, named && h("td", { class: "text" }, one.problem),
    h("td", {}, h("a", { href: link }, one.n)), h("td", { class: "text" }, one.role), h("td", {}, one.parent ?? ""), h("td", { class: "text idea" }, one.idea),
    h("td", { class: "text" }, badge(one.outcome)), h("td", {}, times(one.speedup), one.marks), h("td", {}, number(one.ms)), h("td", {}, dollars(one.cost)), h("td", { class: "text" }, one.auth || ""));
}

async function problemPage(index, name) {
  const problem = index.problems.find((one) => one.name === name);
  if (!problem) return [h("h1", {}, "No such problem"), h("p", {}, name)];
  const attempts = problem.attempts.map((one) => ({ ...one, problem: name }));
  const link = (n) => attemptLink(name, n);
  const reference = await store.reference(name);
  const best = problem.best === null ? null : await store.attempt(name, problem.best);
  let spent = 0;
  const along = new Map(attempts.map((one) => { spent = one.cost === null || spent === null ? null : spent + one.cost; return [one.n, spent]; }));
  return [
    h("p", { class: "trail" }, h("a", { href: "#/" }, index.run.id)),
    h("h1", {}, problem.name), h("p", {}, problem.title),
    problem.fault ? h("p", { class: "warning" }, problem.stopped) : null,
    problem.weak?.length ? h("p", { class: "warning" }, `A weak problem, not ranked: ${problem.weak.join("; ")}.`) : null,
    facts([["family", problem.family], ["size", problem.size], ["precision", problem.precision], ["operators", problem.operators], ["direction", problem.direction],
      ["best", problem.best === null ? "none" : h("a", { href: link(problem.best) }, `attempt ${problem.best}, ${problem.said.best}`)],
      ["baselines", Object.entries(problem.baselines).map(([label, ms]) => `${label} ${number(ms)} ms`).join(", ")],
      ["floor", problem.floor === null ? "not traced" : `${number(problem.floor)} ms`], ["ended", problem.stopped || "not yet"], ["digest", h("code", {}, problem.digest.slice(0, 16))]]),
    h("div", { class: "pair" }, progressPlot(attempts, (one) => one.n, "attempts", link), progressPlot(attempts, (one) => along.get(one.n), "US dollars spent", link)),
    h("div", { class: "pair" }, rooflinePlot(attempts, problem, link), histogram(attempts.reduce((map, one) => map.set(one.outcome, (map.get(one.outcome) || 0) + 1), new Map()))),
    fold("Lineage", () => lineage(attempts, link, problem.best), attempts.length <= 200),
    h("h2", {}, "Attempts"), attemptTable(attempts, false),
    h("h2", {}, "Reference next to the best"),
    h("div", { class: "pair" }, h("section", {}, h("h3", {}, "reference"), sourceView(reference, "reference")),
      h("section", {}, h("h3", {}, "best"), best?.source ? sourceView(best.source, "candidate") : h("p", { class: "quiet" }, "No correct kernel yet."))),
    fold("problem.toml: the rules of judging, next to the reference", () => plain(problem.manifest)),
  ];
}

async function attemptPage(index, name, n, line) {
  const problem = index.problems.find((one) => one.name === name);
  const summary = problem?.attempts[n - 1];
  if (!summary) return [h("h1", {}, "No such attempt"), h("p", {}, `${name}, ${n}`)];
  const detail = await store.attempt(name, n);
  if (line) setTimeout(() => showLine(line, "candidate"));
  return [
    h("p", { class: "trail" }, h("a", { href: "#/" }, index.run.id), " / ", h("a", { href: problemLink(name) }, name)),
    h("h1", {}, `Attempt ${n} `, badge(summary.outcome)),
    neighbours(problem, n),
    facts([["role", summary.role], ["idea", summary.idea], ["model", detail.reply_model || summary.model],
      ["from", summary.parent && h("a", { href: attemptLink(name, summary.parent) }, `attempt ${summary.parent}`)],
      ["same program as", detail.same_as && h("a", { href: attemptLink(name, detail.same_as) }, `attempt ${detail.same_as}`)],
      ["speedup", detail.low !== null && `${times(detail.speedup)} [${detail.low.toFixed(2)}, ${detail.high.toFixed(2)}], ${detail.comparison.replace("_", " ")}${detail.timing_clock === "events" || detail.timing_clock === "bound" ? ", older clock" : ""}${Object.keys(detail.speedups).length > 1 ? `, against the fastest baseline, ${detail.against}` : ""}`],
      ...Object.entries(detail.speedups).map(([label, ratio]) => [`against ${label}${detail.less_accurate?.includes(label) ? ", less accurate" : ""}`, `${times(ratio)} (${number(detail.baselines_ms?.[label])} ms)`]),
      ["time", detail.candidate_ms && `${number(detail.candidate_ms)} ms`],
      ...Object.entries(detail.times || {}).map(([side, three]) => [`${side}: GPU time, call latency, host time`, `${Object.values(three).map((ms) => number(ms)).join(", ")} ms`]),
      ["launch-bound", detail.launch_bound && "use a CUDA graph"], ["of the floor", detail.floor_ms && percent(detail.floor_ms / detail.candidate_ms)],
      ["judged", detail.first && "twice; what stands here is the second verdict"], ["first verdict", detail.first]]),
    failure(detail),
    detail.pairings.length ? stripPlot(detail.pairings) : null,
    h("h2", {}, "Source"), sourceAndDiffs(problem, summary, detail),
    h("h2", {}, "Evidence"), evidence(detail),
    h("h2", {}, "Reply"), replyView(detail),
    h("h2", {}, "Prompt"), detail.sections.map((section) => fold(`${section.name}, about ${section.tokens} tokens${section.stable ? "" : ", of this attempt alone"}`, () => plain(section.text))),
    detail.reproduce && [h("h2", {}, "Judge it again"), h("div", { class: "wide" }, h("pre", { tabindex: 0 }, detail.reproduce), copyButton(detail.reproduce)),
      h("p", { class: "quiet" }, "All but the last command read the run's folder. Without it, save the source above as candidate.py, and reference.py and problem.toml, which stand on the ",
        h("a", { href: problemLink(name) }, "problem's page"), ", in a folder named problem.")],
  ];
}

function neighbours(problem, n) {
  const near = [[n - 1, "previous", "p"], [n + 1, "next", "n"], [problem.best, "best", "b"]];
  return h("p", { class: "near" }, near.filter(([one]) => one && one !== n && one <= problem.attempts.length)
    .map(([one, label, key]) => [h("a", { href: attemptLink(problem.name, one), "data-key": key }, `${label} (${one})`), " "]));
}

function failure(detail) {
  if (detail.why) return h("section", { class: "failure" }, h("h2", {}, `No candidate: ${detail.why.kind}`), plain(detail.why.detail));
  if (detail.outcome !== "failed") return null;
  const [first, ...rest] = detail.reason.split("\n");
  return h("section", { class: "failure" }, h("h2", {}, `Failed at ${detail.stage}`), h("p", { class: "reason" }, cutLines(first)),
    rest.length ? plain(rest.join("\n")) : null, detail.log ? fold("Log", () => logView(detail.log, detail.source), true) : null);
}

function sourceAndDiffs(problem, summary, detail) {
  if (!detail.source) return h("p", { class: "quiet" }, "The reply held no candidate.");
  const other = (label, load) => fold(label, () => {
    const box = h("div", {}, h("p", { class: "quiet" }, "…"));
    load().then((text) => box.replaceChildren(text === null ? h("p", { class: "quiet" }, "It has no source.") : diffView(text, detail.source)));
    return box;
  });
  const of = (n) => async () => (await store.attempt(problem.name, n)).source;
  return [
    h("p", { class: "quiet" }, `${detail.language}; ${detail.how}`, detail.warnings.map((one) => h("span", { class: "warning" }, ` ${one}`)), " ", copyButton(detail.source)),
    sourceView(detail.source, "candidate"),
    summary.parent ? other(`Difference from parent, attempt ${summary.parent}`, of(summary.parent)) : null,
    problem.best && problem.best !== summary.n ? other(`Difference from best, attempt ${problem.best}`, of(problem.best)) : null,
    other("Difference from the reference", () => store.reference(problem.name)),
  ];
}

function evidence(detail) {
  const found = detail.evidence;
  if (!found) return h("p", { class: "quiet" }, "It was not judged.");
  return [facts([["kernel", found.authenticity], ["jail", found.jail.join(", ") || "none"], ["deterministic", found.deterministic === null ? null : found.deterministic ? "yes" : "no"],
    ["defences off", found.without.join(", ")], ["seconds", Object.entries(found.seconds).map(([stage, s]) => `${stage} ${number(s)}`).join(", ")],
    ["versions", Object.entries(found.versions).map(([what, v]) => `${what} ${v}`).join("; ")]]),
  found.remarks.length ? h("ul", {}, found.remarks.map((one) => h("li", {}, one))) : null];
}

function replyView(detail) {
  if (detail.reply === null) return h("p", { class: "quiet" }, "No reply.");
  const usage = facts([["finish", detail.finish_reason], ["latency", detail.latency_s && `${number(detail.latency_s)} s`], ["provider", detail.provider],
    ...Object.entries(detail.usage).map(([name, value]) => [name.replace("_", " "), value === null ? null : name === "cost_usd" ? dollars(value) : value]), ["note", detail.note]]);
  const parts = [];
  let at = 0;
  for (const match of detail.reply.matchAll(/<(think|thinking|reasoning)>([\s\S]*?)(?:<\/\1>|$)/g)) {
    if (match.index > at) parts.push(["text", detail.reply.slice(at, match.index)]);
    parts.push(["reasoning", match[2]]);
    at = match.index + match[0].length;
  }
  if (at < detail.reply.length) parts.push(["text", detail.reply.slice(at)]);
  return [usage, detail.reasoning ? fold(`Reasoning, ${detail.reasoning.length} characters`, () => plain(detail.reasoning)) : null,
    parts.map(([kind, text]) => kind === "reasoning" ? fold(`Reasoning, ${text.length} characters`, () => plain(text)) : text.trim() ? plain(text.trim()) : null)];
}
