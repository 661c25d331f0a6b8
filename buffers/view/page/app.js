// Puts the page together: stores, filter, histograms, table, episode, and the state in the address.
import { follow, getJson, Gone, isReport, onTrouble } from "./api.js";
import { byId, calmly, counted, later, say, whole } from "./dom.js";
import { EpisodeView } from "./episode.js";
import { Exports } from "./exports.js";
import { drawStores, Filter } from "./filter.js";
import { drawActions, Histogram } from "./histograms.js";
import { keyOf, rowsOf, Table } from "./table.js";
import { Timeline } from "./timeline.js";

const THEMES = ["system", "light", "dark"];
const app = { stores: [], off: new Set(), version: -1, exportsFolder: null };
let hash = new URLSearchParams();
let isRestoring = false;

// ---- theme

const darkness = matchMedia("(prefers-color-scheme: dark)");

function remembered(name, otherwise) {
  try {
    return localStorage.getItem(`stepwell-${name}`) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`stepwell-${name}`, value);
  } catch {
    // Without a memory the choice lasts as long as the page.
  }
}

function setTheme(theme) {
  app.theme = THEMES.includes(theme) ? theme : "system";
  const isDark = app.theme === "dark" || (app.theme === "system" && darkness.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  byId("theme-button").textContent = `Theme: ${app.theme}`;
  view?.setTheme();
  timeline?.setTheme();
}

let view = null;
let timeline = null;
setTheme(remembered("theme", "system"));
darkness.addEventListener("change", () => setTheme(app.theme));
byId("theme-button").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(app.theme) + 1) % THEMES.length]);
  remember("theme", app.theme);
});

// ---- trouble

function showTrouble(sentence) {
  byId("trouble").textContent = sentence;
  byId("trouble").hidden = !sentence;
}

onTrouble(showTrouble, () => {
  showTrouble("");
  say("The server answers again", 0);
  readStores().then(() => Promise.all([table.refresh(), drawHistograms(), view.refresh()])).catch(showError);
});

function showError(error) {
  if (error.name !== "AbortError" && !(error instanceof Gone)) showTrouble(error.message);
}

// ---- filter, table, histograms

app.shownStores = () => app.stores.filter((store) => !store.error && !app.off.has(store.index));
const storeParts = () => (app.off.size ? { store: app.shownStores().map((store) => store.index) } : {});
app.filterValue = () => filter.value;
app.filterParts = () => ({ ...filter.value, ...storeParts() });

const filter = new Filter(() => {
  saveState();
  applyFilter();
});

const table = (app.table = new Table({
  read: async (parts, signal) => {
    if (!app.shownStores().length) {
      return { total: 0, matching: 0, start: 0, sentence: "", columns: table.columns, rows: [], command: "" };
    }
    return getJson("/api/episodes", { ...app.filterParts(), ...parts }, signal);
  },
  onOpen: (row, index) => openEpisode(row, index),
  onSort: () => {
    saveState();
    table.reload();
  },
  onAnswer: (answer) => {
    showTrouble("");
    filter.showAnswer(answer);
    const isAll = answer.matching === answer.total;
    byId("matching").textContent = isAll ? whole(answer.total) : `${whole(answer.matching)} of ${whole(answer.total)}${isReport ? " shown" : ""}`;
    byId("no-episodes").textContent = answer.total ? "No episode matches the filter." : app.shownStores().length ? "No episode is stored yet." : "No store is switched on.";
  },
  onError: (error) => {
    table.grid.removeAttribute("aria-busy");
    if (!(error instanceof Gone)) filter.showError(error.message);
  },
}));

function applyFilter() {
  table.reload().then((isRight) => {
    if (!isRight) return;
    say(`${counted(table.matching, "episode")} in the table`);
    drawHistograms();
  });
}

const histograms = {
  return: new Histogram(byId("histogram-return"), { name: "return", onRange: (low, high) => filter.setRange("return", low, high) }),
  steps: new Histogram(byId("histogram-steps"), { name: "steps", onRange: (low, high) => filter.setRange("steps", low, high) }),
};
timeline = isReport ? null : new Timeline((row) => openEpisode(row)); // a report has the returns in its summary
let drawing = null;

