// An episode: frames, values and curves under one cursor; a pinned one beside it.
import { getBlob, getJson, isReport, readValues } from "./api.js";
import { Curves, shortNumber } from "./curves.js";
import { badge, byId, calmly, chip, counted, h, later, plain, say } from "./dom.js";
import { FramePlayer } from "./frames.js";
import { BOOKKEEPING, keyOf } from "./table.js";

const MOST_LANES = 6;
const KEPT_VALUES = 400;
const DEFAULT_FPS = 15;
const PHASES = {
  reset: "the first observation: no reward yet",
  "final observation": "no action follows",
  cut: "the recording stopped here",
};

const theme = () => document.documentElement.dataset.theme;
const between = (low, value, high) => Math.max(low, Math.min(high, value));
const originOf = ({ first_row }) => (first_row ? { first_row } : {});

function readInfo(episode) {
  return getJson(`/api/episodes/${episode.store}/${episode.id}`, originOf(episode));
}

function valueText(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return shortNumber(value);
  if (Array.isArray(value)) return value.map(valueText).join(value.length > 8 ? "  " : "\n");
  return plain(value, 400);
}

// One episode: its frames, its values and its curves.
class Panel {
  constructor(view, info, store, prefix) {
    Object.assign(this, { view, info, store, prefix });
    this.shownRow = null;
    this.values = new Map(); // row -> values that were read
    this.cells = new Map();
    this.images = []; // {image, canvas, older, player, zoom}
    this.build();
  }

  get first() {
    return this.info.first_row;
  }

  get last() {
    return this.first + this.info.rows - 1;
  }

  get path() {
    return `${this.info.store}/${this.info.id}`;
  }

  get hasStack() {
    return this.images.some(({ older }) => older.length);
  }

  build() {
    const { info, prefix } = this;
    const hasImages = info.images.length > 0;
    this.head = h("h3", { class: "panel-head" });
    this.frames = h("div", { class: "frames" });
    this.mark = h("p", { id: `${prefix}mark`, class: "mark" });
    this.caption = h("caption");
    this.body = h("tbody");
    this.canvas = h("canvas", { id: `${prefix}curves`, class: "curves", role: "img" });
    this.note = h("p", { class: "note" });
    const curveBox = h("div", { class: "curve-box" }, this.canvas, this.note);
    this.element = h("section", { class: hasImages ? "panel" : "panel bare", "aria-label": `Episode ${info.id} of ${this.store.name}` },
      this.head, h("div", { class: "pictures" }, this.frames, hasImages ? this.mark : null),
      h("div", { class: "value-box" }, h("table", { id: `${prefix}values`, class: "values" }, this.caption, this.body), hasImages ? null : this.mark), curveBox);
    info.images.forEach((image) => this.buildImage(image));
    this.curves = new Curves(this.canvas, { first: this.first, stop: this.last + 1, colours: theme(), laneHeight: hasImages ? 60 : 84 });
    this.curves.onPick = (row) => this.view.goTo(row);
    this.curves.exactAt = (name, row) => this.values.get(row)?.[name];
    this.readSoon = later(() => this.readCurves(), 60);
    this.curves.onView = (begin, stop) => {
      this.view.syncViews(this, begin, stop);
      this.readSoon();
    };
    this.observer = new ResizeObserver(() => {
      this.curves.layout();
      this.fit();
      if (this.curves.width > 1.3 * this.readWidth) this.readSoon();
    });
    this.observer.observe(curveBox);
    this.drawHead();
    this.setLanes(this.view.lanesOf(this.store));
  }

