// The answer: promises with their labels, what they mean, the schedule and the curves.

import { byId, make, fill, tag, figure, span, epsilon, bound } from "./dom.js";
import { draw, blank, dashOf } from "./charts.js";

const NAMES = { gdp: "CLT (gdp)", rdp: "Rényi (rdp)" };
const COLOURS = { pld: "one", gdp: "two", rdp: "four" };
const SIGNS = { certified: "a proven upper bound", approximate: "may under-report", claimed: "not covered by a proof" };

function promise(title, found, { main = false, none = "no theorem covers this" } = {}) {
  const classes = `promise${main ? " main" : ""} ${found ? found.label : "none"}`;
  const head = make("p", { class: "head" }, make("span", {}, title), found ? tag(found.label) : null);
  if (!found) return make("div", { class: classes }, head, make("p", { class: "quiet" }, none));
  const interval = found.shown_lower == null ? SIGNS[found.label] : `true value ≥ ${found.shown_lower}`;
  const about = main ? `${interval}; at δ = ${figure(found.delta)}, ${found.sampling} sampling, ${found.adjacency}, per ${found.unit}`
    : interval;
  return make("div", { class: classes }, head, make("p", { class: "number" }, epsilon(found)), make("p", { class: "quiet" }, about));
}

export function showPlan(found) {
  const own = found.guarantee;
  const isProof = own.label === "certified";
  const first = promise(isProof ? "This plan" : "The paper says", own, { main: true });
  const proof = isProof ? null : promise("Certified epsilon of the same steps", found.certified, { none: `none: no proof covers the clipping rule ${found.rule}` });
  const beside = [promise("Rényi (rdp)", found.beside.renyi)];
  if (!(own.method === "gdp" && proof)) beside.unshift(promise("CLT (gdp)", found.beside.clt));
  fill("promises", first, proof, ...(proof ? beside.slice(-1) : beside));
  fill("meaning", found.unsound ? "No guarantee, only a claim: the clipping rule does not bound the sensitivity."
    : found.over_budget ? "The proven epsilon is above the budget that the formula promises." : "");
  const { ends, batch } = found.schedule;
  const facts = [["Noise multiplier", span(ends.noise)], ["Clipping norm", span(ends.clip)], ["Steps", found.steps.toLocaleString("en")],
    ["Expected batch size", figure(batch)], ["Utility (estimate)", found.utility == null ? "–" : `${(100 * found.utility).toFixed(1)} %`]];
  fill("facts", ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const label = own.label === "claimed" ? "" : ` ${own.label}`;
  fill("spoken", `${epsilon(own)}${label}, noise ${span(found.schedule.ends.noise)}, planned in ${found.seconds.toFixed(2)} s`);
  // An option and its value stay on one line; the text is the same.
  fill("command", ...found.command.split(/ (?=--)/).flatMap((piece, k) => [k ? " " : "", make("span", { class: "piece" }, piece)]));
  fill("toml", found.toml);
  schedule(found.schedule);
}

function schedule({ step, noise, clip, ends }) {
  const below = (top) => (_, __, most) => [0, most * top];
  draw("chart-schedule", { x: "step", y: "noise multiplier", right: "clip", range: { y: below(1.08), right: below(1.35) },
    said: `Noise multiplier ${span(ends.noise)} and clip ${span(ends.clip)} over the steps.`,
    lines: [{ name: "noise", colour: "one", x: step, y: noise }, { name: "clip", colour: "two", x: step, y: clip, scale: "right", dash: [9, 4, 2, 4] }] });
}

export function showCurves({ lines, why }) {
  if (!lines.length) { blank("chart-epsilon", why); return; }
  const shown = lines.map((line) => ({ ...lineOf(line, line.method === "pld" ? "certified (pld)" : `${NAMES[line.method]}, ${line.label}`), stairs: true }));
  const last = shown.map((line) => `${line.name} ends at ${bound(line.y.at(-1))}`);
  draw("chart-epsilon", { x: "step", y: "epsilon", lines: shown, said: `Epsilon over the steps: ${last.join("; ")}.`,
    range: { y: (_, __, most) => [0, most * 1.06] } });
}

export function showAttacker({ lines, best, why }) {
  if (!lines.length) { blank("chart-tradeoff", why); return; }
  const shown = lines.map((line) => lineOf(line, line.method === "pld" ? "certified: no test lies below" : `CLT, ${line.label}`));
  shown.push({ name: "a coin", colour: "soft", x: [0, 1], y: [1, 0], dash: [2, 5], width: 1.4 });
  draw("chart-tradeoff", { x: "false-positive rate", y: "false-negative rate", lines: shown, range: { y: [0, 1.02] }, said: "False-negative rate against false-positive rate. " + words(best) });
  if (best) fill("meaning", words(best), " ", tag(best.label));
}

function lineOf({ method, label, x, y }, name) {
  const main = method === "pld";
  return { name, x, y, colour: COLOURS[method], dash: method === "rdp" ? [2, 3] : dashOf(label), width: main ? 2.8 : 2, fill: main };
}

const words = (best) => (best ? `An attacker who wrongly accuses ${best.false_alarms} % of outsiders recognises at most ${best.hits} % of those ` +
  `whose record was used. At any other threshold, its hits lead its false alarms by at most ${best.advantage} percentage points.` : "");

export function showError(error) {
  const place = byId("error");
  place.hidden = !error;
  place.textContent = error ? error.message : "";
  document.querySelector("main").classList.toggle("stale", Boolean(error));
}

/** Mark what is not yet the answer to the controls. */
export function busy(is, ...ids) {
  for (const id of ids) byId(id).setAttribute("aria-busy", String(is));
}
