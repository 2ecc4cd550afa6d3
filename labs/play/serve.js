"use strict";
const $ = id => document.getElementById(id);
const DARKEST = 8; // nats
const LONGEST = 100_000; // characters of a question
let asked = 0, waiting;

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
  let found = { error: `the text is longer than ${LONGEST} characters` };
  try {
    if (body.length <= LONGEST) {
      const reply = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body });
      found = await reply.json();
    }
  } catch {
    found = { error: "the server does not answer: start it again" };
  }
  $("error").textContent = found.error || "";
  return found.error ? null : found;
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
  $("write").disabled = true;
  const found = await ask("/write", { seed: Math.floor(Math.random() * 2 ** 31) });
  $("write").disabled = false;
  if (!found) return;
  // of one weight draw nothing is known
  const most = Math.max(...found.texts.flat().map(token => token.epistemic ?? 0));
  const shade = value => Math.min(1, Math.max(0, value));
  $("bayesian").hidden = !most;
  $("most").textContent = most.toPrecision(2);
  $("written").hidden = false;
  document.querySelectorAll("#written .text").forEach((place, i) => {
    place.replaceChildren(...found.texts[i].map(({ text, nll, epistemic }) => element("span", [text], {
      class: "token", style: `--nll:${shade(nll / DARKEST)};--epistemic:${most ? shade((epistemic ?? 0) / most) : 0}`,
      title: `p = ${Math.exp(-nll).toFixed(3)}, -log p ${nll.toFixed(2)}`
        + (epistemic === undefined ? "" : `, epistemic ${epistemic.toFixed(3)}`),
    })));
  });
}

$("text").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(show, 250); });
for (const slider of [$("temperature"), $("top_p")]) {
  slider.addEventListener("input", () => { slider.nextElementSibling.textContent = slider.value; });
  slider.addEventListener("change", show);
}
for (const input of document.querySelectorAll("input[name=shade]")) {
  input.addEventListener("change", () => { $("written").dataset.shade = input.value; });
}
$("write").addEventListener("click", write);
show();