// A histogram shows the episodes that meet all conditions but the range that it chooses itself.
async function drawHistograms() {
  drawing?.abort();
  byId("timeline-box").hidden ||= !app.shownStores().length;
  if (!app.shownStores().length) return;
  const mine = (drawing = new AbortController());
  const parts = app.filterParts();
  const names = app.stores.map((store) => store.name);
  const without = (name) => ({ ...parts, [`min_${name}`]: "", [`max_${name}`]: "" });
  const hasRange = (name) => Boolean(parts[`min_${name}`] || parts[`max_${name}`]);
  const number = (text) => (text === undefined || text === "" || Number.isNaN(Number(text)) ? null : Number(text));
  try {
    const all = getJson("/api/histograms", parts, mine.signal);
    all.catch(() => {});
    for (const name of ["return", "steps"]) {
      const data = hasRange(name) ? await getJson("/api/histograms", without(name), mine.signal) : await all;
      histograms[name].setData(data[name], names);
      histograms[name].setRange(number(parts[`min_${name}`]), number(parts[`max_${name}`]));
    }
    const { action, actions } = await all;
    if (action) drawActions(byId("histogram-actions"), byId("actions-count"), action, app.stores, actions.length);
    byId("actions-box").hidden = !action || !action.names?.length;
    if (timeline) timeline.setData(await getJson("/api/timeline", parts, mine.signal));
  } catch {
    // The table shows what is wrong with the filter; the histograms stay as they are.
  }
}

// ---- stores

async function readStores() {
  const answer = await getJson("/api/stores");
  Object.assign(app, { stores: answer.stores, version: answer.version, exportsFolder: answer.exports });
  table.stores = app.stores;
  drawStoreList();
  const keys = [...new Set(app.stores.flatMap((store) => store.metadata_keys))];
  if (keys.join("\n") !== (filter.keys ?? []).join("\n")) filter.setKeys(keys);
  const episodes = app.stores.reduce((sum, store) => sum + store.episodes, 0);
  const steps = app.stores.reduce((sum, store) => sum + store.steps, 0);
  byId("totals").textContent = `${counted(app.stores.length, "store")} · ${counted(episodes, "episode")} · ${counted(steps, "step")}`;
  if (!isReport) document.title = `${app.stores.map((store) => store.name).join(", ").slice(0, 80)} · Stepwell`;
}

function drawStoreList() {
  drawStores(app.stores, app.off, (index, isOn) => {
    if (isOn) app.off.delete(index);
    else app.off.add(index);
    drawStoreList();
    saveState();
    applyFilter();
  });
}

const grow = calmly(async () => {
  try {
    await readStores();
    await Promise.all([table.refresh(), view.refresh()]);
    histogramsSoon();
  } catch (error) {
    showError(error);
  }
}, 1000);
const histogramsSoon = calmly(() => drawHistograms(), 3000);

// ---- episode

view = new EpisodeView({
  stores: () => app.stores,
  onClose: () => closeEpisode(),
  onStep: (by) => table.step(by),
  onState: () => saveRow(),
  onClip: (panel) => exportsOf.openClip(panel),
  onError: showError,
  onLayout: () => table.render(),
});

async function openEpisode(row, index = -1, { at = null, focus = false, remember: isNew = true } = {}) {
  table.setOpen(keyOf(row), index);
  document.body.dataset.view = "episode";
  try {
    if (await view.open(row, { row: at, focus: focus || innerWidth < 1200 })) {
      showTrouble("");
      saveState(isNew);
    }
  } catch (error) {
    showError(error);
    if (!view.main) closeEpisode();
  }
}

function closeEpisode() {
  view.close();
  view.toggleWide(false);
  document.body.dataset.view = "table";
  table.setOpen(null);
  table.grid.focus({ preventScroll: true });
  saveState();
}

// The best episode of those that match; where none came to its end, of the others too.
async function openBest(turn) {
  const best = { sort: "return", order: "desc", start: 0, count: 1 };
  const parts = app.filterParts();
  const choices = parts.top || parts.bottom ? [{}] : [{ top: "1" }, { top: "1", include_cut: "true" }, {}];
  for (const choice of app.shownStores().length ? choices : []) {
    const [row] = rowsOf(await getJson("/api/episodes", { ...parts, rank: "", ...choice, ...best }));
    if (turn !== restores || view.main || table.open) return; // the user was faster
    if (!row) continue;
    await openEpisode(row, -1, { remember: false });
    table.reveal(Math.max(0, table.openIndex));
    return;
  }
}

// ---- state in the address

function stateOf() {
  const state = new URLSearchParams();
  for (const [name, value] of Object.entries(filter.value)) for (const one of [value].flat()) state.append(name, one);
  if (app.off.size) state.set("off", [...app.off].join(","));
  if (table.sort !== "id" || table.order !== "asc") {
    state.set("sort", table.sort);
    state.set("order", table.order);
  }
  if (view.main) {
    state.set("episode", keyOf(view.main.info));
    state.set("row", view.row);
  } else state.set("episode", ""); // closed: not the best one again
  if (table.hasProvenance) state.set("provenance", "on");
  if (view.pinned) state.set("pin", keyOf(view.pinned.info));
  if (view.chosen) state.set("curves", view.chosen.join("|"));
  return state;
}

