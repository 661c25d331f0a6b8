// The conditions on episodes, in the words of `stepwell filter`, and the list of stores.
import { byId, chip, copyText, counted, h, later, plain, whole } from "./dom.js";

const TEXTS = ["min_return", "max_return", "min_steps", "max_steps", "ended", "ids"];

// Words of an error's beginning, and the place that shows it.
const PLACES = [
  [/return/, "return"], [/steps/, "steps"], [/^-*(ids|episodes)|\bids?\b/, "ids"], [/where|key=value/i, "where"],
  [/top|bottom|sort|rank|include_cut/, "best"],
];

export class Filter {
  constructor(onChange) {
    this.onChange = onChange;
    this.form = byId("filter");
    this.where = byId("where");
    this.addWhere();
    const soon = later(() => this.onChange(), 250);
    this.form.addEventListener("input", (event) => {
      if (event.target.parentElement === this.where) this.addWhere();
      soon();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.onChange();
    });
    byId("clear-filter").addEventListener("click", () => {
      this.value = {};
      this.onChange();
      byId("min_return").focus();
    });
    byId("copy-command").addEventListener("click", (event) => copyText(byId("command").textContent, event.target));
  }

  // One empty line is always there for another condition, up to 16.
  addWhere() {
    const lines = [...this.where.children];
    for (const line of lines.slice(0, -1)) if (!line.value && line !== document.activeElement) line.remove();
    const last = this.where.lastElementChild;
    if ((last && !last.value) || this.where.children.length >= 16) return;
    this.where.append(
      h("input", { name: "where", list: "where-keys", placeholder: "key=value", "aria-label": "Metadata key=value", "aria-describedby": "error-where" }),
    );
  }

  get value() {
    const found = {};
    for (const name of TEXTS) {
      const text = byId(name).value.trim();
      if (text) found[name] = text;
    }
    const where = [...this.where.children].map((line) => line.value.trim()).filter(Boolean);
    if (where.length) found.where = where;
    const best = byId("best").value;
    if (best && byId("best-count").value.trim()) {
      found[best] = byId("best-count").value.trim();
      if (byId("rank").value !== "return") found.rank = byId("rank").value;
      if (byId("include_cut").checked) found.include_cut = "true";
    }
    return found;
  }

  set value(given) {
    for (const name of TEXTS) byId(name).value = given[name] ?? "";
    this.where.replaceChildren();
    for (const one of [given.where ?? []].flat()) {
      this.addWhere();
      this.where.lastElementChild.value = one;
    }
    this.addWhere();
    byId("best").value = given.top ? "top" : given.bottom ? "bottom" : "";
    byId("best-count").value = given.top ?? given.bottom ?? "";
    this.wantedRank = given.rank ?? "return";
    this.setKeys(this.keys ?? []);
    byId("include_cut").checked = given.include_cut === "true";
  }

  setKeys(keys) {
    this.keys = keys;
    const rank = byId("rank");
    const wanted = this.wantedRank ?? rank.value ?? "return";
    const names = ["return", "steps", "id", ...keys.filter((key) => !["return", "steps", "id"].includes(key))];
    if (wanted && !names.includes(wanted)) names.push(wanted);
    rank.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    rank.value = wanted || "return";
    rank.onchange = () => {
      this.wantedRank = rank.value;
    };
    byId("where-keys").replaceChildren(...keys.map((key) => h("option", { value: `${key}=` })));
  }

  setRange(name, low, high) {
    byId(`min_${name}`).value = low ?? "";
    byId(`max_${name}`).value = high ?? "";
    this.onChange();
  }

