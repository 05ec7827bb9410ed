// Plots of a camera: its history over time, a sparkline, and what is subtracted.
import { LOOK, STATUS } from "/static/api.js";

const HEIGHT = 184, LEFT = 44, RIGHT = 12, TOP = 34, BOTTOM = 34;
const MINUTE = 60, HOUR = 3600, DAY = 86400;
const STEPS = [1, 5, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 28 * DAY, 365 * DAY];

export const percent = (value) => (value == null ? "–" : `${Math.round(value * 100)}\u00a0%`);
export const number = (value, digits = 2) => (value == null ? "–" : value.toFixed(digits));
export const known = (accuracy) => (accuracy?.value == null ? null : accuracy);
export const interval = (accuracy) =>
  known(accuracy) ? `${percent(accuracy.value)} (${Math.round(accuracy.low * 100)} to ${percent(accuracy.high)})` : "not known";
export const date = (seconds) => new Date(seconds * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

const PLOTS = [
  { title: "Estimated accuracy", unit: "% of the last answers", top: 1, line: "estimate", of: ({ accuracy }) => accuracy?.value,
    band: ({ accuracy }) => known(accuracy), show: ({ accuracy }) => interval(accuracy) },
  { title: "Changed answers", unit: "% of all answers", line: "differ from the plain model", of: ({ changed }) => changed, show: ({ changed }) => percent(changed) },
  { title: "Shift", unit: "× spread of the logits", scale: 1, least: 1, line: "length of what is subtracted", of: ({ shift }) => shift, show: ({ shift }) => number(shift) },
  { title: "Most frequent class", unit: "% of the samples", top: 1, line: "share", of: (point) => point.top_share, show: (point) => percent(point.top_share),
    guide: [0.5, "half: above it, look at the answers"] },
];

export function make(tag, given = {}, ...children) {
  const svg = ["svg", "g", "line", "path", "polygon", "circle", "text", "title", "rect"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(given)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A line that breaks where a value is missing.
const trace = (points, x, y, of) =>
  points.map((point, index) => (of(point) == null ? "" : `${index && of(points[index - 1]) != null ? "L" : "M"}${x(point).toFixed(1)},${y(of(point)).toFixed(1)}`)).join("");

const area = (points, x, y, band) => {
  const known = points.filter(band);
  const edge = (side) => known.map((point) => `${x(point).toFixed(1)},${y(band(point)[side]).toFixed(1)}`);
  return make("polygon", { class: "band", points: [...edge("high"), ...edge("low").reverse()].join(" ") });
};

export const swatch = (kind) => {
  const svg = make("svg", { class: "swatch", width: 22, height: 10, "aria-hidden": "true" });
  if (kind === "band") svg.append(make("rect", { class: "band", width: 22, height: 10 }));
  else svg.append(make("line", { class: kind, x1: 0, x2: 22, y1: 5, y2: 5 }));
  return svg;
};
export const entry = (kind, text) => make("span", {}, swatch(kind), text);

// Accuracy with its interval and the share of changed answers, 0 to 100 %, over the last hour of a history.
export function sparkline(points) {
  const last = points.at(-1)?.time, kept = points.filter((point) => point.time > last - HOUR);
  if (kept.length < 2) return ["no history yet"];
  const first = kept[0].time, x = (point) => ((point.time - first) / (last - first)) * 300, y = (value) => 42 - value * 40;
  const svg = make("svg", { viewBox: "0 0 300 44", preserveAspectRatio: "none", role: "img", "aria-label": "accuracy with its interval and share of changed answers over time" });
  svg.append(make("line", { class: "grid", x1: 0, x2: 300, y1: 42, y2: 42 }), make("line", { class: "grid", x1: 0, x2: 300, y1: 2, y2: 2 }));
  svg.append(area(kept, x, y, (point) => known(point.accuracy)), make("path", { class: "second", d: trace(kept, x, y, (point) => point.changed) }));
  svg.append(make("path", { class: "curve", d: trace(kept, x, y, (point) => point.accuracy?.value) }));
  const span = last - first;
  return [svg, make("span", { class: "soft" }, `0 to 100 %, last ${span < 90 ? `${Math.round(span)} s` : `${Math.round(span / 60)} min`}`)];
}

// Where the status changed or a sign to look at appeared: {time, icon, text, kind}.
export function marks(history) {
  const found = [];
  history.forEach((point, index) => {
    const before = history[index - 1];
    const { time, status } = point;
    if (before && before.status !== status) found.push({ time, icon: STATUS[status]?.icon ?? "?", text: `now ${status}`, kind: status });
    const fresh = (point.signs ?? []).filter((sign) => sign in LOOK && !before?.signs?.includes(sign));
    if (fresh.length) found.push({ time, icon: "▲", text: fresh.map((sign) => LOOK[sign]).join(", "), kind: "look" });
  });
  return found;
}

function ticks(first, last, width) {
  const step = STEPS.find((each) => (last - first) / each <= width / (each < MINUTE ? 85 : 62)) ?? STEPS.at(-1);
  const zone = -new Date(first * 1000).getTimezoneOffset() * MINUTE, found = [];
  for (let time = Math.ceil((first + zone) / step) * step - zone; time <= last; time += step) found.push(time);
  const how = step >= DAY ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", ...(step < MINUTE ? { second: "2-digit" } : {}) };
  return found.map((time) => [time, new Date(time * 1000).toLocaleString("en-GB", how)]);
}

const roundUp = (value) => {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 5, 10].find((each) => each * power >= value * 0.999) * power;
};

function plot(spec, history, found, width) {
  const { title, unit, of, band, guide, show, scale = 100, least = 0.1 } = spec;
  const first = history[0].time, last = Math.max(history.at(-1).time, first + 1);
  const top = spec.top ?? Math.min(roundUp(Math.max(least, ...history.map((point) => of(point) ?? 0))), scale === 100 ? 1 : Infinity);
  const at = (time) => LEFT + ((time - first) / (last - first)) * (width - LEFT - RIGHT);
  const x = (point) => at(point.time), y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const svg = make("svg", { width, height: HEIGHT, role: "slider", tabindex: 0, "aria-label": `${title} over time`, "aria-valuemin": 0, "aria-valuemax": history.length - 1 });
  for (const part of [0, 0.5, 1]) {
    const place = y(part * top);
    svg.append(make("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: place, y2: place }));
    svg.append(make("text", { x: LEFT - 6, y: place + 4, "text-anchor": "end" }, String(+(part * top * scale).toPrecision(3))));
  }
  for (const [time, text] of ticks(first, last, width - LEFT - RIGHT)) {
    svg.append(make("line", { class: "grid", x1: at(time), x2: at(time), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }));
    const anchor = at(time) > width - 30 ? "end" : "middle";
    svg.append(make("text", { x: anchor === "end" ? width : at(time), y: HEIGHT - BOTTOM + 16, "text-anchor": anchor }, text));
  }
  svg.append(make("text", { x: width - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, "time"), make("text", { x: 0, y: 10 }, unit));
  let free = -Infinity;
  for (const mark of found) {
    const place = at(mark.time);
    const stroke = make("line", { x1: place, x2: place, y1: TOP, y2: HEIGHT - BOTTOM });
    const group = make("g", { class: "mark", "data-kind": mark.kind }, make("title", {}, `${date(mark.time)}: ${mark.text}`), stroke);
    if (place > free) group.append(make("text", { x: place, y: TOP - 4, "text-anchor": "middle" }, mark.icon)), (free = place + 12);
    svg.append(group);
  }
  if (guide) svg.append(make("line", { class: "guide", x1: LEFT, x2: width - RIGHT, y1: y(guide[0]), y2: y(guide[0]) }));
  if (band) svg.append(area(history, x, y, band));
  svg.append(make("path", { class: "curve", d: trace(history, x, y, of) }));
  if (history.length < 40) for (const point of history) if (of(point) != null) svg.append(make("circle", { class: "dot", cx: x(point), cy: y(of(point)), r: 2.5 }));
  const cursor = make("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }), readout = make("span", { class: "soft" });
  svg.append(cursor);

  let chosen = history.length - 1;
  const choose = (index, visible = true) => {
    chosen = Math.max(0, Math.min(history.length - 1, index));
    const point = history[chosen], text = `${visible ? date(point.time) : "last"}: ${show(point)}`;
    readout.textContent = text;
    svg.setAttribute("aria-valuenow", chosen);
    svg.setAttribute("aria-valuetext", text);
    cursor.setAttribute("x1", x(point));
    cursor.setAttribute("x2", x(point));
    cursor.setAttribute("visibility", visible ? "visible" : "hidden");
  };
  const nearest = (place) => history.reduce((best, point, index) => (Math.abs(x(point) - place) < Math.abs(x(history[best]) - place) ? index : best), 0);
  svg.onpointermove = (event) => choose(nearest(event.offsetX));
  svg.onpointerleave = svg.onblur = () => choose(history.length - 1, false);
  svg.onkeydown = (event) => {
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: history.length - 1 }[event.key];
    if (to !== undefined) event.preventDefault(), choose(to);
  };
  choose(chosen, false);
  const legend = make("p", { class: "legend" }, entry("curve", spec.line));
  if (band) legend.append(entry("band", "interval"));
  if (guide) legend.append(entry("guide", guide[1]));
  return make("figure", { class: "card" }, make("figcaption", {}, make("strong", {}, title), readout), svg, legend);
}

export const plots = (history, found, width) => PLOTS.map((spec) => plot(spec, history, found, width));

// One bar for each label: what is subtracted from its logit.
export function bars(offset) {
  const widest = roundUp(Math.max(...offset.map((each) => Math.abs(each.offset)))), place = (value) => 50 + (value / widest) * 50;
  const rows = offset.map(({ label, offset: value }) => {
    const bar = make("i", { class: value < 0 ? "raised" : "lowered" });
    bar.style.left = `${Math.min(50, place(value))}%`;
    bar.style.width = `${Math.abs(place(value) - 50)}%`;
    return make("tr", {}, make("th", { scope: "row", class: "name" }, label), make("td", {}, make("div", { class: "track" }, bar)), make("td", {}, number(value)));
  });
  const axis = make("div", { class: "axis" }, ...[-widest, 0, widest].map((value) => make("span", {}, String(+value.toPrecision(3)))));
  const foot = make("tr", {}, make("td"), make("td", {}, axis, "offset, subtracted from the logit"), make("td"));
  const key = (name, text) => make("span", {}, make("i", { class: `${name} swatch` }), text);
  const legend = make("p", { class: "legend" }, key("lowered", "lowered: answered less often"), key("raised", "raised: answered more often"));
  const head = make("tr", {}, make("th", { scope: "col" }, "Label"), make("th", { scope: "col" }, ""), make("th", { scope: "col" }, "Offset"));
  return [legend, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows), make("tfoot", {}, foot))];
}