function saveState(isNew = false) {
  if (isRestoring) return;
  const state = stateOf();
  const before = hash.get("episode");
  hash = state;
  const text = `#${state}`;
  if (text === location.hash) return;
  if (isNew && before !== state.get("episode")) history.pushState(null, "", text);
  else history.replaceState(null, "", text);
}

const saveRow = later(() => saveState(), 400);

const episodeOf = (text) => {
  const found = /^(\d+)\/(\d+)\/(\d+)$/.exec(text ?? "");
  return found && { store: Number(found[1]), id: Number(found[2]), first_row: Number(found[3]) };
};

let restores = 0;

async function restore() {
  const turn = ++restores;
  isRestoring = true;
  hash = new URLSearchParams(location.hash.slice(1));
  const value = {};
  for (const name of ["min_return", "max_return", "min_steps", "max_steps", "ended", "ids", "top", "bottom", "rank", "include_cut"]) {
    if (hash.get(name)) value[name] = hash.get(name);
  }
  value.where = hash.getAll("where").slice(0, 16);
  filter.value = value;
  app.off = new Set((hash.get("off") ?? "").split(",").filter(Boolean).map(Number));
  drawStoreList();
  table.setSort(hash.get("sort") ?? "id", hash.get("order") === "desc" ? "desc" : "asc");
  table.setProvenance(hash.has("provenance"));
  view.chosen = hash.has("curves") ? hash.get("curves").split("|").filter(Boolean) : null;
  const tableRead = table.reload();
  drawHistograms();
  const episode = episodeOf(hash.get("episode"));
  const pinned = episodeOf(hash.get("pin"));
  if (episode && app.stores[episode.store]) {
    const at = hash.has("row") ? Number(hash.get("row")) || 0 : null;
    await openEpisode(episode, -1, { at, remember: false });
    const isPinned = view.pinned && keyOf(view.pinned.info) === hash.get("pin");
    if (pinned && app.stores[pinned.store] && !isPinned) await view.openPinned(pinned).catch(showError);
    else if (!pinned && view.pinned) await view.togglePin();
  } else if (view.main || table.open) { // or it is about to be open
    view.close();
    document.body.dataset.view = "table";
    table.setOpen(null);
  }
  await tableRead;
  if (table.open) table.setOpen(table.open);
  isRestoring = false;
  // Beside the table, where both have room; a report begins with its summary.
  if (!isReport && innerWidth >= 1200 && !hash.has("episode")) await openBest(turn);
}

byId("provenance").addEventListener("change", (event) => {
  table.setProvenance(event.target.checked);
  saveState();
});
addEventListener("popstate", () => restore());
addEventListener("hashchange", () => {
  if (location.hash.slice(1) !== hash.toString()) restore();
});

// ---- keys

const letterKeys = byId("letter-keys");
letterKeys.checked = remembered("letters", "on") === "on";
letterKeys.addEventListener("change", () => remember("letters", letterKeys.checked ? "on" : "off"));

const keys = {
  ArrowLeft: (event) => view.goTo(view.row - (event.shiftKey ? 10 : 1)),
  ArrowRight: (event) => view.goTo(view.row + (event.shiftKey ? 10 : 1)),
  Home: () => view.goTo(view.first),
  End: () => view.goTo(view.last),
  Escape: () => closeEpisode(),
};
const letters = {
  " ": () => view.togglePlay(),
  j: () => table.step(1),
  k: () => table.step(-1),
  p: () => view.togglePin(),
  f: () => view.toggleWide(),
  "+": () => view.zoomCurves(0.5),
  "=": () => view.zoomCurves(0.5),
  "-": () => view.zoomCurves(2),
  0: () => view.zoomCurves(Infinity),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const element = event.target;
  const isScrubber = element.id === "scrubber";
  const isText = element.matches("input:not([type=checkbox]), select, textarea") && !isScrubber;
  if (isText) return;
  if (event.key === "?" && letterKeys.checked) {
    byId("help").showModal();
    event.preventDefault();
    return;
  }
  if (!view.main) return;
  if (event.key === " " && element.matches("button, summary, input[type=checkbox], a")) return;
  const act = keys[event.key] ?? (letterKeys.checked || event.key === " " ? letters[event.key] : undefined);
  if (!act) return;
  act(event);
  event.preventDefault();
});

byId("help-button").addEventListener("click", () => byId("help").showModal());
const exportsOf = new Exports(app);
byId("export-button").addEventListener("click", () => exportsOf.open());
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("episodes").focus();
});
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

// ---- begin

async function begin() {
  if (innerWidth < 760) {
    byId("filter-box").open = false;
    byId("actions-box").open = false;
  }
  try {
    await readStores();
    await restore();
  } catch (error) {
    isRestoring = false;
    showError(error);
  }
  follow((version) => version !== app.version && grow());
}

begin();