  buildImage(image) {
    const { field, height, width, columns, rows, name } = image;
    const isThinned = this.info.step > 1; // the frames before are not there
    const stack = (!isThinned && this.store.fields.find((one) => one.name === name)?.stack) || 1;
    const make = (label, more) => h("canvas", { class: "frame", role: "img", "aria-label": `${name}: ${label}`, ...more });
    const canvas = make("frame", { id: `${this.prefix}frame-${field}` });
    const older = Array.from({ length: stack - 1 }, (_, back) => make(`frame ${back + 1} before`, { width, height, hidden: true, "data-back": back + 1 }));
    const zoom = h("span");
    const note = h("span", { class: "note" }, image.note ? ` ${image.note}` : "");
    this.frames.append(h("figure", {},
      h("div", { class: "stack" }, [...older].reverse(), canvas),
      h("figcaption", {}, h("b", {}, name.split(/(?<=\/)/).flatMap((part) => [part, h("wbr")])), ` ${width}×${height}`, zoom, note)));
    const source = async (block, signal) => {
      const parts = { tag: image.tag, rows: this.info.rows, ...originOf(this.info) };
      const blob = await getBlob(`/frames/${this.path}/${field}/${block}.webp`, parts, signal);
      return createImageBitmap(blob, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
    };
    const player = new FramePlayer(canvas, { height, width, columns, rows, count: this.info.rows, firstRow: this.first, step: this.info.step, source });
    player.onError = this.view.fail;
    this.images.push({ image, canvas, older, player, zoom });
  }

  drawHead() {
    const { info, store } = this;
    this.head.replaceChildren(chip(info.store), `Episode ${info.id} of ${store.name} `, ...this.badges(), h("span", { class: "note" }, this.facts().slice(0, 2).join(" · ")));
  }

  badges() {
    const { info } = this;
    const words = info.is_open ? ["open"] : ["terminated", "truncated", "cut"].filter((word) => info[word]);
    const found = words.map((word) => badge(word));
    if (info.starts_late) found.push(badge("starts late", `Rows before ${info.first_row} are not stored`));
    return found;
  }

  facts() {
    const { info } = this;
    const own = Object.entries(info.metadata).filter(([name]) => !BOOKKEEPING.includes(name));
    const more = own.map(([name, value]) => `${plain(name, 40)} ${plain(value, 60)}`);
    const notes = info.note ? [info.note] : [];
    return [`return ${valueText(info.return)}`, counted(info.steps, "step"), `env ${info.stream}`, ...more, ...notes];
  }

  setStack(isShown) {
    for (const { older, player } of this.images) {
      for (const canvas of older) canvas.hidden = !isShown;
      player.setOlder(isShown ? older : []);
    }
    this.fit();
  }

  // Whole factors, so that every pixel has the same size; all fields as near one height as they can.
  fit() {
    const room = this.frames.clientWidth;
    if (!room) return;
    const { zoom: wanted, isStack } = this.view;
    const shownOf = ({ older }) => (isStack ? older.length + 1 : 1);
    let zooms = this.images.map(() => wanted);
    for (let high = Math.max(200, innerHeight * 0.46); !wanted && high >= 24; high -= 8) {
      zooms = this.images.map(({ image }) => Math.max(1, Math.floor(high / image.height)));
      const widths = this.images.map((one, place) => (zooms[place] * one.image.width + 4) * shownOf(one) + 8);
      if (widths.reduce((sum, width) => sum + width, 0) <= room + 12) break;
    }
    this.images.forEach((one, place) => {
      const { image, canvas, older, zoom } = one;
      const share = room / shownOf(one) - 4;
      const factor = !wanted && image.width > share ? share / image.width : zooms[place];
      for (const each of [canvas, ...older]) {
        each.style.width = `${image.width * factor}px`;
        each.classList.toggle("smooth", factor < 1);
      }
      zoom.textContent = factor === 1 ? "" : `, shown ${Number(factor.toFixed(2))}×`;
    });
  }

  // ---- rows

  // True while the frame of the chosen row is on its way.
  get isLate() {
    return this.images.some(({ canvas }) => canvas.dataset.wanted !== undefined);
  }

  show(row) {
    row = between(this.first, row, this.last);
    this.curves.setCursor(row);
    if (row === this.shownRow) return;
    const direction = this.shownRow === null || row > this.shownRow ? 1 : -1;
    this.shownRow = row;
    for (const { player } of this.images) {
      player.show(row).then((isDrawn) => isDrawn && player.prefetch(row, direction));
    }
    this.drawMark(row);
    this.drawValues(row);
  }

  // The row itself, or the next one of those that a report has frames of: each step-th, and the last.
  nearest(row, isOn) {
    const { step = 1 } = this.info;
    const past = (row - this.first) % step;
    if (!past || row >= this.last || row < this.first) return row;
    return Math.min(this.last, isOn ? row - past + step : row - past);
  }

  phase(row) {
    const { info } = this;
    if (row === this.last && (info.terminated || info.truncated)) return "final observation";
    if (row === this.last && info.cut && !info.is_open) return "cut";
    return row === 0 ? "reset" : "";
  }

  drawMark(row) {
    const phase = this.phase(row);
    const name = phase.split(" ")[0];
    this.mark.className = `mark ${name}`;
    this.mark.replaceChildren(...(phase ? [h("b", {}, phase), ` ${PHASES[phase]}`] : []));
    for (const { canvas, image } of this.images) {
      canvas.parentElement.dataset.phase = name;
      if (!this.view.isPlaying) canvas.setAttribute("aria-label", `${image.name}, frame of row ${row}${phase && `, ${phase}`}`);
    }
  }

  actionName(value) {
    const { actions } = this.store;
    if (Array.isArray(value) && actions?.length === value.length) {
      return plain(actions.filter((_, bit) => value[bit]).join(" + ") || "nothing", 80);
    }
    const name = Number.isInteger(value) ? actions?.[value] : undefined;
    return name === undefined ? valueText(value) : plain(name, 40);
  }

  // ---- values

  // Values that are at hand: read before, or exact on the curves.
  valuesAt(row) {
    if (this.values.has(row)) return this.values.get(row);
    const known = ["action", "reward", "return so far"].map((name) => [name, this.curves.valueAt(name, row)]);
    return Object.fromEntries(known.filter(([, value]) => value !== undefined));
  }

  // Reads the values of the latest row, one request at a time.
  async drawValues(row) {
    this.fillValues(row);
    if (this.values.has(row) || this.isReading) return;
    this.isReading = true;
    try {
      while (!this.values.has(this.shownRow) && !this.isClosed) {
        const wanted = this.shownRow;
        this.values.set(wanted, await readValues(this.path, wanted, originOf(this.info)));
        if (this.values.size > KEPT_VALUES) this.values.delete(this.values.keys().next().value);
        // The row moves: frames come first.
        if (this.shownRow !== wanted) await new Promise((resolve) => setTimeout(resolve, 100));
      }
    } catch (error) {
      this.view.fail(error);
    }
    this.isReading = false;
    if (this.isClosed) return;
    this.fillValues(this.shownRow);
    this.curves.redrawCursor();
    this.view.describeRow();
  }

  fillValues(row) {
    const values = this.valuesAt(row);
    const first = ["action", "reward", "return so far"].filter((name) => Object.hasOwn(values, name));
    const names = [...new Set([...first, ...Object.keys(values), ...this.cells.keys()])];
    if (names.length > this.cells.size) {
      this.cells = new Map(names.map((name) => [name, h("td")]));
      this.body.replaceChildren(...names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), this.cells.get(name))));
    }
    this.caption.textContent = isReport && !names.length ? `Row ${row}: its values are on the curves alone` : `Row ${row}`;
    for (const name of names) {
      const cell = this.cells.get(name);
      cell.classList.toggle("stale", !(Object.hasOwn(values, name)));
      if (Object.hasOwn(values, name)) cell.textContent = name === "action" ? this.actionText(values.action) : valueText(values[name]);
    }
  }

  actionText(value) {
    const name = this.actionName(value);
    return name === valueText(value) ? name : `${name} (${Array.isArray(value) ? value.map(Number).join("") : value})`;
  }

  describe(row) {
    const { action, reward } = this.valuesAt(row);
    const phase = this.phase(row);
    const parts = [`row ${row} of ${this.last}`, phase];
    if (action === null || phase === "final observation") parts.push("no action");
    else if (action !== undefined && (this.store.actions || !Array.isArray(action))) parts.push(`action ${this.actionName(action)}`);
    if (reward !== undefined) parts.push(`reward ${valueText(reward)}`);
    return parts.filter(Boolean).join(", ");
  }

  // ---- curves

  setLanes(names) {
    const isChoice = !this.store.fields.some((field) => field.name === "action" && field.dtype.startsWith("float"));
    const kindOf = (name) => (name === "reward" ? "stems" : name.startsWith("action") && isChoice ? "steps" : "line");
    this.names = names;
    this.curves.setLanes(names.map((name) => ({ name, kind: kindOf(name), format: name === "action" ? (value) => this.actionName(value) : shortNumber })));
    this.canvas.setAttribute("aria-label", names.length ? `Curves of ${names.join(", ")}; the values of the chosen row are in the table` : "No curves chosen");
    this.readCurves();
  }

  async readCurves() {
    this.reading?.abort();
    if (!this.names.length) return;
    const reading = (this.reading = new AbortController());
    const { begin, end } = this.curves;
    this.readWidth = this.canvas.clientWidth || 700;
    const points = between(200, Math.round(this.readWidth), 2000);
    try {
      const parts = { name: this.names, begin, stop: end, points, ...originOf(this.info) };
      const answer = await getJson(`/api/curves/${this.path}`, parts, reading.signal);
      if (reading !== this.reading || this.isClosed) return;
      this.curves.setData(answer);
      const isExact = Object.values(answer.curves).every((curve) => curve.values);
      const zoom = isReport ? "" : " Zoom in for every row.";
      this.note.textContent = isExact ? "" : `Each column shows the least and the greatest value of several rows.${zoom}`;
      if (this.shownRow !== null) this.fillValues(this.shownRow);
      this.view.describeRow();
    } catch (error) {
      if (error.name !== "AbortError") this.view.fail(error);
    }
  }

  // The episode has grown.
  grow(info) {
    const before = this.last;
    this.info = info;
    for (const { image, player } of this.images) {
      image.tag = info.images.find((one) => one.field === image.field)?.tag ?? image.tag;
      player.setCount(info.rows);
    }
    this.drawHead();
    if (this.shownRow !== null) this.drawMark(this.shownRow);
    if (this.last === before) return;
    this.values.delete(before);
    this.curves.setStop(this.last + 1);
    this.readSoon();
  }

  close() {
    this.isClosed = true;
    this.reading?.abort();
    this.observer.disconnect();
    this.images.forEach(({ player }) => player.close());
    this.element.remove();
  }
}

