// The table of episodes: pages of rows are read as one scrolls; keyboard; growth in place.
import { badge, byId, chip, h, later, plain, say, whole } from "./dom.js";
import { shortNumber } from "./curves.js";

const PAGE = 100;
const KEPT_PAGES = 60;
const MOST_HEIGHT = 12e6; // browsers have no taller elements; beyond, the scrollbar is scaled
// Without a prototype: a key of the metadata may be named "constructor".
const NAMES = { __proto__: null, id: "Id", store: "Store", stream: "Env", steps: "Steps", return: "Return", end: "End", strip: "Frames" };
const WIDTHS = { __proto__: null, id: 4.2, return: 5.2, steps: 4.4, end: 6.4, stream: 3.8 };
const ORDER = ["id", "store", "return", "steps", "end"];
// Metadata that every store has.
export const BOOKKEEPING = ["session", "stream_episode"];
// How an episode was made: behind the user's own columns, and hidden at first.
const PROVENANCE = ["stream", "seed", "noops", "snapshot", ...BOOKKEEPING];
const NUMERIC = new Set(["id", "return", "steps", "stream"]);

export const keyOf = (row) => `${row.store}/${row.id}/${row.first_row}`;

// The lines of an answer of /api/episodes as objects.
export const rowsOf = ({ columns, rows }) => rows.map((values) => Object.fromEntries(columns.map((name, place) => [name, values[place]])));

export class Table {
  // read: async ({sort, order, start, count}, signal) => answer of /api/episodes
  constructor({ read, onOpen, onSort, onAnswer, onError }) {
    Object.assign(this, { read, onOpen, onSort, onAnswer, onError });
    this.grid = byId("episodes");
    this.head = byId("episodes-head");
    this.body = byId("episodes-body");
    this.sort = "id";
    this.order = "asc";
    this.matching = 0;
    this.columns = [];
    this.shown = [];
    this.pages = new Map();
    this.loads = new Map();
    this.elements = new Map();
    this.active = -1;
    this.open = null; // key of the open episode
    this.openIndex = -1;
    this.stores = [];
    this.hasProvenance = false;
    this.asked = 0;
    this.grid.addEventListener("scroll", () => this.render(), { passive: true });
    this.grid.addEventListener("keydown", (event) => this.press(event));
    this.grid.addEventListener("focus", () => {
      if (this.active < 0 && this.matching) this.active = this.openIndex >= 0 ? this.openIndex : this.top();
      this.render();
    });
    this.body.addEventListener("click", (event) => {
      const element = event.target.closest("[role=row]");
      if (!element) return;
      this.active = Number(element.dataset.index);
      this.openActive();
    });
    new ResizeObserver(() => this.render()).observe(this.grid);
    this.loadSoon = later(() => this.loadVisible(), 30);
    // Strips of rows that stay in view: not of those that are scrolled past.
    this.stripsSoon = later(() => {
      for (const image of this.body.querySelectorAll("img:not([src])")) image.src = image.dataset.src;
    }, 150);
  }

  get rowHeight() {
    return parseFloat(getComputedStyle(this.grid).getPropertyValue("--row-height")) || 30;
  }

  // Another filter or order: from the top.
  async reload() {
    this.active = -1;
    this.openIndex = -1;
    return this.readAgain(false);
  }

  // Stores have grown: the row that one looks at stays where it is.
  async refresh() {
    return this.readAgain(true);
  }

  async readAgain(keepPlace) {
    const asked = ++this.asked;
    for (const load of this.loads.values()) load.abort();
    this.loads.clear();
    const isStill = keepPlace && (this.grid.scrollTop > 0 || this.active >= 0);
    const index = this.active >= 0 && this.isVisible(this.active) ? this.active : this.top();
    const anchor = isStill ? this.rowAt(index) : null;
    const start = keepPlace ? Math.max(0, Math.floor((this.top() - PAGE) / PAGE) * PAGE) : 0;
    let answer;
    try {
      const count = keepPlace ? 4 * PAGE : PAGE;
      answer = await this.read({ sort: this.sort, order: this.order, start, count });
    } catch (error) {
      if (asked === this.asked && error.name !== "AbortError") this.onError(error);
      return false;
    }
    if (asked !== this.asked) return false;
    this.pages.clear();
    this.accept(answer);
    if (!keepPlace) this.grid.scrollTop = 0;
    else if (anchor) {
      const moved = this.indexOf(keyOf(anchor)) - index;
      if (moved && this.indexOf(keyOf(anchor)) >= 0) {
        if (this.active >= 0) this.active += moved;
        if (this.grid.scrollTop > 0 || this.active >= 0) this.grid.scrollTop += moved * this.rowHeight * this.scale;
      }
    }
    if (this.open) {
      const found = this.indexOf(this.open);
      if (found >= 0) this.openIndex = found;
    }
    this.active = Math.min(this.active, this.matching - 1);
    this.onAnswer(answer);
    this.render(true);
    return true;
  }

