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

// The third click brings the table's own order back.
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
const names = new Intl.Collator("en", { numeric: true });

// The number that a cell begins with; of another cell, and of a name that is no number, the text.
function key(row, column) {
  const text = row.cells[column].textContent;
  const plain = text.replaceAll(",", "").replace(/^([+-]?)inf/, "$1Infinity");
  const number = column === 0 ? Number(plain || NaN) : parseFloat(plain);
  return isNaN(number) ? text : number;
}

function compare(a, b, sign) {
  const [last, other] = [a, b].map(value => ["-", "", "nan"].includes(value));
  if (last || other) return last - other; // what has no value stays at the end
  if (typeof a !== typeof b) return sign * (typeof a === "number" ? -1 : 1);
  if (typeof a === "string") return sign * names.compare(a, b);
  return a === b ? 0 : sign * (a < b ? -1 : 1);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const own = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.setAttribute("aria-sort", "none");
    head.querySelector("button").addEventListener("click", () => {
      const order = NEXT[head.getAttribute("aria-sort")];
      for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
      const sign = order === "descending" ? -1 : 1;
      const rows = [...own];
      if (order !== "none") rows.sort((a, b) => compare(key(a, column), key(b, column), sign));
      table.tBodies[0].append(...rows);
    });
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
