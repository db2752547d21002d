// The controls: a number and a slider that say the same, in even or in equal ratios.

import { byId, make, fill } from "./dom.js";

const STEPS = 1000;
const OWN_NAMES = { "noisy-sgd": "constant noise (noisy-sgd)", dynamic: "falling noise and clip (dynamic)",
  "growing-mu": "falling noise (growing-mu)", "sensitivity-decay": "falling clip (sensitivity-decay)" };
const FIRST = ["dynamic", "noisy-sgd", "growing-mu", "sensitivity-decay"];
let methods = {};

const rows = () => [...document.querySelectorAll(".control")];
const numberOf = (row) => row.querySelector("input:not([type=range])");
const sliderOf = (row) => row.querySelector("input[type=range]");

function valueAt(row, place) {
  const [least, most] = [Number(row.dataset.least), Number(row.dataset.most)];
  const at = place / STEPS;
  const exact = row.dataset.scale === "log" ? least * (most / least) ** at : least + (most - least) * at;
  if (row.dataset.whole) return String(Number(exact.toPrecision(exact < 100 ? 2 : 3)) | 0);
  const value = Number(exact.toPrecision(Number(row.dataset.digits ?? 3)));
  return value < 1e-3 ? value.toExponential() : String(value);
}

function placeOf(row, value) {
  const [least, most] = [Number(row.dataset.least), Number(row.dataset.most)];
  const at = row.dataset.scale === "log" ? Math.log(value / least) / Math.log(most / least) : (value - least) / (most - least);
  return Math.round(Math.min(1, Math.max(0, Number.isFinite(at) ? at : 0)) * STEPS);
}

function follow(row) {
  const slider = sliderOf(row);
  slider.value = placeOf(row, Number(numberOf(row).value));
  slider.setAttribute("aria-valuetext", numberOf(row).value);
}

/** What the controls say. A control that the method does not use is left out. */
export function read() {
  const said = Object.fromEntries(rows().filter((row) => !row.hidden).map((row) => [row.dataset.name, numberOf(row).value.trim()]));
  return { ...said, adjacency: byId("adjacency").value, method: byId("method").value, uncertified: byId("uncertified").checked };
}

/** Set some of the controls. */
export function write(values) {
  for (const row of rows()) {
    if (values[row.dataset.name] != null) numberOf(row).value = values[row.dataset.name];
    follow(row);
  }
  for (const name of ["adjacency", "method"]) {
    const offered = [...byId(name).options].some((option) => option.value === values[name]);
    if (offered) byId(name).value = values[name];
  }
  if (values.uncertified != null) byId("uncertified").checked = String(values.uncertified) === "true";
  showMethod();
}

function showMethod() {
  const row = methods[byId("method").value];
  for (const control of rows()) {
    if (control.dataset.name.startsWith("rho_")) control.hidden = !row.needs.includes(control.dataset.name);
  }
  const published = byId("uncertified").checked;
  fill("method-hint", `${row.paper}. ${published ? row.caveat || "As in the paper." : `Noise: ${row.noise}; clip: ${row.clip}.`}`);
}

/** Make the controls live; `changed` is called at every move. */
export function start(found, changed) {
  methods = Object.fromEntries(found.map((row) => [row.name, row]));
  const names = [...FIRST, ...found.map((row) => row.name).filter((name) => !FIRST.includes(name))];
  fill("method", ...names.map((name) => make("option", { value: name }, OWN_NAMES[name] ?? name)));
  for (const row of rows()) {
    const slider = sliderOf(row);
    Object.assign(slider, { min: 0, max: STEPS, step: 1 });
    slider.addEventListener("input", () => {
      numberOf(row).value = valueAt(row, Number(slider.value));
      slider.setAttribute("aria-valuetext", numberOf(row).value);
      changed();
    });
    numberOf(row).addEventListener("input", () => { follow(row); changed(); });
  }
  for (const name of ["adjacency", "method", "uncertified"]) {
    byId(name).addEventListener("change", () => { showMethod(); changed(); });
  }
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  write({});
}
