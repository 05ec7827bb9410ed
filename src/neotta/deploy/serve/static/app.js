// The dashboard: cameras at a glance, live; one of them in detail.
import { RequestError, get, getBlob, listen, post, setKey } from "/static/api.js";
import { plots } from "/static/plots.js";

const $ = (id) => document.getElementById(id);
const cameras = new Map(), cards = new Map();
let chosen = null, detail = null, abort = null;

const percent = (value) => (value == null ? "–" : `${Math.round(value * 100)} %`);
const number = (value, digits = 2) => (value == null ? "–" : value.toFixed(digits));
const whole = (value) => (value ?? 0).toLocaleString("en");
const STATUS = { calm: "calm", changed: "changed", frozen: "frozen", quiet: "quiet" };

function make(tag, text = "", className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  node.className = className;
  return node;
}

// ---- the list

function card(camera) {
  let item = cards.get(camera.id);
  if (!item) {
    item = make("li");
    const button = make("button", "", "camera");
    button.append(make("span", "", "badge"), make("strong"), make("span", "", "row"), make("span", "", "bar"));
    button.querySelector(".bar").append(make("i"));
    button.onclick = () => choose(camera.id);
    item.append(button);
    cards.set(camera.id, item);
    const after = [...cards.keys()].sort().find((id) => id > camera.id && cards.get(id).isConnected);
    $("cameras").insertBefore(item, after ? cards.get(after) : null);
  }
  const button = item.firstChild;
  button.dataset.status = camera.status;
  button.querySelector(".badge").textContent = STATUS[camera.status];
  button.querySelector("strong").textContent = camera.name;
  const accuracy = camera.accuracy ? `accuracy about ${percent(camera.accuracy.accuracy)}` : "";
  button.querySelector(".row").textContent =
    [`${whole(camera.seen)} images`, `differ ${percent(camera.disagreement)}`, accuracy].filter(Boolean).join(" · ");
  button.querySelector(".bar i").style.width = `${Math.min(100, (camera.shift ?? 0) * 100)}%`;
  button.querySelector(".bar").title = `shift ${number(camera.shift)}`;
  button.setAttribute("aria-current", String(camera.id === chosen));
}

function filterList() {
  const text = $("filter").value.toLowerCase();
  let shown = 0;
  for (const [id, item] of cards) {
    item.hidden = !`${id} ${cameras.get(id).name}`.toLowerCase().includes(text);
    shown += !item.hidden;
  }
  $("count").textContent = `${whole(shown)} of ${whole(cameras.size)} cameras`;
  $("empty").hidden = cameras.size > 0;
}

function take({ server, cameras: changed }) {
  $("model").textContent = `${server.model} · ${server.rule}${server.shadow ? " · shadow" : ""}`;
  $("line").textContent = `live · ${whole(server.rows)} images answered · ${server.waiting} waiting`;
  for (const camera of changed) {
    cameras.set(camera.id, camera);
    card(camera);
    if (camera.id === chosen) showLive(camera);
  }
  filterList();
}

// ---- one camera

async function choose(id) {
  chosen = id;
  $("detail").hidden = false;
  $("said").textContent = "";
  for (const camera of cameras.values()) card(camera);
  showLive(cameras.get(id));
  await refresh();
  if (innerWidth < 900) $("detail").scrollIntoView({ behavior: "smooth" });
}

function showLive(camera) {
  $("name").textContent = camera.name === camera.id ? camera.name : `${camera.name} (${camera.id})`;
  $("status").textContent = STATUS[camera.status];
  $("status").dataset.status = camera.status;
  const accuracy = camera.accuracy;
  const figures = [
    ["Images seen", whole(camera.seen)],
    ["Learnt from", whole(camera.learnt)],
    ["Plain and adapted differ", percent(camera.disagreement)],
    ["Confidence, plain → adapted", `${percent(camera.confidence_plain)} → ${percent(camera.confidence)}`],
    ["Stable under dropout, plain → adapted", `${percent(camera.stable_plain)} → ${percent(camera.stable)}`],
    ["Shift removed", number(camera.shift)],
    ["Most frequent answer", `${percent(camera.top_share)} of all, ${number(camera.effective_classes, 1)} classes seen`],
    ["Estimated accuracy", accuracy ? `${percent(accuracy.accuracy)} (${percent(accuracy.low)} to ${percent(accuracy.high)}, by ${accuracy.by})` : "not known yet"],
    ["Alarms", whole(camera.alarms)],
  ];
  $("figures").replaceChildren(...figures.flatMap(([name, text]) => [make("dt", name), make("dd", text)]));
  $("actions").querySelector('[data-act="freeze"]').hidden = camera.frozen;
  $("actions").querySelector('[data-act="unfreeze"]').hidden = !camera.frozen;
}

