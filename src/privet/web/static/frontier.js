// The view ahead: batch sizes down, numbers of steps across, the certified noise in each cell.

import { make, fill, figure } from "./dom.js";

/** A table of cells; `choose` is called with the cell that is picked. */
export function showAhead(found, here, choose) {
  const known = found.cells.map((cell) => cell.std).filter((std) => std != null);
  const [least, most] = [Math.log(Math.min(...known)), Math.log(Math.max(...known))];
  const body = found.batches.map((batch) => make("tr", {}, make("th", { scope: "row" }, `batch ${figure(batch)}`),
    ...found.steps.map((steps) => cellOf(found.cells.find((cell) => cell.batch_size === batch && cell.steps === steps)))));

  function cellOf(cell) {
    if (!cell || cell.std == null) return make("td", { class: "no", title: cell?.why }, "none");
    const moves = cell.noise_multiplier !== cell.noise_last;
    const classes = `${cell.frontier ? "star" : ""} ${here(cell) ? "here" : ""}`;
    const button = make("button", { type: "button", onclick: () => choose(cell) },
      `${cell.frontier ? "★ " : ""}${cell.noise_multiplier}${moves ? ` → ${cell.noise_last}` : ""}`, make("small", {}, `std ${figure(cell.std, 2)}`));
    const share = most > least ? (most - Math.log(cell.std)) / (most - least) : 1;
    button.style.background = `color-mix(in srgb, var(--wash) ${Math.round(100 * share)}%, var(--back))`;
    return make("td", { class: classes }, button);
  }

  const head = make("tr", {}, make("td"), ...found.steps.map((steps) => make("th", { scope: "col" }, `${steps.toLocaleString("en")} steps`)));
  fill("frontier", make("table", { class: "heat" }, make("thead", {}, head), make("tbody", {}, ...body)),
    make("p", { class: "quiet" }, "All certified. Std: noise × clip / batch, in the averaged gradient; the greener, the less."));
}

export const showWaiting = () => fill("frontier", make("p", { class: "blank" }, "Calibrating every cell…"));
export const showNone = (error) => fill("frontier", make("p", { class: "blank" }, error.message));