  accept(answer) {
    this.columns = answer.columns;
    this.matching = answer.matching;
    const rows = rowsOf(answer);
    for (let at = 0; at < rows.length || at === 0; at += PAGE) {
      const page = (answer.start + at) / PAGE;
      this.pages.delete(page);
      this.pages.set(page, rows.slice(at, at + PAGE));
    }
    for (const page of this.pages.keys()) {
      if (this.pages.size <= KEPT_PAGES) break;
      this.pages.delete(page);
    }
    if (this.layout !== this.drawnLayout) this.drawHead(rows);
    const height = Math.min(MOST_HEIGHT, this.matching * this.rowHeight);
    this.body.style.height = `${height}px`;
    this.grid.setAttribute("aria-rowcount", this.matching + 1);
  }

  // Pixels of scrolling for a pixel of rows.
  get scale() {
    const rows = this.matching * this.rowHeight;
    if (rows <= MOST_HEIGHT) return 1;
    const view = this.grid.clientHeight - this.head.offsetHeight;
    return (MOST_HEIGHT - view) / (rows - view);
  }

  top() {
    return Math.floor(this.grid.scrollTop / this.scale / this.rowHeight);
  }

  get visibleRows() {
    return Math.max(1, Math.floor((this.grid.clientHeight - this.head.offsetHeight) / this.rowHeight));
  }

  isVisible(index) {
    return index >= this.top() && index <= this.top() + this.visibleRows;
  }

  rowAt(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null;
  }

  indexOf(key) {
    for (const [page, rows] of this.pages) {
      const place = rows.findIndex((row) => keyOf(row) === key);
      if (place >= 0) return page * PAGE + place;
    }
    return -1;
  }

  async loadVisible() {
    const first = Math.floor(Math.max(0, this.top() - 8) / PAGE);
    const last = Math.floor(Math.min(this.matching - 1, this.top() + this.visibleRows + 8) / PAGE);
    const wanted = [];
    for (let page = first; page <= last; page++) wanted.push(page);
    for (const [page, load] of this.loads) {
      if (wanted.includes(page)) continue;
      load.abort();
      this.loads.delete(page);
    }
    await Promise.all(wanted.map((page) => this.load(page)));
  }

  async load(page) {
    if (this.pages.has(page) || this.loads.has(page)) return;
    const load = new AbortController();
    this.loads.set(page, load);
    try {
      const parts = { sort: this.sort, order: this.order, start: page * PAGE, count: PAGE };
      const answer = await this.read(parts, load.signal);
      if (this.loads.get(page) !== load) return;
      this.accept(answer);
    } catch (error) {
      if (error.name !== "AbortError" && this.loads.get(page) === load) this.onError(error);
      return;
    } finally {
      if (this.loads.get(page) === load) this.loads.delete(page);
    }
    this.render();
  }

  // ---- drawing

  get layout() {
    return [...this.columns, this.stores.some((store) => this.hasStrips(store))].join("\n");
  }

