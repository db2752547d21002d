// The gallery of runs. Names and texts come from files: they are shown as text, never as HTML.

import { byId, make, fill, tag, epsilon } from "./dom.js";
import { get } from "./api.js";

function card(run) {
  const title = make("h3", {}, run.name);
  if (run.error) return make("li", { class: "card" }, title, make("p", { class: "quiet" }, run.error));
  const how = run.over ? `${run.steps.toLocaleString("en")} steps` : `${run.steps.toLocaleString("en")} of ${run.planned.toLocaleString("en")} steps so far`;
  const link = run.report ? make("a", { href: `/runs/${encodeURIComponent(run.name)}/report.html`, "aria-label": `Report of ${run.name}` }, "Report") : null;
  return make("li", { class: "card" }, title,
    make("p", {}, make("span", { class: "number" }, epsilon(run.guarantee)), " ", tag(run.guarantee.label)),
    make("p", { class: "quiet" }, run.guarantee.line), ...assumed(run.assumes),
    make("p", { class: "quiet" }, `${run.task}, ${how}`),
    run.held_out.length ? make("p", {}, `held out: ${run.held_out.join(", ")}`) : null, link);
}

function sum(row) {
  const on = row.dataset ?? "data without a name";
  if (row.error) return make("li", { class: "quiet" }, row.runs === null ? `What runs cost together cannot be told: ${row.error}` : `${on}: ${row.runs} runs together: ${row.error}`);
  const total = row.total ? `, of a total of ${row.total} for whole plans` : "";
  return make("li", {}, make("p", {}, make("span", { class: "number" }, `${on}: together ${epsilon(row.guarantee)}`), " ", tag(row.guarantee.label), ` over ${row.runs} runs${total}`),
    make("p", { class: "quiet" }, row.guarantee.line), ...assumed(row.guarantee.assumptions));
}

function assumed(texts) {
  return texts.map((text) => make("p", { class: "quiet" }, `assumes: ${text}`));
}

export async function showRuns() {
  try {
    const found = await get("runs");
    fill("together", ...found.together.map(sum));
    fill("gallery", ...found.runs.map(card));
    const more = found.left_out ? ` ${found.left_out} more are not shown.` : "";
    byId("runs-hint").textContent = found.runs.length ? `In the folder ${found.folder}.${more}`
      : `No runs in the folder ${found.folder} yet. privet train --plan plan.json makes one.`;
  } catch (error) {
    byId("runs-hint").textContent = error.message;
  }
}
