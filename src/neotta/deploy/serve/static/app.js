// The dashboard of neotta serve: all cameras at a glance, worst first, and a page for each.
import { RequestError, STATUS, address, get, getBlob, hasKey, listen, now, post, remove, setKey } from "/static/api.js";
import { bars, date, entry, interval, make, marks, number, percent, plots, sparkline } from "/static/plots.js";

const $ = (id) => document.getElementById(id);
const whole = (value) => (value ?? 0).toLocaleString("en");
const GROUPS = [["all", "All"], [3, "✕ quarantined"], [2, "▲ check"], [1, "○ idle or frozen"], [0, "● fine"]];
const cameras = new Map(); // by id: { summary, tile, points, visible }
let server = null, group = "all", shown = null, detail = null;

// ---- words

const badge = ({ status, trouble }) => `${trouble === 2 ? "▲ check · " : ""}${STATUS[status]?.icon ?? "?"} ${status}`;
const kind = ({ status, trouble }) => (trouble === 2 ? "look" : status);
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

function words({ status, error, health, seen, accuracy }) {
  const remarks = error ? [error] : health ? health.remarks : [seen ? "it has learnt from no image yet" : "no image since the server started"];
  const why = accuracy?.reason ? [`the accuracy is not known: ${accuracy.reason}`] : [];
  return [STATUS[status]?.says ?? status, ...[...remarks, ...why].map(sentence)];
}

function ago(seconds) {
  if (seconds == null) return "no image since the server started";
  const past = Math.max(0, now() - seconds);
  const [value, unit] = past < 100 ? [past, "s"] : past < 6000 ? [past / 60, "min"] : past < 172800 ? [past / 3600, "h"] : [past / 86400, "days"];
  return `last image ${Math.round(value)} ${unit} ago`;
}

function curl(id) {
  const name = encodeURIComponent(id).replaceAll("'", "%27");
  return `curl ${hasKey() ? '-H "Authorization: Bearer $NEOTTA_KEY" ' : ""}--data-binary @image.jpg '${location.origin}/classify?stream=${name}'`;
}

// ---- the overview

function tileOf(camera) {
  const tile = $("tile").content.firstElementChild.cloneNode(true), link = tile.querySelector("a");
  link.textContent = camera.summary.id;
  link.href = address("camera", camera.summary.id);
  tile.camera = camera;
  inView.observe(tile);
  return tile;
}

function drawTile({ summary, tile, points, visible }) {
  const set = (part, text) => { tile.querySelector(part).textContent = text; };
  tile.dataset.kind = kind(summary);
  set(".badge", badge(summary));
  set(".words", words(summary).join(" "));
  set(".accuracy", summary.judged ? `judged, ${summary.judged.text}` : interval(summary.accuracy));
  set(".changed", percent(summary.health?.changed));
  set(".samples", summary.health ? `${whole(summary.health.samples)} samples` : "");
  set(".ago", ago(summary.seen));
  if (visible && points) tile.querySelector(".spark").replaceChildren(...sparkline(points));
}

const inView = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    target.camera.visible = isIntersecting;
    if (isIntersecting) fill(target.camera);
  }
}, { rootMargin: "200px" });

// The parts of a tile that cost a request: only for tiles in view.
async function fill(camera) {
  drawPicture(camera.tile.querySelector("canvas"), camera.summary);
  if (camera.points) return;
  camera.points = [];
  camera.points = (await get(address("streams", camera.summary.id)).catch(() => ({ history: [] }))).history;
  drawTile(camera);
}