  drawHead(rows) {
    this.drawnLayout = this.layout;
    const several = this.stores.length > 1;
    const more = this.columns.filter((name) => !ORDER.includes(name) && name !== "first_row");
    const own = more.filter((name) => !PROVENANCE.includes(name));
    const names = [...own, ...(this.hasProvenance ? PROVENANCE.filter((name) => more.includes(name)) : [])];
    this.shown = [...ORDER.filter((name) => this.columns.includes(name) && (name !== "store" || several)), ...names];
    const widths = this.shown.map((name) => {
      if (name in WIDTHS) return WIDTHS[name];
      if (name === "store") return 2.7 + 0.5 * Math.min(16, Math.max(5, ...this.stores.map((store) => store.name.length)));
      const longest = Math.max(name.length + 2, ...rows.map((row) => plain(row[name]).length));
      return 1.3 + 0.58 * Math.min(24, longest);
    });
    this.grid.style.setProperty("--columns", widths.map((width) => `minmax(${width}rem, ${width}fr)`).join(" "));
    this.grid.style.setProperty("--least", `${widths.reduce((sum, width) => sum + width, 0)}rem`);
    const hasStrips = this.stores.some((store) => this.hasStrips(store));
    if (hasStrips) this.shown.push("strip"); // below the others, as wide as all of them
    this.grid.classList.toggle("strips", hasStrips);
    this.grid.setAttribute("aria-colcount", this.shown.length);
    // Columns of numbers are right-aligned: those of the metadata too.
    this.numeric = new Set(this.shown.filter((name) => NUMERIC.has(name) || (!(name in NAMES) && rows.every((row) => typeof (row[name] ?? 0) === "number"))));
    const cells = this.shown.map((name, place) => {
      const label = NAMES[name] ?? name;
      if (name === "strip") return h("div", { role: "columnheader", "aria-colindex": place + 1, class: "unseen" }, label);
      const button = h("button", { type: "button", title: `Sort by ${label}`, onclick: () => this.sortBy(name) }, h("span", {}, label));
      const isNumber = this.numeric.has(name);
      return h("div", { role: "columnheader", "aria-colindex": place + 1, class: isNumber ? "number" : "", "data-column": name }, button);
    });
    this.head.replaceChildren(h("div", { role: "row", "aria-rowindex": 1, class: "row" }, cells));
    this.markSort();
    this.clear();
  }

  setProvenance(isShown) {
    this.hasProvenance = byId("provenance").checked = isShown;
    this.drawHead([...this.pages.values()].flat());
    this.render();
  }

  // A report has none: its stores have no tag.
  hasStrips(store) {
    return Boolean(store?.tag) && store.fields.some((field) => field.image);
  }

  clear() {
    for (const element of this.elements.values()) element.remove();
    this.elements.clear();
  }

  markSort() {
    for (const cell of this.head.querySelectorAll("[role=columnheader]")) {
      const isSorted = cell.dataset.column === this.sort;
      cell.setAttribute("aria-sort", isSorted ? (this.order === "desc" ? "descending" : "ascending") : "none");
    }
  }

  sortBy(name) {
    const first = name === "return" || name === "steps" ? "desc" : "asc";
    this.order = this.sort !== name ? first : this.order === "asc" ? "desc" : "asc";
    this.sort = name;
    this.markSort();
    this.onSort(name, this.order);
    say(`Sorted by ${NAMES[name] ?? name}, ${this.order === "asc" ? "ascending" : "descending"}`);
  }

  setSort(sort, order) {
    this.sort = sort;
    this.order = order;
    this.markSort();
  }

  render(isNew = false) {
    const high = this.rowHeight;
    const offset = this.grid.scrollTop - (this.grid.scrollTop / this.scale - this.top() * high);
    const first = Math.max(0, this.top() - 6);
    const last = Math.min(this.matching - 1, this.top() + this.visibleRows + 8);
    let isMissing = false;
    for (const [index, element] of this.elements) {
      if (index >= first && index <= last) continue;
      element.remove();
      this.elements.delete(index);
    }
    for (let index = first; index <= last; index++) {
      const row = this.rowAt(index);
      isMissing ||= !row;
      const text = row ? JSON.stringify([row, this.stores[row.store]?.tag]) : "";
      let element = this.elements.get(index);
      if (!element || element.text !== text) {
        const made = this.drawRow(index, row);
        made.text = text;
        if (element) element.replaceWith(made);
        else this.body.append(made);
        this.elements.set(index, (element = made));
      }
      element.style.transform = `translateY(${offset + (index - this.top()) * high}px)`;
      const isOpen = row !== null && keyOf(row) === this.open;
      element.setAttribute("aria-selected", isOpen);
      element.classList.toggle("active", index === this.active);
    }
    if (this.active >= first && this.active <= last) {
      this.grid.setAttribute("aria-activedescendant", `row-${this.active}`);
    } else this.grid.removeAttribute("aria-activedescendant");
    byId("no-episodes").hidden = this.matching > 0;
    if (isMissing) this.loadSoon();
    this.stripsSoon();
    if (isNew) this.grid.removeAttribute("aria-busy");
  }

