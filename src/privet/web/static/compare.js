// Up to four plans side by side.

import { byId, make, fill, tag, span, epsilon } from "./dom.js";
import { draw } from "./charts.js";

const MOST = 4;
const COLOURS = ["one", "two", "three", "four"];
let kept = [];

/** Keep a plan: what was asked, and the answer. */
export function keep(controls, found) {
  const free = COLOURS.find((colour) => !kept.some((plan) => plan.colour === colour));
  if (!free || kept.some((plan) => plan.found.hash === found.hash)) return false;
  const stem = controls.uncertified ? `${controls.method} as published` : controls.method;
  const same = kept.filter((plan) => plan.stem === stem).length;
  kept.push({ colour: free, found, stem, name: same ? `${stem} (${same + 1})` : stem });
  show();
  return true;
}

const labelled = (guarantee) => (guarantee ? [epsilon(guarantee), " ", tag(guarantee.label)] : ["–"]);

const LINES = [
  ["promised", ({ found }) => labelled(found.guarantee)],
  ["certified", ({ found }) => labelled(found.certified)],
  ["CLT", ({ found }) => labelled(found.beside.clt)],
  ["Rényi", ({ found }) => labelled(found.beside.renyi)],
  ["noise", ({ found }) => [span(found.schedule.ends.noise)]],
  ["clip", ({ found }) => [span(found.schedule.ends.clip)]],
  ["noise × clip", ({ found }) => [span(found.schedule.ends.std)]],
  ["steps", ({ found }) => [found.steps.toLocaleString("en")]],
  ["utility (estimate)", ({ found }) => [found.utility == null ? "–" : `${(100 * found.utility).toFixed(1)} %`]],
];

function heading(plan) {
  const colour = make("span", { class: "swatch" });
  colour.style.background = `var(--${plan.colour})`;
  const drop = make("button", { type: "button", "aria-label": `Drop ${plan.name}`, onclick: () => { kept = kept.filter((one) => one !== plan); show(); } }, "drop");
  return make("th", { scope: "col" }, colour, plan.name, drop);
}

function show() {
  const chart = byId("chart-compare");
  chart.hidden = !kept.length;
  byId("compare-hint").textContent = kept.length ? `${kept.length} of ${MOST} kept. Each epsilon stands with its label.`
    : "Keep up to four plans and see them side by side.";
  byId("keep").disabled = kept.length >= MOST;
  if (!kept.length) { fill("compared"); return; }
  const head = make("tr", {}, make("td"), ...kept.map(heading));
  const body = LINES.map(([name, cells]) => make("tr", {}, make("th", { scope: "row" }, name), ...kept.map((plan) => make("td", {}, ...cells(plan)))));
  fill("compared", make("table", { class: "side" }, make("thead", {}, head), make("tbody", {}, ...body)));
  draw("chart-compare", { x: "share of the run, %", y: "noise × clip", range: { y: (_, __, most) => [0, most * 1.08] },
    said: "Noise times clip over the run, one line for each kept plan.",
    lines: kept.map(({ name, colour, found: { schedule, steps } }, k) => ({ name, colour, dash: [[], [9, 4], [3, 3], [12, 4, 2, 4]][k],
      x: schedule.step.map((step) => (100 * step) / steps), y: schedule.std })) });
}
