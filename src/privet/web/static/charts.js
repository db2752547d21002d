// Charts by uPlot, in the colours of the scheme. A chart says in words what it shows, for those who do not see it.

import { byId, make, figure, bound } from "./dom.js";

const drawn = new Map();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const DASH = { certified: [], approximate: [7, 5], claimed: [2, 4] };
const HEIGHT = 230;
const STAIRS = uPlot.paths.stepped({ align: -1 });

function axis(label, scale = "x", more = {}) {
  return { scale, label, labelSize: 22, size: scale === "x" ? 34 : 52, stroke: () => colour("soft"), font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif", grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false }, gap: 6,
    values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : figure(tick, 3))), ...more };
}

function swatch(line) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const mark = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({ width: 26, height: 8, "aria-hidden": "true" })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 2.5, "stroke-dasharray": (line.dash ?? []).join(" ") })) mark.setAttribute(name, value);
  mark.style.stroke = `var(--${line.colour})`;
  svg.append(mark);
  return svg;
}

function legend(lines) {
  const list = make("ul", { class: "legend" });
  const readings = lines.map((line) => {
    const reading = make("span", { class: "at" });
    list.append(make("li", {}, swatch(line), line.name, reading));
    return reading;
  });
  return [list, readings];
}

/**
 * Lines on one x axis. Each: name, colour (a name of the style), x, y, and perhaps dash, scale, width. Those with
 * `stairs` are bounds that rise: between two points that of the later one holds.
 */
export function draw(id, { lines, x, y, right, said, range = {} }) {
  const place = byId(id);
  drawn.get(id)?.chart.destroy();
  const [list, readings] = legend(lines);
  const canvas = make("div", { role: "img", "aria-label": said });
  place.replaceChildren(canvas, list);
  const data = uPlot.join(lines.map((line) => [line.x, line.y]));
  const scales = { x: { time: false }, y: { range: range.y }, ...(right ? { right: { range: range.right } } : {}) };
  const series = lines.map((line) => ({ label: line.name, scale: line.scale ?? "y", stroke: () => colour(line.colour), dash: line.dash,
    width: line.width ?? 2.2, spanGaps: true, points: { show: false }, paths: line.stairs ? STAIRS : undefined, fill: line.fill ? () => `${colour(line.colour)}1f` : undefined }));
  const chart = new uPlot({
    width: Math.max(220, canvas.clientWidth), height: HEIGHT, scales, padding: [8, right ? 4 : 14, 0, 0],
    series: [{}, ...series], axes: [axis(x), axis(y, "y"), ...(right ? [axis(right, "right", { side: 1, grid: { show: false } })] : [])],
    legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    hooks: { setCursor: [(plot) => readings.forEach((reading, k) => { reading.textContent = at(plot, k + 1, lines[k].stairs); })] },
  }, data, canvas);
  drawn.set(id, { chart, canvas });
}

/** What a line says at the cursor: at the nearest point, else at the one before it, on stairs at the one after. */
function at(plot, series, stairs) {
  const { idx } = plot.cursor;
  if (idx == null) return "";
  const values = plot.data[series];
  for (let place = idx; place >= 0 && place < values.length; place += stairs ? 1 : -1) {
    if (values[place] != null) return (stairs ? bound : figure)(values[place]);
  }
  return "";
}

export function blank(id, words) {
  drawn.get(id)?.chart.destroy();
  drawn.delete(id);
  byId(id).replaceChildren(make("p", { class: "blank" }, words));
}

export const dashOf = (label) => DASH[label];

const fit = () => drawn.forEach(({ chart, canvas }) => chart.setSize({ width: Math.max(220, canvas.clientWidth), height: HEIGHT }));
new ResizeObserver(fit).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(({ chart }) => chart.redraw()));
