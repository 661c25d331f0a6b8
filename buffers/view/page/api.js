// Requests to the server. A refusal is an Error with a plain sentence.

export const isReport = false;

export class Refused extends Error {}

// The server does not answer: the page says so by itself, until it answers again.
export class Gone extends Refused {}

const listeners = { gone: () => {}, back: () => {} };
let isGone = false;

// gone(sentence) when the server stops answering, back() when it answers again.
export function onTrouble(gone, back) {
  Object.assign(listeners, { gone, back });
}

function lost() {
  if (!isGone) {
    isGone = true;
    listeners.gone("The server does not answer. Is “stepwell view” still running? Trying again…");
    setTimeout(knock, 1000);
  }
  return new Gone("The server does not answer.");
}

async function knock() {
  try {
    await fetch("/api/stores", { cache: "no-store" });
    isGone = false;
    listeners.back();
  } catch {
    setTimeout(knock, 1500);
  }
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost();
  }
  if (answer.ok) return answer;
  let sentence = await answer.json().then(({ error }) => error).catch(() => "");
  if (!sentence && answer.status === 403) {
    sentence = "This page has no key: open the address that “stepwell view” has printed again.";
  }
  throw new Refused(sentence || `The server refused ${path.split("?")[0]} (${answer.status}).`);
}

// {a: 1, b: ["x", "y"], c: ""} -> "?a=1&b=x&b=y"
export function query(parts) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(parts)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== null && one !== undefined && one !== false) found.append(name, one);
    }
  }
  const text = found.toString();
  return text && `?${text}`;
}

export async function getJson(path, parts = {}, signal = undefined) {
  return (await request(path + query(parts), { signal })).json();
}

export async function getText(path, parts = {}) {
  return (await request(path + query(parts))).text();
}

export async function getBlob(path, parts = {}, signal = undefined) {
  return (await request(path + query(parts), { signal })).blob();
}

// All values of one row of the episode STORE/ID.
export async function readValues(path, row, parts) {
  const near = { name: "return so far", begin: row, stop: row + 1, ...parts };
  const [values, sums] = await Promise.all([getJson(`/api/values/${path}/${row}`, parts), getJson(`/api/curves/${path}`, near)]);
  return { ...values, "return so far": sums.curves["return so far"].values[0] ?? "not finite" };
}

export async function postJson(path, value) {
  const options = {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(value),
  };
  return (await request(path, options)).json();
}

// Calls f(version) whenever the server says that a store has changed.
export function follow(f) {
  const events = new EventSource("/events");
  events.onmessage = (event) => {
    try {
      f(JSON.parse(event.data).version);
    } catch {
      // A line that is no JSON says nothing.
    }
  };
  events.onerror = () => {
    if (events.readyState === EventSource.CLOSED) setTimeout(() => follow(f), 3000);
    fetch("/api/stores", { method: "HEAD", cache: "no-store" }).catch(lost);
  };
}