  showError(sentence) {
    for (const [, place] of PLACES) byId(`error-${place}`).textContent = "";
    byId("error-filter").textContent = "";
    for (const input of this.form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    if (!sentence) return;
    const head = sentence.split(/[:\s]/)[0].toLowerCase();
    const found = PLACES.find(([word]) => word.test(head))?.[1] ?? "filter";
    byId(`error-${found}`).textContent = sentence;
    const names = { return: ["min_return", "max_return"], steps: ["min_steps", "max_steps"], ids: ["ids"], best: ["best-count"] };
    const exact = [`min_${found}`, `max_${found}`].filter((name) => sentence.includes(name));
    for (const id of exact.length === 1 ? exact : names[found] ?? []) byId(id).setAttribute("aria-invalid", "true");
  }

  showAnswer(answer) {
    this.showError("");
    // Lines break before an option, not behind a hyphen.
    byId("command").replaceChildren(...answer.command.split(/( (?=--)|\n)/).map((part) => (part.trim() ? h("span", {}, part) : part)));
    byId("sentence").textContent = answer.sentence ?? "";
    const conditions = Object.keys(this.value).filter((name) => name !== "rank" && name !== "include_cut").length;
    byId("filter-count").textContent = conditions ? counted(conditions, "condition") : "";
    byId("clear-filter").hidden = !conditions;
  }
}

// The stores, each with its colour and letter, and whether its episodes are shown.
export function drawStores(stores, off, onToggle) {
  const list = byId("stores");
  const before = new Map([...list.children].map((item) => [item.dataset.store, item]));
  let focused = null;
  const items = stores.map((store) => {
    const text = JSON.stringify([store, off.has(store.index)]);
    const old = before.get(String(store.index));
    if (old?.text === text) return old;
    const facts = store.error
      ? [h("p", { class: "error" }, store.error)]
      : [h("p", { class: "facts" }, plain(store.env).split(/, | \(/)[0]), h("p", { class: "facts" }, `${counted(store.episodes, "episode")} · ${counted(store.steps, "step")}`), ...notesOf(store)];
    const box = h("input", {
      type: "checkbox", id: `store-${store.index}`, checked: !off.has(store.index), disabled: Boolean(store.error),
      onchange: (event) => onToggle(store.index, event.target.checked),
    });
    const item = h("li", { "data-store": store.index, class: off.has(store.index) ? "off" : "" },
      box,
      h("div", {},
        h("label", { for: `store-${store.index}`, title: store.path },
          chip(store.index), h("span", { class: "store-name" }, store.name)),
        store.is_being_written ? h("span", { class: "badge live", title: "The store grows on this page" }, "being written") : null,
        ...facts));
    item.text = text;
    const about = old?.querySelector(".about");
    if (about?.open) item.querySelector(".about")?.setAttribute("open", "");
    // A store that grows is drawn again: the focus stays in its place.
    if (old?.contains(document.activeElement)) focused = [item, document.activeElement.localName];
    return item;
  });
  if (items.every((item, place) => list.children[place] === item) && list.children.length === items.length) return;
  list.replaceChildren(...items);
  focused?.[0].querySelector(focused[1])?.focus({ preventScroll: true });
}

function notesOf(store) {
  const notes = [];
  if (store.returns_known < store.episodes) {
    notes.push(`returns read: ${whole(store.returns_known)} of ${whole(store.episodes)}`);
  }
  if (store.lost_chunks) notes.push(`${counted(store.lost_chunks, "damaged chunk")} left out; “stepwell repair” removes them`);
  const details = h("details", { class: "about" }, h("summary", {}, "About"), aboutOf(store));
  return [...notes.map((note) => h("p", { class: "note" }, note)), details];
}

function aboutOf(store) {
  const rows = [["folder", store.path], ["env", plain(store.env, 400)], ["made by", plain(store.made_by)]];
  if (store.curves_left_out) rows.push(["curves", plain(store.curves_left_out, 400)]);
  for (const field of store.fields) {
    const stack = field.stack > 1 ? `, stack of ${field.stack}` : "";
    const image = field.image ? ", shown as an image" : "";
    rows.push([field.name, `${field.dtype} [${field.shape.join(", ")}]${stack}${image}`]);
  }
  store.sessions.forEach((session, place) => {
    const facts = Object.entries(session).filter(([, value]) => value !== null && value !== "");
    rows.push([`run ${place + 1}`, facts.map(([name, value]) => `${name}: ${plain(value)}`).join("; ")]);
  });
  return h("dl", {}, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
