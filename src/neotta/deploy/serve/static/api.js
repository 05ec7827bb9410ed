// Talking to the server: the key, requests, and live events (by fetch, since EventSource cannot send a key).
let key = sessionStorage.getItem("key") ?? "";

export function setKey(text) {
  key = text;
  sessionStorage.setItem("key", text);
}

const headers = (more = {}) => (key ? { Authorization: `Bearer ${key}`, ...more } : more);

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function checked(answer) {
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new RequestError(answer.status, body.error ?? `the server answered ${answer.status}`);
}

export const get = async (path) => (await checked(await fetch(path, { headers: headers() }))).json();
export const getBlob = async (path) => (await checked(await fetch(path, { headers: headers() }))).blob();

export async function post(path, body) {
  const more = headers({ "Content-Type": "application/json" });
  return (await checked(await fetch(path, { method: "POST", headers: more, body: JSON.stringify(body) }))).json();
}

// Calls `take` with every event; ends when the line breaks.
export async function listen(take, signal) {
  const answer = await checked(await fetch("/api/events", { headers: headers(), signal }));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) take(JSON.parse(part.slice(6)));
  }
}
