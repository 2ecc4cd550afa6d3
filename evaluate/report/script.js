"use strict";
const root = document.documentElement;
const theme = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");

function dress(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  theme.textContent = dark ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Change to ${dark ? "light" : "dark"} colours`);
}
theme.hidden = false;
theme.addEventListener("click", () => dress(root.dataset.theme !== "dark"));
system.addEventListener("change", () => dress(system.matches));
dress(system.matches);

// A row is a tbody. The third click brings the table's own order back.
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
const names = new Intl.Collator("en", { numeric: true });

function key(body, column) {
  const value = body.rows[0].cells[column].textContent;
  return column === 0 ? value : parseFloat(value.replaceAll(",", "").replace("inf", "Infinity"));
}

function compare(a, b, sign) {
  if (typeof a === "string") return sign * names.compare(a, b);
  if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b); // what has no number stays at the end
  return a === b ? 0 : sign * (a < b ? -1 : 1);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const own = [...table.tBodies];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.setAttribute("aria-sort", "none");
    head.querySelector("button").addEventListener("click", () => {
      const order = NEXT[head.getAttribute("aria-sort")];
      for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
      const sign = order === "descending" ? -1 : 1;
      const bodies = [...own];
      if (order !== "none") bodies.sort((a, b) => compare(key(a, column), key(b, column), sign));
      table.append(...bodies);
    });
  });
}

for (const input of document.querySelectorAll("input[name=shade]")) {
  input.addEventListener("change", () => {
    document.getElementById("continued").dataset.shade = input.value;
  });
}

// paper cannot unfold: notes and texts are printed, too
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll(".notes:not([open]), .prompt:not([open])")];
  for (const part of folded) part.open = true;
});
addEventListener("afterprint", () => {
  for (const part of folded) part.open = false;
});
