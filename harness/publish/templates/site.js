"use strict";
// Tables that sort and filter, and charts that tell their values. The pages are whole without it.

const made = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children); // text stays text: nothing here is ever parsed as HTML
  return element;
};

// --- sorting: by the value of a cell where it has one, else by its text; gaps stand last ---------

const valueOf = (row, column) => {
  const cell = row.cells[column];
  const value = cell.dataset.value ?? cell.textContent.trim();
  const number = Number(value);
  return value === "" ? null : Number.isNaN(number) ? value : number;
};

const compared = (a, b) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
};

const sortBy = (table, column, header) => {
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => (down && a !== null && b !== null ? compared(b, a) : compared(a, b)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
};

const makeSortable = (table) => {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = made("button", { type: "button" }, ...header.childNodes);
    button.addEventListener("click", () => sortBy(table, column, header));
    header.append(button);
  });
};

// --- filtering: every word must stand somewhere in the row ---------------------------------------

const addFilter = (place, things, noun, before) => {
  const input = made("input", { type: "search", autocomplete: "off", spellcheck: false });
  const count = made("output");
  const texts = things.map((thing) => (thing.dataset.text ?? thing.textContent).toLowerCase());
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    things.forEach((thing, index) => {
      thing.hidden = !words.every((word) => texts[index].includes(word));
      shown += !thing.hidden;
    });
    count.textContent = words.length ? `${shown} of ${things.length} ${noun}` : "";
  };
  input.addEventListener("input", apply);
  place.insertBefore(
    made("div", { className: "tools" }, made("label", {}, `Filter ${noun}`, input), count),
    before,
  );
};

// --- charts: the point nearest to the pointer, or chosen by the arrow keys -----------------------

const makeReadable = (chart) => {
  const svg = chart.querySelector("svg");
  const cursor = svg.querySelector(".cursor");
  const readout = chart.querySelector(".readout");
  const points = JSON.parse(chart.dataset.points);
  let chosen = points.length - 1;

  const show = (index) => {
    chosen = Math.max(0, Math.min(points.length - 1, index));
    const point = points[chosen];
    cursor.setAttribute("d", `M${point.x} ${point.y}h0`);
    const run = point.href ? made("a", { href: point.href }, point.run) : point.run;
    readout.replaceChildren(`${point.value} in `, run);
  };

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * 1000;
    const distances = points.map((point) => Math.abs(point.x - x));
    show(distances.indexOf(Math.min(...distances)));
  });
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: points.length - 1 };
    if (event.key in moves) {
      event.preventDefault();
      show(moves[event.key]);
    } else if (event.key === "Enter" && points[chosen].href) {
      location.href = points[chosen].href;
    }
  });
  svg.addEventListener("focus", () => show(chosen));

  const details = chart.querySelector("details");
  details.addEventListener("toggle", () => {
    if (details.open && !details.querySelector("table")) details.append(tableOf(points));
  });
};

const tableOf = (points) => {
  const head = made("tr", {}, made("th", {}, "run"), made("th", { className: "figure" }, "value"));
  const rows = points.map((point) => {
    const run = point.href ? made("a", { href: point.href }, point.run) : point.run;
    const value = made("td", { className: "figure" }, point.value);
    value.dataset.value = point.number;
    return made("tr", {}, made("td", {}, run), value);
  });
  const table = made("table", {}, made("thead", {}, head), made("tbody", {}, ...rows));
  makeSortable(table);
  return made("div", { className: "scroll" }, table);
};

for (const table of document.querySelectorAll("table[data-filter]")) {
  const rows = [...table.tBodies[0].rows];
  addFilter(table.parentElement.parentElement, rows, table.dataset.filter, table.parentElement);
}
for (const table of document.querySelectorAll("table")) makeSortable(table);
for (const chart of document.querySelectorAll(".chart")) makeReadable(chart);
const charts = [...document.querySelectorAll(".charts > .chart")];
if (charts.length > 4) {
  const first = document.querySelector("[data-filter-charts]");
  addFilter(first, charts, "charts", first.firstChild);
}
