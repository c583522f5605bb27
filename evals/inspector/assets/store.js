"use strict";
// Where the data comes from: this very file, or the server that gave it. Both say the same.

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function fileStore() {
  const chunks = new Map();
  const chunk = (name) => {
    if (!chunks.has(name)) chunks.set(name, unpacked(name));
    return chunks.get(name);
  };
  return {
    index: () => unpacked("index"),
    async attempt(problem, n) {
      const entry = indexed.problems.find((one) => one.name === problem);
      const own = await chunk(entry.attempts[n - 1].chunk);
      const shared = await chunk("shared");
      const joined = (parts) => parts === null ? null
        : parts.map((part) => typeof part === "string" ? part : own.texts[part[0]] ?? shared.texts[part[0]]).join("");
      const detail = { ...own.attempts[`${problem}/${n}`] };
      for (const name of ["source", "reply", "reasoning"]) detail[name] = joined(detail[name]);
      detail.sections = detail.sections.map((section) => ({ ...section, text: joined(section.text) }));
      return detail;
    },
    reference: async (problem) => (await chunk("shared")).references[problem],
    watch() {},
  };
}

function liveStore() {
  const asked = async (path) => {
    const answer = await fetch(path, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };
  const at = (problem) => `problem=${encodeURIComponent(problem)}`;
  return {
    index: () => asked("index.json"),
    attempt: (problem, n) => asked(`attempt.json?${at(problem)}&number=${n}`),
    reference: async (problem) => (await asked(`reference.json?${at(problem)}`)).source,
    watch(grown) {
      const events = new EventSource("events");
      events.addEventListener("grown", grown);
    },
  };
}

const store = document.body.dataset.form === "live" ? liveStore() : fileStore();
let indexed = null;
