// Small helpers: elements, numbers, badges. Text of stores enters the page as text only.

export const byId = (id) => document.getElementById(id);

// h("button", {class: "plain", onclick: f, "aria-label": "Play"}, "Play")
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const whole = (number) => Number(number).toLocaleString("en-US");

export const counted = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;

export function plain(value, limit = 120) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return text.length > limit ? `${text.slice(0, limit)}…` : text;
}

// The letter of a store: A, B, ... Z, AA, ...
export function letter(index) {
  return (index >= 26 ? letter(Math.floor(index / 26) - 1) : "") + String.fromCharCode(65 + (index % 26));
}

export function chip(index) {
  return h("span", { class: `chip store-${index % 8}`, "aria-hidden": "true" }, letter(index));
}

const END_WORDS = {
  __proto__: null,
  terminated: "The env ended the episode",
  truncated: "A limit ended the episode",
  cut: "Only the recording stopped",
  open: "Still being written",
};

export function badge(word, title = END_WORDS[word] ?? "") {
  return h("span", { class: `badge end-${END_WORDS[word] ? word : "other"}`, title }, word);
}

let saying = 0;

// Tells screen readers, once things are calm.
export function say(text, delay = 700) {
  clearTimeout(saying);
  saying = setTimeout(() => {
    byId("status").textContent = text;
  }, delay);
}

export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { "aria-hidden": "true" }, text);
    (button.closest("dialog") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  say("Copied", 0);
  setTimeout(() => {
    button.textContent = before;
  }, 1200);
}

export function saveFile(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name, hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 30_000);
}

// Calls of f at most every `wait` ms, the last one always.
export function calmly(f, wait) {
  let timer = 0;
  let last = 0;
  return (...given) => {
    clearTimeout(timer);
    const rest = Math.max(0, last + wait - performance.now());
    timer = setTimeout(() => {
      last = performance.now();
      f(...given);
    }, rest);
  };
}

export function later(f, wait) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => f(...given), wait);
  };
}
