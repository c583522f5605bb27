"use strict";
// Elements from text alone: nothing here or elsewhere parses HTML, so words of a model stay words.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const SHOWN_CHARACTERS = 60000;
const SHOWN_LINE = 4000;

function cutLines(text) {
  // One endless line would keep the browser busy for minutes; what is left out can be asked for.
  return text.split("\n").map((line) => line.length > SHOWN_LINE
    ? `${line.slice(0, SHOWN_LINE)} [... ${line.length - SHOWN_LINE} more characters in this line]` : line).join("\n");
}

function longText(text, render) {
  const short = cutLines(text.length > SHOWN_CHARACTERS ? text.slice(0, SHOWN_CHARACTERS) : text);
  const box = h("div", {}, render(short));
  if (text.length > SHOWN_CHARACTERS) {
    box.append(h("p", { class: "quiet" }, `Shown: the first ${SHOWN_CHARACTERS} of ${text.length} characters.`));
  }
  return box;
}

const plain = (text) => longText(text, (shown) => h("pre", { tabindex: 0 }, shown));

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1000 || size < 0.001 ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}

const times = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(2)} ×`);
const percent = (share) => `${Math.round(100 * share)} %`;
const dollars = (value) => (value === null || value === undefined ? "–" : `$${value.toFixed(value < 1 ? 4 : 2)}`);

function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function fold(title, content, open = false) {
  const box = h("details", { open }, h("summary", {}, title));
  let filled = false;
  const show = () => { if (box.open && !filled) { filled = true; box.append(content()); } };
  box.addEventListener("toggle", show);
  show();
  return box;
}

function copyButton(text, label = "copy") {
  const button = h("button", { type: "button", click: () => {
    navigator.clipboard?.writeText(text).then(() => { button.textContent = "copied"; }, () => {});
  } }, label);
  return button;
}