export class EpisodeView {
  // stores: () => the stores; onStep(by): the next or previous episode; onState: what the address
  // holds has changed; onClip(panel): a clip is wanted.
  constructor({ stores, onClose, onStep, onState, onClip, onError, onLayout }) {
    Object.assign(this, { stores, onClose, onStep, onState, onClip, onLayout, fail: onError });
    this.section = byId("episode");
    this.main = this.pinned = null;
    this.row = 0;
    this.zoom = 0; // 0: as large as fits
    this.isStack = this.isPlaying = false;
    this.chosen = null; // names of curves; null: the first ones
    this.opening = 0;
    this.describeSoon = calmly(() => this.describeRow(), 100);
    this.build();
  }

  build() {
    const button = (id, text, onclick, more = {}) => h("button", { type: "button", class: "quiet", id, onclick, ...more }, text);
    this.title = h("h2", { id: "episode-title", tabindex: -1 });
    this.badgeBox = h("span", { id: "episode-badges" });
    this.factLine = h("p", { id: "episode-facts" });
    this.pinButton = button("pin-button", "Pin", () => this.togglePin(), { "aria-pressed": "false", title: "Keep this episode beside the next ones (p)" });
    this.wideButton = button("wide-button", "Hide table", () => this.toggleWide(), { "aria-pressed": "false", title: "Hide or show the table (f)" });
    const head = h("div", { class: "episode-head" }, this.title, this.badgeBox,
      h("div", { class: "tools" },
        button("previous-episode", "Previous", () => this.onStep(-1), { title: "Previous episode (k)" }),
        button("next-episode", "Next", () => this.onStep(1), { title: "Next episode (j)" }),
        this.pinButton, this.wideButton,
        button("clip-button", "Save clip", () => this.onClip(this.main), { "aria-haspopup": "dialog" }),
        button("close-episode", "Close", () => this.onClose(), { title: "Back to the table (Esc)" })),
      this.factLine);

    const zooms = [0, 1, 2, 3, 4, 6, 8].map((one) => h("option", { value: one }, one ? `${one}×` : "fit"));
    const zoom = h("select", { id: "frame-zoom", onchange: () => this.setZoom(Number(zoom.value)) }, zooms);
    this.zoomLabel = h("label", { class: "inline" }, "Frame size ", zoom);
    const stack = h("input", { type: "checkbox", id: "show-stack", onchange: () => this.setStack(stack.checked) });
    this.stackLabel = h("label", { class: "check" }, stack, " Frame stack");
    this.fps = h("input", { type: "number", id: "fps", min: 1, max: 120, value: DEFAULT_FPS, "aria-label": "Rows per second at speed 1" });
    this.picker = h("details", { id: "curve-picker", class: "menu" }, h("summary", {}, "Curves"), h("div", { class: "menu-box", role: "group", "aria-label": "Curves to show" }));
    this.picker.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.picker.open) return;
      this.picker.open = false;
      this.picker.firstChild.focus();
      event.stopPropagation();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!this.picker.contains(event.target)) this.picker.open = false;
    });
    const settings = h("details", { class: "settings-box" }, h("summary", {}, "Display"), h("div", { class: "settings" }, this.zoomLabel, this.stackLabel,
      h("label", { class: "inline" }, this.fps, " rows/s"), h("div", { class: "curve-tools" }, this.picker,
      h("span", { class: "buttons", role: "group", "aria-label": "Zoom of the curves" },
        button("zoom-out", "−", () => this.zoomCurves(2), { "aria-label": "Zoom out of the curves" }),
        button("zoom-in", "+", () => this.zoomCurves(0.5), { "aria-label": "Zoom into the curves" }),
        button("zoom-all", "All rows", () => this.zoomCurves(Infinity))))));
    // Folded on a phone, where the frame comes first.
    const narrow = matchMedia("(max-width: 759px)");
    const fold = () => (settings.open = !narrow.matches);
    narrow.addEventListener("change", fold);
    fold();

    this.panels = h("div", { id: "panels" });
    this.playButton = button("play", "Play", () => this.togglePlay(), { class: "main" });
    this.scrubber = h("input", { type: "range", id: "scrubber", min: 0, max: 0, step: 1, value: 0, "aria-label": "Row" });
    this.scrubber.addEventListener("input", () => this.goTo(Number(this.scrubber.value)));
    this.number = h("input", { type: "number", id: "row-number", "aria-label": "Go to row", min: 0, step: 1 });
    this.number.addEventListener("change", () => this.number.value !== "" && this.goTo(Number(this.number.value)));
    this.ofRows = h("span");
    const speeds = [0.25, 0.5, 1, 2, 4, 8].map((one) => h("option", { value: one, selected: one === 1 }, `${one}×`));
    this.speed = h("select", { id: "speed", "aria-label": "Speed" }, speeds);
    this.section.append(head, settings, this.panels,
      h("div", { class: "transport", role: "group", "aria-label": "Playback" }, this.playButton,
        button("back", "‹", () => this.goTo(this.row - 1), { "aria-label": "One row back" }),
        button("on", "›", () => this.goTo(this.row + 1), { "aria-label": "One row on" }),
        this.scrubber, h("span", { class: "rownumber" }, this.number, this.ofRows), this.speed));
  }

  get both() {
    return [this.pinned, this.main].filter(Boolean);
  }

  get first() {
    return Math.min(...this.both.map((panel) => panel.first));
  }

  get last() {
    return Math.max(...this.both.map((panel) => panel.last));
  }

  // ---- opening

  // True if it is shown now, false if another one was opened meanwhile.
  async open(episode, { row = null, focus = false } = {}) {
    const opening = ++this.opening;
    if (row === null && this.main && keyOf(this.main.info) === keyOf(episode)) { // it stays at its row
      if (focus) this.title.focus({ preventScroll: true });
      return true;
    }
    const info = await readInfo(episode);
    if (opening !== this.opening) return false;
    this.pause();
    this.section.hidden = false;
    this.main?.close();
    this.main = new Panel(this, info, this.stores()[episode.store], "");
    this.arrange();
    this.goTo(row ?? this.main.first, true);
    if (focus) this.title.focus({ preventScroll: true });
    say(`Episode ${info.id} of ${this.main.store.name}, ${this.main.facts().slice(0, 2).join(", ")}`);
    return true;
  }

  async openPinned(episode) {
    const info = await readInfo(episode);
    this.pinned?.close();
    this.pinned = new Panel(this, info, this.stores()[episode.store], "pinned-");
    this.arrange();
    this.goTo(this.row, true);
  }

  arrange() {
    const { main, both } = this;
    this.panels.replaceChildren(...both.map((panel) => panel.element));
    this.panels.classList.toggle("two", both.length > 1);
    this.title.replaceChildren(chip(main.info.store), `Episode ${main.info.id}`, h("span", { class: "of-store" }, ` ${main.store.name}`));
    this.pinButton.setAttribute("aria-pressed", Boolean(this.pinned));
    this.pinButton.textContent = this.pinned ? "Unpin" : "Pin";
    this.zoomLabel.hidden = !both.some((panel) => panel.images.length);
    this.stackLabel.hidden = !both.some((panel) => panel.hasStack);
    both.forEach((panel) => panel.setStack(this.isStack));
    this.drawFacts();
    this.drawPicker();
  }

  drawFacts() {
    this.badgeBox.replaceChildren(...this.main.badges());
    this.factLine.replaceChildren(...this.main.facts().map((fact) => h("span", {}, fact)));
    for (const input of [this.scrubber, this.number]) {
      input.min = this.first;
      input.max = this.last;
    }
    this.ofRows.textContent = ` of ${this.last}`;
  }

  close() {
    this.opening++;
    this.pause();
    this.both.forEach((panel) => panel.close());
    this.main = this.pinned = null;
    this.section.hidden = true;
  }

  async togglePin() {
    try {
      if (this.pinned) {
        this.pinned.close();
        this.pinned = null;
        this.arrange();
      } else await this.openPinned(this.main.info);
      say(this.pinned ? "Pinned. Open another episode to compare." : "Not pinned any more", 0);
      this.onState();
    } catch (error) {
      this.fail(error);
    }
  }

  toggleWide(isWide = !document.body.classList.contains("wide")) {
    document.body.classList.toggle("wide", isWide);
    this.wideButton.setAttribute("aria-pressed", isWide);
    this.onLayout();
  }

  // ---- rows

  goTo(row, isForced = false) {
    if (!this.main) return;
    row = this.main.nearest(between(this.first, Math.round(row), this.last), row > this.row);
    if (this.isPlaying && !this.isTicking) this.startClock(row);
    if (row === this.row && !isForced) return;
    this.row = row;
    for (const panel of this.both) panel.show(row);
    if (Number(this.scrubber.value) !== row) this.scrubber.value = row;
    if (document.activeElement !== this.number || !this.isPlaying) this.number.value = row;
    this.describeSoon();
    this.onState();
  }

  // Not while it plays: a screen reader would read every row.
  describeRow() {
    if (!this.main || this.isPlaying) return;
    const row = between(this.main.first, this.row, this.main.last);
    this.scrubber.setAttribute("aria-valuetext", this.main.describe(row));
    this.main.drawMark(row);
  }

  togglePlay() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  play() {
    if (!this.main) return;
    this.isPlaying = true;
    this.playButton.textContent = "Pause";
    if (this.row >= this.last) this.goTo(this.first);
    this.startClock(this.row);
    const tick = (now) => {
      if (!this.isPlaying) return;
      const rate = Number(this.speed.value) * between(1, Number(this.fps.value) || DEFAULT_FPS, 120);
      // A sprite that is not there yet holds the clock.
      if (rate !== this.clock.rate || this.both.some((panel) => panel.isLate)) this.startClock(this.row, rate);
      const target = Math.floor(this.clock.row + ((now - this.clock.time) / 1000) * rate);
      this.isTicking = true;
      if (target > this.row) this.goTo(target);
      this.isTicking = false;
      if (this.row >= this.last && !this.main.info.is_open) this.pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  startClock(row, rate = 0) {
    this.clock = { row, time: performance.now(), rate };
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    this.playButton.textContent = "Play";
    this.describeRow();
  }

  // ---- choices

  setZoom(zoom) {
    this.zoom = zoom;
    this.both.forEach((panel) => panel.fit());
  }

  setStack(isStack) {
    this.isStack = isStack;
    this.panels.classList.toggle("stacked", isStack);
    this.both.forEach((panel) => panel.setStack(isStack));
  }

  zoomCurves(factor) {
    this.main.curves.zoom(factor, this.row);
  }

  syncViews(from, begin, stop) {
    if (this.isSyncing) return;
    this.isSyncing = true;
    for (const panel of this.both) if (panel !== from) panel.curves.setView(begin, stop - begin);
    this.isSyncing = false;
  }

  setTheme() {
    for (const panel of this.both) panel.curves.setColours(theme());
  }

  // The curves to show: the chosen ones that this store has, or the first few.
  lanesOf(store) {
    const all = store.curves;
    const chosen = this.chosen?.filter((name) => all.includes(name));
    if (chosen && (chosen.length || !this.chosen.length)) return chosen;
    const usual = ["reward", "return so far", "action", "action[0]"];
    const rank = (name) => (usual.includes(name) ? usual.indexOf(name) : name.startsWith("extra/") ? 5 : name.startsWith("info/") ? 6 : name.startsWith("action") ? 8 : 7);
    return [...all].sort((a, b) => rank(a) - rank(b)).slice(0, MOST_LANES);
  }

  drawPicker() {
    const names = [...new Set(this.both.flatMap((panel) => panel.store.curves))];
    const shown = this.main.names;
    const [summary, box] = this.picker.children;
    summary.textContent = `Curves: ${shown.length} of ${names.length}`;
    const inputs = [...box.querySelectorAll("input")];
    if (inputs.map((input) => input.value).join("\n") === names.join("\n")) {
      for (const input of inputs) input.checked = shown.includes(input.value);
      return;
    }
    const choose = () => this.choose([...box.querySelectorAll("input:checked")].map((input) => input.value));
    box.replaceChildren(...names.map((name) => h("label", { class: "check" }, h("input", { type: "checkbox", value: name, checked: shown.includes(name), onchange: choose }), ` ${name}`)));
  }

  choose(names) {
    this.chosen = names;
    for (const panel of this.both) panel.setLanes(this.lanesOf(panel.store));
    this.drawPicker();
    this.onState();
  }

  // Stores have changed: an episode that is being written may have grown.
  async refresh() {
    for (const panel of this.both.filter((one) => one.info.is_open)) {
      const info = await readInfo(panel.info);
      if (panel.isClosed) continue;
      panel.grow(info);
      this.drawFacts();
    }
  }
}
