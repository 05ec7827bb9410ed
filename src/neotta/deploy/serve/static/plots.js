// Plots of a camera's history as SVG.
const NS = "http://www.w3.org/2000/svg";
const WIDTH = 560, HEIGHT = 150, LEFT = 38, RIGHT = 8, TOP = 8, BOTTOM = 20;

const PLOTS = [
  { title: "Shift removed by adapting", top: null, lines: [["shift", "a", "shift"]] },
  { title: "Plain and adapted answers differ", top: 1, lines: [["disagreement", "a", "disagreement"]] },
  { title: "Confidence", top: 1, lines: [["confidence_plain", "b", "plain"], ["confidence", "a", "adapted"]] },
  { title: "Estimated accuracy", top: 1, lines: [["accuracy.accuracy", "a", "estimate"]], band: ["accuracy.low", "accuracy.high"] },
];

const value = (point, path) => path.split(".").reduce((found, name) => (found == null ? null : found[name]), point);

function node(name, given = {}, text = "") {
  const made = document.createElementNS(NS, name);
  for (const [key, each] of Object.entries(given)) made.setAttribute(key, each);
  made.textContent = text;
  return made;
}

const clock = (seconds, span) => {
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(span < 600 ? { second: "2-digit" } : {}) });
  return span > 86400 ? `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}` : time;
};

function plot({ title, top, lines, band }, history, alarms) {
  const times = history.map((point) => point.time);
  const first = Math.min(...times), last = Math.max(...times, first + 1);
  const all = lines.flatMap(([path]) => history.map((point) => value(point, path)).filter((each) => each != null));
  const highest = top ?? Math.max(0.05, ...all) * 1.1;
  const x = (time) => LEFT + ((time - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (number) => HEIGHT - BOTTOM - (Math.min(number, highest) / highest) * (HEIGHT - TOP - BOTTOM);
  const svg = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const part of [0, 0.5, 1]) {
    svg.append(node("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(part * highest), y2: y(part * highest), class: "grid" }));
    svg.append(node("text", { x: LEFT - 5, y: y(part * highest) + 4, "text-anchor": "end" }, (part * highest).toFixed(highest < 1 ? 2 : 1)));
  }
  svg.append(node("text", { x: LEFT, y: HEIGHT - 5 }, clock(first, last - first)));
  svg.append(node("text", { x: WIDTH - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, clock(last, last - first)));
  for (const alarm of alarms.filter((each) => each.time >= first && each.time <= last))
    svg.append(node("line", { x1: x(alarm.time), x2: x(alarm.time), y1: TOP, y2: HEIGHT - BOTTOM, class: "alarm" }));
  const known = (path) => history.filter((point) => value(point, path) != null);
  if (band && known(band[0]).length) {
    const points = known(band[0]);
    const edge = (path) => points.map((point) => `${x(point.time)},${y(value(point, path))}`);
    svg.append(node("polygon", { points: [...edge(band[1]), ...edge(band[0]).reverse()].join(" "), class: "band" }));
  }
  for (const [path, colour] of lines) {
    const points = known(path).map((point) => `${x(point.time)},${y(value(point, path))}`);
    if (points.length === 1) svg.append(node("circle", { cx: points[0].split(",")[0], cy: points[0].split(",")[1], r: 3, class: `dot ${colour}` }));
    svg.append(node("polyline", { points: points.join(" "), class: `curve ${colour}` }));
  }
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  caption.textContent = title;
  if (lines.length > 1)
    for (const [, colour, label] of lines) {
      const key = document.createElement("span");
      key.className = `key ${colour}`;
      key.textContent = label;
      caption.append(" ", key);
    }
  figure.append(caption, svg);
  return figure;
}

export const plots = (history, alarms) => (history.length ? PLOTS.map((each) => plot(each, history, alarms)) : []);
