"use strict";
const $ = id => document.getElementById(id);
const DARKEST = 8; // nats
let asked = 0, waiting;

function dress(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Light" : "Dark";
}
const system = matchMedia("(prefers-color-scheme: dark)");
$("theme").hidden = false;
$("theme").addEventListener("click", () => dress(document.documentElement.dataset.theme !== "dark"));
system.addEventListener("change", () => dress(system.matches));
dress(system.matches);

// All text goes in as textContent, so that markup in it is shown and never read.
function element(tag, parts = [], attributes = {}) {
  const made = document.createElement(tag);
  made.append(...parts);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

async function ask(path, more = {}) {
  const settings = { text: $("text").value, temperature: +$("temperature").value, top_p: +$("top_p").value };
  const body = JSON.stringify({ ...settings, ...more });
  try {
    const reply = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body });
    const found = await reply.json();
    $("error").textContent = found.error || "";
    return found.error ? null : found;
  } catch {
    $("error").textContent = "the server does not answer: start it again";
    return null;
  }
}

async function show() {
  const mine = ++asked;
  const found = await ask("/next");
  if (!found || mine !== asked) return; // a newer question is on its way
  $("truth").hidden = !found.truth;
  const most = Math.max(...found.words.flatMap(word => word.p));
  $("words").replaceChildren(...found.words.map(word => {
    const button = element("button", [word.text.trim() ? word.text : JSON.stringify(word.text)], { type: "button" });
    button.addEventListener("click", () => { $("text").value = word.then; show(); });
    const cells = word.p.map((p, i) => element("td", [
      element("span", [], { class: "bar", style: `--p:${p / most}` }),
      p === 0 ? "0" : p.toFixed(3),
    ], found.truth && i === word.p.length - 1 ? { class: "true" } : {}));
    return element("tr", [element("th", [button], { scope: "row", class: "name" }), ...cells]);
  }));
}

async function write() {
  const found = await ask("/write", { seed: Math.floor(Math.random() * 2 ** 31) });
  if (!found) return;
  document.querySelectorAll(".written").forEach((place, i) => {
    place.closest("article").hidden = false;
    place.replaceChildren(...found.texts[i].map(token => element("span", [token.text], {
      class: "token", style: `--nll:${Math.min(1, token.nll / DARKEST)}`,
      title: `p = ${Math.exp(-token.nll).toFixed(3)}`,
    })));
  });
}

$("text").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(show, 250); });
for (const slider of [$("temperature"), $("top_p")]) {
  slider.addEventListener("input", () => { slider.nextElementSibling.textContent = slider.value; });
  slider.addEventListener("change", show);
}
$("write").addEventListener("click", write);
show();
