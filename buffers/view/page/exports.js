// What leaves the page: a filtered store, ids, the table, a clip.
import { getBlob, getJson, getText, postJson } from "./api.js";
import { byId, copyText, counted, h, plain, saveFile, say, whole } from "./dom.js";

const CSV_ROWS = 100_000;
const WAITS = ["waiting", "running"];

// app: {stores, filterParts(), filterValue(), shownStores(), table}
export class Exports {
  constructor(app) {
    this.app = app;
    this.dialog = byId("export");
    this.clip = byId("clip");
    this.timer = 0;
  }

  open() {
    const { app } = this;
    const shown = app.shownStores();
    const folder = app.exportsFolder;
    const error = h("p", { class: "error", id: "export-error", role: "alert" });
    const name = h("input", { id: "export-name", required: true, maxlength: 64, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}", value: "selection", "aria-describedby": "export-error" });
    const store = h("select", { id: "export-store" }, shown.map((one) => h("option", { value: one.index }, one.name)));
    const start = h("button", { id: "export-start" }, "Write store");
    const form = h("form", { class: "grid-form" },
      h("label", { for: "export-store" }, "Store"), store,
      h("label", { for: "export-name" }, "Name"), name,
      h("span", {}), start);
    onSubmit(form, start, error, async () => {
      await postJson("/api/exports", { name: name.value.trim(), filter: app.filterValue(), store: Number(store.value) });
      say("The store is being written", 0);
      await this.follow();
    });
    this.results = h("ul", { id: "export-results", class: "results" });
    const ids = h("textarea", { id: "ids-text", readonly: true, rows: 3, "aria-label": "Ids of the matching episodes" });
    const idButtons = h("p", { class: "buttons" },
      h("button", { type: "button", id: "copy-ids", class: "quiet", onclick: (event) => copyText(ids.value, event.target) }, "Copy ids"),
      h("button", { type: "button", id: "save-ids", class: "quiet", onclick: () => saveFile(new Blob([ids.value], { type: "text/plain" }), "ids.txt") }, "Save ids"),
      h("button", { type: "button", id: "save-csv", class: "quiet", onclick: ({ target }) => working(target, error, () => this.saveTable(target)) }, "Save table as CSV"));
    this.dialog.replaceChildren(
      h("h2", { id: "export-title" }, "Export"),
      h("p", {}, `${counted(app.table.matching, "matching episode")}. The stores on this page are never changed.`),
      h("h3", {}, "A new store with these episodes"),
      folder && shown.length ? h("p", { class: "note" }, "It is written to ", h("code", {}, folder), ".") : h("p", { class: "note" }, "This server writes no stores: start it with --exports DIR."),
      folder && shown.length ? form : "", error, this.results,
      h("h3", {}, "Ids and table"), ids, idButtons,
      h("form", { method: "dialog" }, h("button", { id: "close-export" }, "Close")));
    this.dialog.showModal();
    getText("/api/ids", app.filterParts()).catch((problem) => problem.message).then((text) => (ids.value = text));
    if (folder) this.follow().catch(() => {});
  }

  // Shows how far exports are, until all are done.
  async follow() {
    clearTimeout(this.timer);
    const answer = await getJson("/api/exports");
    const all = answer.exports;
    const before = new Map([...this.results.children].map((item) => [item.dataset.name, item.dataset.state]));
    this.results.replaceChildren(...all.map((one) => {
      const { state } = one;
      if (WAITS.includes(before.get(one.name)) && !WAITS.includes(state)) say(`Export ${one.name}: ${state}`, 0);
      const text = plain(one.error || one.path, 600);
      const part = one.chosen_episodes ? one.episodes / one.chosen_episodes : 0;
      const bar = WAITS.includes(state) ? h("progress", { max: 1, value: part, "aria-label": `Export of ${one.name}` }) : null;
      return h("li", { "data-name": one.name, "data-state": state, class: one.error ? "error" : "" }, h("b", {}, one.name), ` ${state} `, bar, h("code", {}, text));
    }));
    if (this.dialog.open && all.some((one) => WAITS.includes(one.state))) {
      this.timer = setTimeout(() => this.follow().catch(() => {}), 400);
    }
  }

  async saveTable(button) {
    const { table } = this.app;
    const lines = [];
    for (let start = 0; start < Math.min(table.matching, CSV_ROWS); ) {
      const answer = await table.read({ sort: table.sort, order: table.order, start, count: 1000 });
      if (!lines.length) lines.push(answer.columns.map(csvCell).join(","));
      if (!answer.rows.length) break;
      for (const row of answer.rows) {
        lines.push(row.map((value, place) => csvCell(answer.columns[place] === "store" ? this.app.stores[value]?.name ?? value : value)).join(","));
      }
      start += answer.rows.length;
      button.textContent = `${whole(lines.length - 1)} rows…`;
    }
    saveFile(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }), "episodes.csv");
  }

  openClip(panel) {
    const { info, store, curves } = panel;
    const error = h("p", { class: "error", id: "clip-error", role: "alert" });
    const kind = h("select", { id: "clip-kind" }, [["mp4", "MP4 video"], ["gif", "GIF, colours rounded"], ["webp", "WebP, every pixel exact"], ["png", "PNG, a film strip"]].map(([value, text]) => h("option", { value }, text)));
    const field = h("select", { id: "clip-field" }, info.images.map((image) => h("option", { value: image.field }, image.name)));
    const number = (id, value, more) => h("input", { id, type: "number", value, step: 1, required: true, ...more });
    const limits = { min: panel.first, max: panel.last };
    const begin = number("clip-begin", curves.begin, limits);
    const end = number("clip-end", curves.end - 1, limits);
    const fps = number("clip-fps", 15, { min: 1, max: 120 });
    const scale = number("clip-scale", Math.max(1, Math.min(8, Math.floor(336 / (info.images[0]?.height ?? 336)))), { min: 1, max: 16 });
    const save = h("button", { id: "clip-save" }, "Save clip");
    const line = (text, input) => [h("label", { for: input.id }, text), input];
    const form = h("form", { class: "grid-form" },
      line("Format", kind), info.images.length > 1 ? line("Field", field) : "",
      line("First row", begin), line("Last row", end), line("Rows a second", fps), line("Enlarge", scale),
      h("span", {}), save);
    onSubmit(form, save, error, async () => {
      save.textContent = "Being made…";
      const parts = { field: field.value, begin: begin.value, stop: Number(end.value) + 1, fps: fps.value, scale: scale.value };
      if (info.first_row) parts.first_row = info.first_row;
      const blob = await getBlob(`/clip/${info.store}/${info.id}.${kind.value}`, parts);
      saveFile(blob, `${store.name}-episode-${info.id}.${kind.value}`.replace(/[^\w.-]+/g, "_"));
      say("The clip is saved", 0);
    });
    this.clip.replaceChildren(
      h("h2", { id: "clip-title" }, `Clip of episode ${info.id}`),
      info.images.length ? form : h("p", {}, "This episode has no images."),
      error,
      h("form", { method: "dialog" }, h("button", { id: "close-clip" }, "Close")));
    this.clip.showModal();
  }
}

// Does some work, while its button waits; an error is shown.
async function working(button, error, work) {
  const before = button.textContent;
  error.textContent = "";
  button.disabled = true;
  await work().catch((problem) => (error.textContent = problem.message));
  button.textContent = before;
  button.disabled = false;
}

function onSubmit(form, button, error, work) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    working(button, error, work);
  });
}

// Spreadsheets read a text that begins with = + - @ as a formula: an apostrophe keeps it a text.
function csvCell(value) {
  let text = plain(value, Infinity);
  if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

