"use strict";
// Which page is shown: the part of the address behind #. And the keys.

const main = document.querySelector("main");
let shown = 0;

async function show(keepPlace = false) {
  const turn = ++shown;
  const [, page, name, n, line] = location.hash.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  let content;
  try {
    content = page === "p" ? await problemPage(indexed, name)
      : page === "a" ? await attemptPage(indexed, name, Number(n), line && Number(line.replace("L", "")))
        : runPage(indexed);
  } catch (error) {
    content = [h("h1", {}, "This cannot be shown"), h("p", { class: "warning" }, error.message)];
  }
  if (turn !== shown) return;
  main.replaceChildren(...content.flat(Infinity).filter(Boolean));
  document.title = [n && `${name} ${n}`, !n && name, indexed.run.id].filter(Boolean).join(" – ");
  if (!keepPlace) scrollTo(0, 0);
  main.dataset.shown = location.hash || "#/";
}

function move(step) {
  const rows = [...document.querySelectorAll("table.list tbody tr")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.min(rows.length - 1, Math.max(0, at + step))]?.focus();
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  Enter: () => { const row = document.activeElement?.closest?.("tr[data-href]"); if (row && document.activeElement === row) location.hash = row.dataset.href; },
  "/": () => document.getElementById("search")?.focus(),
  u: () => { const links = [...document.querySelectorAll(".trail a")]; if (links.length) location.hash = links[links.length - 1].hash; },
  n: () => document.querySelector("[data-key=n]")?.click(),
  p: () => document.querySelector("[data-key=p]")?.click(),
  b: () => document.querySelector("[data-key=b]")?.click(),
  t: () => themed(document.documentElement.dataset.theme === "dark" ? "light" : document.documentElement.dataset.theme === "light" ? "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches ? "light" : "dark"),
  "?": () => document.getElementById("keys").showModal(),
};

function themed(name) {
  if (name) document.documentElement.dataset.theme = name;
  try { if (name) localStorage.setItem("theme", name); } catch { /* a file may have no storage */ }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches?.("input, select, textarea");
  if (typing) { if (event.key === "Escape") event.target.blur(); return; }
  const act = KEYS[event.key];
  if (!act) return;
  if (event.key !== "Enter") event.preventDefault();
  act();
});
document.addEventListener("click", (event) => {
  const row = event.target.closest?.("tr[data-href]");
  if (row && !event.target.closest("a, button")) location.hash = row.dataset.href;
  if (event.target.id === "help") KEYS["?"]();
  if (event.target.id === "theme") KEYS.t();
});
addEventListener("hashchange", () => show());

async function start() {
  try { themed(localStorage.getItem("theme")); } catch { /* a file may have no storage */ }
  indexed = await store.index();
  await show();
  let waiting = null;
  store.watch(() => {
    waiting ??= setTimeout(async () => {
      waiting = null;
      if (document.activeElement?.matches("input, select")) return;
      indexed = await store.index();
      if (!location.hash.startsWith("#/a/")) show(true);
    }, 500);
  });
}

start();
