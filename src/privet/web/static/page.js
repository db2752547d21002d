// The page: controls move, the plan answers, the curves follow, the view ahead comes last.

import { byId, fill } from "./dom.js";
import { ask, get, giveUp } from "./api.js";
import * as controls from "./controls.js";
import { showPlan, showCurves, showAttacker, showError, busy } from "./answer.js";
import { showAhead, showWaiting, showNone } from "./frontier.js";
import { keep } from "./compare.js";
import { showRuns } from "./runs.js";

const QUIET = 90; // milliseconds without a move before a question is asked
const LATER = 500; // before the longer questions
const SHOWN = ["promises", "facts", "chart-schedule", "chart-epsilon", "chart-tradeoff"];
let timer = 0;
let later = 0;
let shown = null;

function moved() {
  clearTimeout(timer);
  clearTimeout(later);
  timer = setTimeout(answer, QUIET);
}

async function answer() {
  const said = controls.read();
  ["attacker", "curves", "ahead"].forEach(giveUp);
  busy(true, ...SHOWN);
  try {
    const found = await ask("plan", said);
    if (!found) return;
    shown = { said, found };
    showError(null);
    showPlan(found);
    offer(said);
    follow("attacker", said, showAttacker, "chart-tradeoff");
    follow("curves", said, showCurves, "chart-epsilon");
    lookAhead(said);
  } catch (error) {
    shown = null;
    showError(error);
    offer(null);
  }
  busy(false, "promises", "facts", "chart-schedule");
}

async function follow(kind, said, show, place) {
  try {
    const found = await ask(kind, said);
    if (!found) return;
    show(found);
  } catch (error) {
    showError(error);
  }
  busy(false, place);
}

function lookAhead(said) {
  if (said.uncertified) { showNone(new Error("Only certified noise is explored. Untick “as published” to see it.")); return; }
  showWaiting();
  later = setTimeout(() => ahead(said), LATER);
}

async function ahead(said) {
  try {
    const found = await ask("ahead", said);
    if (found) showAhead(found, (cell) => cell.batch_size === Number(said.batch_size) && cell.steps === shown?.found.steps, choose);
  } catch (error) {
    showNone(error);
  }
}

function choose(cell) {
  controls.write({ batch_size: String(cell.batch_size), epochs: String(cell.epochs) });
  moved();
}

/** The downloads and the address follow the controls; there is nothing to take while there is an error. */
function offer(said) {
  const query = said && new URLSearchParams(said).toString();
  for (const [id, file] of [["get-plan", "plan.json"], ["get-recipe", "recipe.toml"]]) {
    if (query) byId(id).setAttribute("href", `/api/${file}?${query}`);
    else byId(id).removeAttribute("href");
  }
  if (query) history.replaceState(null, "", `#${query}`);
  for (const id of ["copy", "keep"]) byId(id).disabled = !query;
}

async function copy() {
  const button = byId("copy");
  try {
    await navigator.clipboard.writeText(byId("command").textContent);
    fill("copy", "Copied");
  } catch {
    getSelection().selectAllChildren(byId("command"));
    fill("copy", "Selected: press Ctrl-C");
  }
  setTimeout(() => button.replaceChildren("Copy the command line"), 2000);
}

byId("copy").addEventListener("click", copy);
byId("keep").addEventListener("click", () => shown && keep(shown.said, shown.found));

try {
  controls.start((await get("options")).methods, moved);
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.has("epsilon")) controls.write(Object.fromEntries(asked));
  answer();
  showRuns();
} catch (error) {
  showError(error);
}
