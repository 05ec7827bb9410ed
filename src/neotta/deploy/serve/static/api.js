// Talking to the server: the key, requests, live events; and what its words mean.
const SILENCE = 15; // seconds without an event, after which the connection counts as lost
let key = sessionStorage.getItem("key") ?? "";
let ahead = 0; // seconds by which this machine's clock is ahead of the server's

export const STATUS = {
  quarantined: { icon: "✕", says: "Its images are not answered." },
  frozen: { icon: "‖", says: "Frozen: it answers with what it has learnt, and learns nothing." },
  starting: { icon: "◔", says: "Starting: too few samples to tell." },
  idle: { icon: "○", says: "Idle: no shift is subtracted." },
  adapting: { icon: "●", says: "Adapting: a shift is subtracted." },
};

// Signs that ask somebody to look, and those that only explain.
export const LOOK = {
  rejected: "samples with NaN, Inf or too large", alike: "frames all alike", dominated: "one class has more than half",
  "one-answer": "most answers are one class",
  repeats: "frames repeat", differs: "more than half of the answers differ from the plain model", changed: "what the stream shows has changed",
};

export const hasKey = () => key !== "";
export const now = () => Date.now() / 1000 - ahead;
export const address = (route, id) => `/${route}/${encodeURIComponent(id)}`;

export function setKey(text) {
  key = text;
  sessionStorage.setItem("key", text);
}

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, { headers = {}, ...options } = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) } });
  const skew = (Date.now() - Date.parse(answer.headers.get("Date"))) / 1000;
  ahead = Math.abs(skew) > 3 ? skew : 0;
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new RequestError(answer.status, body.error ?? `the server answered ${answer.status}`);
}

export const get = async (path) => (await ask(path)).json();
export const getBlob = async (path) => (await ask(path)).blob();
export const remove = async (path) => (await ask(path, { method: "DELETE" })).json();
export const post = async (path, body) =>
  (await ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

// Calls `take` with every event; ends or throws when the connection is lost. EventSource cannot send a key.
export async function listen(take) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE * 1000);
  try {
    const answer = await ask("/events", { signal: silence.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE * 1000);
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) take(JSON.parse(part.slice(6)));
    }
  } finally {
    clearTimeout(timer);
  }
}