async function refresh() {
  if (chosen === null) return;
  const id = chosen;
  const found = await get(`/api/camera?id=${encodeURIComponent(id)}`);
  if (id !== chosen) return;
  detail = found;
  $("plots").replaceChildren(...plots(detail.history, detail.alarm_list));
  const when = (seconds) => new Date(seconds * 1000).toLocaleString();
  const alarms = detail.alarm_list.slice(-20).reverse().map((each) => make("li", `${when(each.time)}: ${each.reason}`, each.kind));
  $("alarms").replaceChildren(...(alarms.length ? alarms : [make("li", "none", "dim")]));
  const before = $("snapshots").value;
  $("snapshots").replaceChildren(
    ...detail.snapshots.slice().reverse().map((time) => Object.assign(make("option", when(time)), { value: time })));
  if (detail.snapshots.map(String).includes(before)) $("snapshots").value = before;
  $("actions").querySelector('[data-act="rollback"]').disabled = !detail.snapshots.length;
  await showImages(id, detail.images);
}

async function showImages(id, count) {
  const shown = [];
  for (let index = 0; index < Math.min(count, 8); index++) {
    const blob = await getBlob(`/api/camera/image?id=${encodeURIComponent(id)}&number=${index}`).catch(() => null);
    if (!blob) continue;
    const image = Object.assign(document.createElement("img"), { src: URL.createObjectURL(blob), alt: "" });
    image.onload = () => URL.revokeObjectURL(image.src);
    shown.push(image);
  }
  if (id === chosen) $("images").replaceChildren(...shown);
}

// ---- actions

function ask(question, text = null) {
  $("question").textContent = question;
  $("answer").hidden = text === null;
  $("answer").value = text ?? "";
  $("ask").returnValue = "";
  $("ask").showModal();
  return new Promise((done) => {
    $("ask").onclose = () => done($("ask").returnValue === "ok" ? ($("answer").hidden ? true : $("answer").value) : null);
  });
}

async function save(id) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await getBlob(`/api/camera/state?id=${encodeURIComponent(id)}`));
  link.download = `${id.replace(/[^\w.-]+/g, "_")}.safetensors`;
  link.click();
  URL.revokeObjectURL(link.href);
  return "exported";
}

const ACTS = {
  freeze: async (id) => (await post("/api/camera/freeze", { id }), "frozen: it answers, and learns nothing"),
  unfreeze: async (id) => (await post("/api/camera/unfreeze", { id }), "adapting again"),
  export: save,
  reset: async (id) => (await ask(`Forget what ${id} has learnt?`)) && (await post("/api/camera/reset", { id }), "reset; a snapshot was kept"),
  rename: async (id) => {
    const name = await ask("New name", cameras.get(id).name);
    return name && (await post("/api/camera/rename", { id, name }), "renamed");
  },
  rollback: async (id) => {
    const to = Number($("snapshots").value) + 0.001;
    return (await ask(`Take ${id} back to ${new Date(to * 1000).toLocaleString()}?`)) && (await post("/api/camera/rollback", { id, to }), "rolled back");
  },
};

$("actions").onclick = async ({ target }) => {
  const act = ACTS[target.dataset.act];
  if (!act || chosen === null) return;
  try {
    const said = await act(chosen);
    if (said) $("said").textContent = said;
    await refresh();
  } catch (error) {
    $("said").textContent = error.message;
  }
};
$("close").onclick = () => { chosen = null; $("detail").hidden = true; for (const camera of cameras.values()) card(camera); };
$("filter").oninput = filterList;
$("login").onsubmit = (event) => { event.preventDefault(); setKey($("key").value); run(); };
$("origin").textContent = location.origin;

// ---- the line to the server

async function run() {
  abort?.abort();
  abort = new AbortController();
  const { signal } = abort;
  while (!signal.aborted) {
    try {
      const all = await get("/api/cameras");
      $("login").hidden = true;
      for (const id of [...cards.keys()]) if (!all.cameras.some((camera) => camera.id === id)) { cards.get(id).remove(); cards.delete(id); cameras.delete(id); }
      take(all);
      await listen(take, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof RequestError && error.status === 401) {
        $("login").hidden = false;
        $("key-error").textContent = sessionStorage.getItem("key") ? error.message : "";
        $("line").textContent = "";
        return;
      }
    }
    $("line").textContent = "no connection, trying again";
    await new Promise((done) => setTimeout(done, 2000));
  }
}
setInterval(() => refresh().catch(() => {}), 5000);
run();