  drawRow(index, row) {
    const cells = this.shown.map((name, place) => {
      const isNumber = this.numeric.has(name);
      const cell = h("div", { role: "gridcell", "aria-colindex": place + 1, class: name === "strip" ? name : isNumber ? "number" : "" });
      if (row) cell.append(...this.content(name, row));
      else cell.textContent = place === 0 ? "…" : "";
      return cell;
    });
    const attributes = { role: "row", id: `row-${index}`, "aria-rowindex": index + 2, "data-index": index, class: "row" };
    if (row) attributes["data-key"] = keyOf(row);
    return h("div", attributes, cells);
  }

  content(name, row) {
    const value = row[name];
    if (name === "strip") {
      const store = this.stores[row.store];
      if (!this.hasStrips(store)) return [];
      const parts = { tag: store.tag, first_row: row.first_row, rows: row.steps + (row.first_row ? 0 : 1) };
      return [h("img", { "data-src": `/strip/${row.store}/${row.id}.webp?${new URLSearchParams(parts)}`, alt: `Frames of episode ${row.id}, from the first to the last` })];
    }
    if (name === "store") {
      return [chip(value), h("span", { class: "store-name" }, this.stores[value]?.name ?? `store ${value}`)];
    }
    if (name === "end") {
      const words = Array.isArray(value) ? value : String(value ?? "").split(/[ ,+|]+/);
      const badges = words.filter(Boolean).map((word) => badge(word));
      if (row.first_row > 0) badges.push(badge("late", `Rows before ${row.first_row} are not stored`));
      return badges;
    }
    if (name === "return") return [value === null || value === undefined ? "…" : typeof value === "number" ? shortNumber(value) : plain(value)];
    if (name === "id") return [String(value)];
    if (NUMERIC.has(name)) return [whole(value)];
    if (value === null || value === undefined) return [h("span", { class: "none" }, "–")];
    return [typeof value === "number" ? String(value) : plain(value)];
  }

  // ---- keyboard

  press(event) {
    if (event.target !== this.grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {
      ArrowDown: 1, ArrowUp: -1, PageDown: this.visibleRows - 1, PageUp: 1 - this.visibleRows, Home: -Infinity, End: Infinity,
    };
    if (event.key in moves && !event.shiftKey) {
      const from = this.active < 0 ? this.top() : this.active;
      this.moveTo(from + moves[event.key]);
    } else if (event.key === "Enter") this.openActive();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  moveTo(index) {
    this.active = Math.max(0, Math.min(this.matching - 1, index));
    this.reveal(this.active);
    this.render();
  }

  reveal(index) {
    const high = this.rowHeight * this.scale;
    const view = (this.visibleRows - 1) * high;
    if (index * high < this.grid.scrollTop) this.grid.scrollTop = index * high;
    else if (index * high > this.grid.scrollTop + view) this.grid.scrollTop = index * high - view;
  }

  async openActive() {
    if (this.active < 0 || this.active >= this.matching) return;
    const index = this.active;
    const page = Math.floor(index / PAGE);
    for (let tries = 0; !this.rowAt(index) && tries < 3; tries++) {
      if (this.loads.has(page)) await new Promise((resolve) => setTimeout(resolve, 120));
      else await this.load(page);
    }
    const row = this.rowAt(index);
    if (row) this.onOpen(row, index);
  }

  setOpen(key, index = -1) {
    this.open = key;
    this.openIndex = key === null ? -1 : index >= 0 ? index : this.indexOf(key);
    if (this.openIndex >= 0) this.active = this.openIndex;
    this.render();
  }

  // The next or previous episode of the order on the page.
  async step(by) {
    if (!this.matching) return;
    if (this.openIndex < 0 && this.open) this.openIndex = await this.search(this.open);
    const index = this.openIndex < 0 ? 0 : this.openIndex + by;
    if (index < 0 || index >= this.matching) {
      say(by > 0 ? "This is the last episode" : "This is the first episode", 0);
      return;
    }
    this.moveTo(index);
    await this.openActive();
  }

  // The place of an episode that no page at hand has: after a reload of the browser.
  async search(key) {
    let found = this.indexOf(key);
    for (let start = 0; found < 0 && start < Math.min(this.matching, 20_000); start += 10 * PAGE) {
      const answer = await this.read({ sort: this.sort, order: this.order, start, count: 10 * PAGE });
      const [store, id, first] = ["store", "id", "first_row"].map((name) => answer.columns.indexOf(name));
      const place = answer.rows.findIndex((row) => `${row[store]}/${row[id]}/${row[first]}` === key);
      if (place >= 0) found = start + place;
      if (!answer.rows.length) break;
    }
    return found;
  }
}