async function drawPicture(canvas, { id, seen, picture }) {
  const wanted = JSON.stringify([id, picture && seen]);
  if (canvas.dataset.wanted === wanted) return;
  canvas.dataset.wanted = wanted;
  const bitmap = picture && (await getBlob(address("pictures", id)).then(createImageBitmap).catch(() => null));
  if (canvas.dataset.wanted !== wanted) return;
  canvas.hidden = !bitmap;
  if (bitmap) [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  if (bitmap) canvas.getContext("2d").drawImage(bitmap, 0, 0);
}

function arrange() {
  const worstFirst = (one, other) => other.summary.trouble - one.summary.trouble || one.summary.id.localeCompare(other.summary.id);
  const focused = document.activeElement;
  [...cameras.values()].sort(worstFirst).forEach(({ tile }, index) => {
    const there = $("tiles").children[index];
    if (there !== tile) $("tiles").insertBefore(tile, there ?? null);
  });
  if (focused !== document.activeElement) focused.focus();
}

function filter() {
  const text = $("search").value.trim().toLowerCase(), counts = { all: 0 };
  let matches = 0;
  for (const { summary, tile } of cameras.values()) {
    counts[summary.trouble] = (counts[summary.trouble] ?? 0) + 1;
    counts.all++;
    tile.hidden = (group !== "all" && summary.trouble !== group) || !`${summary.id} ${badge(summary)} ${words(summary).join(" ")}`.toLowerCase().includes(text);
    matches += !tile.hidden;
  }
  GROUPS.forEach(([name, label], index) => {
    const button = $("groups").children[index];
    button.textContent = `${label} ${whole(counts[name])}`;
    button.setAttribute("aria-pressed", String(group === name));
  });
  $("none").hidden = matches > 0 || !cameras.size;
  $("empty").hidden = cameras.size > 0;
  $("tools").hidden = $("legend").hidden = !cameras.size;
  const bad = (counts[3] ?? 0) + (counts[2] ?? 0);
  document.title = `${shown ?? (bad ? `(${bad}) cameras` : "cameras")} · neotta serve`;
}

// ---- one camera

function open(id) {
  shown = id;
  detail = null;
  $("name").textContent = id;
  $("said").textContent = "";
  for (const part of ["plots", "subtracted", "marks", "facts", "words"]) $(part).replaceChildren();
  $("picture").hidden = true;
  delete $("picture").dataset.wanted;
  $("missing").querySelector(".curl").textContent = curl(id);
  drawSummary();
  refresh();
}

function drawSummary() {
  const summary = cameras.get(shown)?.summary ?? detail;
  $("known").hidden = !summary;
  $("missing").hidden = Boolean(summary) || !server;
  $("badge").hidden = !summary;
  if (!summary) return;
  const { health, accuracy, judged } = summary;
  $("badge").textContent = badge(summary);
  $("camera").dataset.kind = kind(summary);
  $("words").replaceChildren(...words(summary).map((text) => make("li", {}, text)));
  const by = { product: "from how sure and how stable the answers are", confidence: "from how sure the answers are" }[accuracy?.by] ?? accuracy?.reason ?? "";
  const draws = health?.draws == null ? "" : `; they count as ${whole(Math.round(health.draws))} label draws`;
  const facts = [
    judged
      ? ["Gain, measured", judged.text, `from ${whole(judged.answers)} answers on ${whole(judged.images)} images`]
      : ["Estimated accuracy", interval(accuracy), by],
    ["Samples learnt from", health ? whole(health.samples) : "–", `${whole(health?.rejected)} rejected${draws}`],
    ["Changed answers", percent(health?.changed), "differ from the plain model"],
    ["Shift", number(health?.shift), "× spread of the logits"],
    ["Most frequent class", percent(health?.top_share), `last label repeats: ${percent(health?.sticky)}`],
    ["Images answered", whole(summary.images), ago(summary.seen)],
  ];
  $("facts").replaceChildren(...facts.map(([name, value, more]) => make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", { class: "soft" }, more))));
  for (const row of $("actions").children) row.hidden = ACTIONS[row.dataset.action].hidden?.(summary) ?? false;
  drawPicture($("picture"), summary);
}

async function refresh() {
  const id = shown;
  try {
    const found = await get(address("streams", id));
    if (id !== shown) return;
    detail = found;
  } catch (error) {
    if (id !== shown) return;
    if (error.status !== 404) return void ($("said").textContent = sentence(error.message));
    cameras.get(id)?.tile.remove();
    cameras.delete(id);
    detail = null;
    return drawSummary();
  }
  drawSummary();
  drawHistory();
  const { offset, snapshots } = detail;
  const nothing = detail.error ? "Not known: its state cannot be read." : "No shift.";
  $("subtracted").replaceChildren(...(offset?.some((each) => each.offset) ? bars(offset) : [nothing]));
  const before = $("snapshots").value;
  $("snapshots").replaceChildren(...snapshots.toReversed().map((time) => make("option", { value: time }, date(time))));
  if (snapshots.map(String).includes(before)) $("snapshots").value = before;
  if (!snapshots.length) $("snapshots").append(make("option", {}, "none yet: one is taken every hour"));
  $("snapshots").disabled = $("snapshots").nextElementSibling.disabled = !snapshots.length;
}

function drawHistory(resized) {
  if (!detail || (!resized && $("plots").matches(":hover, :focus-within"))) return; // somebody reads a value
  const { history } = detail, found = marks(history), width = Math.floor($("plots").clientWidth);
  const columns = width > 760 ? 2 : 1, inner = (width - (columns - 1) * 16) / columns - 34;
  $("plots").replaceChildren(...(history.length ? plots(history, found, inner) : [make("p", { class: "soft" }, "No history yet: a point is kept every ten seconds of activity.")]));
  const kinds = new Map(found.map((mark) => [mark.kind, mark.icon]));
  const meaning = (name) => (name === "look" ? "a sign to look at appeared" : `turned ${name}`);
  $("marks").replaceChildren(...[...kinds].map(([name, icon]) => make("span", { class: "mark", "data-kind": name }, `┆ ${icon} ${meaning(name)}`)));
  $("happened").hidden = !found.length;
  $("happened").querySelector("ol").replaceChildren(...found.toReversed().map((mark) => make("li", {}, `${date(mark.time)}: ${mark.icon} ${mark.text}`)));
}

// ---- actions

const act = (action, more) => (id) => post(address("streams", id), { action, ...more?.() });
const ACTIONS = {
  freeze: { label: "Freeze", hidden: ({ status }) => status === "frozen", run: act("freeze"), done: () => "Frozen.",
    says: "It keeps answering with what it has learnt, and learns nothing from new images until you unfreeze it." },
  unfreeze: { label: "Unfreeze", hidden: ({ status }) => status !== "frozen", run: act("unfreeze"), done: () => "Unfrozen: it learns again.",
    says: "It learns from new images again, starting from what it knows now." },
  rollback: { label: "Roll back", run: act("rollback", () => ({ to: Number($("snapshots").value) })), done: ({ restored }) => `Rolled back to ${date(restored)}.`,
    says: "It returns to what it knew at the chosen time. What it knows now is kept as a snapshot first." },
  reset: { label: "Reset", run: act("reset"), done: () => "Reset: it starts again from nothing.",
    says: "It forgets what it has learnt and answers like the plain model until it has learnt again. What it knows now is kept as a snapshot first, if it can be read." },
  judge: { label: "Judge 30 answers", hidden: () => !server?.pictures, plain: true, run: judge, done: () => "",
    says: "You see images of this camera on which the plain and the adapted answer differ, and say which is right: that tells whether adapting helps here." },
  save: { label: "Download state", plain: true, run: download, done: () => "Downloaded.",
    says: "What it has learnt, as a safetensors file that neotta.load reads." },
  forget: { label: "Forget", run: (id) => remove(address("streams", id)), done: () => "Forgotten.",
    says: "Its state, history and snapshots are deleted for good. It comes back, new, with its next image." },
};

async function download(id) {
  const link = make("a", { href: URL.createObjectURL(await getBlob(address("states", id))), download: `${id.replace(/[^\p{L}\p{N}.-]+/gu, "_")}.safetensors` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function judge(id) {
  await post(`${address("judgements", id)}?part=begin`, {});
  location.href = address("judge", id);
}

function confirmed({ label, says }, id) {
  const to = label === "Roll back" ? ` to ${$("snapshots").selectedOptions[0].textContent}` : "";
  $("question").textContent = `${label} “${id}”${to}?`;
  $("consequence").textContent = says;
  $("confirm").textContent = label;
  $("ask").returnValue = "";
  $("ask").showModal();
  return new Promise((done) => { $("ask").onclose = () => done($("ask").returnValue === "ok"); });
}

async function perform(name) {
  const action = ACTIONS[name], id = shown;
  if (!action.plain && !(await confirmed(action, id))) return;
  let said;
  try {
    const answer = await action.run(id);
    if (answer?.status && cameras.has(id)) cameras.get(id).summary = answer;
    said = action.done(answer);
  } catch (error) {
    said = `Not done: ${error.message}.`;
  }
  if (id !== shown) return;
  await refresh();
  $("said").textContent = said;
}

for (const [name, { label, says }] of Object.entries(ACTIONS)) {
  const button = make("button", { type: "button" }, label), row = make("li", { "data-action": name }, make("p", {}, says));
  button.onclick = () => perform(name);
  if (name === "rollback") row.append(make("select", { id: "snapshots", "aria-label": "Snapshot to roll back to" }));
  row.append(button);
  $("actions").append(row);
}

// ---- where we are

const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };

function route() {
  const path = location.pathname, id = path.startsWith("/camera/") ? decoded(path.slice(8)) : null;
  $("overview").hidden = id !== null || !server;
  $("camera").hidden = id === null || !server;
  if (id === null) shown = null;
  else if (server && id !== shown) open(id);
  filter();
}

onpopstate = route;
onresize = drawHistory;
document.onclick = (event) => {
  const link = event.target.closest("a[href]");
  if (!link || link.download || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  route();
  scrollTo(0, 0);
  document.querySelector("main:not([hidden]) h1")?.focus();
};

// ---- the line to the server

function take({ server: about, streams }) {
  server = about;
  let moved = false;
  for (const summary of streams) {
    let camera = cameras.get(summary.id);
    moved ||= camera?.summary.trouble !== summary.trouble;
    if (camera) camera.summary = summary;
    else cameras.set(summary.id, (camera = { summary, points: null, visible: false })), (camera.tile = tileOf(camera));
    const { seen, accuracy, health } = summary, { points } = camera;
    if (points && seen && health) {
      if (points.length > 1 && seen - points.at(-2).time < 10) points.pop();
      points.push({ time: seen, accuracy, changed: health.changed });
    }
    drawTile(camera);
    if (summary.id === shown) drawSummary();
  }
  if (moved) arrange();
  const { model, rule, shadow, images, waiting, streams: count, version } = server;
  $("model").textContent = `${model} · ${rule}${shadow ? " · shadow: answers are those of the plain model" : ""} · ${version}`;
  $("totals").textContent = `${whole(count)} camera${count === 1 ? "" : "s"} · ${whole(images)} images answered since the start · ${whole(waiting)} waiting`;
  line("live", "● live");
  filter();
}

function takeAll({ server: about, streams, more }) {
  const ids = new Set(streams.map(({ id }) => id));
  for (const [id, { tile }] of cameras) if (!ids.has(id)) tile.remove(), cameras.delete(id);
  $("more").hidden = !more;
  $("more").textContent = `${whole(more)} more cameras are not listed. Each has its page at ${location.origin}/camera/ID.`;
  for (const code of document.querySelectorAll("#empty .curl")) code.textContent = curl("gate");
  take({ server: about, streams });
  if (shown !== null) refresh();
}

const line = (state, text) => { if ($("line").textContent !== text) $("line").textContent = text; $("line").dataset.state = state; };

async function run() {
  for (;;) {
    try {
      takeAll(await get("/streams"));
      $("login").hidden = true;
      route();
      await listen((event) => {
        take(event);
        if (event.server.streams < cameras.size) get("/streams").then(takeAll, () => {}); // one was forgotten
      });
      line("lost", "✕ no connection, trying again");
    } catch (error) {
      if (error.status === 401) {
        server = null;
        route();
        $("login").hidden = false;
        $("key-error").textContent = hasKey() ? sentence(error.message) : "";
        $("key").focus();
        return line("lost", "✕ no key");
      }
      line("lost", `✕ ${error instanceof RequestError ? error.message : "no connection"}, trying again`);
    }
    await new Promise((done) => setTimeout(done, 2000));
  }
}

for (const [name] of GROUPS) {
  const button = make("button", { type: "button" });
  button.onclick = () => { group = name; filter(); };
  $("groups").append(button);
}
$("legend").append(entry("curve", "estimated accuracy"), entry("band", "its interval"), entry("second", "share of changed answers"));
$("search").oninput = filter;
$("login").onsubmit = (event) => { event.preventDefault(); $("login").hidden = true; setKey($("key").value); run(); };
setInterval(() => {
  if (document.hidden) return;
  for (const camera of cameras.values()) if (camera.visible) camera.tile.querySelector(".ago").textContent = ago(camera.summary.seen), fill(camera);
}, 2000);
setInterval(() => {
  if (shown === null || !server || document.hidden) return;
  const seen = cameras.get(shown)?.summary.seen;
  if (seen !== detail?.seen || now() - seen < 30) refresh(); // its last point may follow its last image by ten seconds
}, 5000);
run();
