// Stands for api.js in a report, which asks no server: its answers are in the page.

const data = JSON.parse(document.getElementById("data").textContent);

export const isReport = true;

export class Refused extends Error {}

export class Gone extends Refused {}

export const onTrouble = () => {};

export const follow = () => {};

export async function getJson(path, parts = {}) {
  const [, , name, store, id] = path.split("/");
  if (name === "stores") return { stores: data.stores, version: 0, exports: null };
  if (name === "histograms") return data.histograms;
  if (name === "curves") return curvesOf(find(store, id, parts));
  return id === undefined ? tableOf(parts) : find(store, id, parts).info;
}

// The block of frames of /frames/STORE/ID/FIELD/BLOCK.webp.
export async function getBlob(path, parts = {}) {
  const [, , store, id, field, block] = path.split("/");
  const bytes = atob(find(store, id, parts).sheets[field][parseInt(block, 10)]);
  return new Blob([Uint8Array.from(bytes, (one) => one.charCodeAt(0))], { type: "image/webp" });
}

// What the curves have of a row; nothing where points stand for several rows.
export async function readValues(path, row, parts = {}) {
  const { rows, curves } = curvesOf(find(...path.split("/"), parts));
  const place = rows.indexOf(row);
  const exact = Object.entries(curves).filter(([, curve]) => curve.values && place >= 0);
  return Object.fromEntries(exact.map(([name, curve]) => [name, curve.values[place] ?? (curve.not_finite ? "not finite" : null)]));
}

function find(store, id, { first_row = 0 }) {
  return data.episodes[`${store}/${id}/${first_row}`];
}

// Without rows the values are those of all rows.
function curvesOf({ info, curves }) {
  curves.rows ??= Array.from({ length: info.rows }, (_, place) => info.first_row + place);
  return curves;
}

function tableOf(parts) {
  const valueOf = (row, name) => row[data.columns.indexOf(name)];
  const bound = (name, otherwise) => {
    const number = Number(parts[name] || otherwise);
    if (Number.isNaN(number)) throw new Refused(`${name}: expected a number such as 1.5, got ${parts[name]}`);
    return number;
  };
  const least = { return: bound("min_return", -Infinity), steps: bound("min_steps", -Infinity) };
  const most = { return: bound("max_return", Infinity), steps: bound("max_steps", Infinity) };
  const hasBound = (name) => parts[`min_${name}`] || parts[`max_${name}`];
  const isInside = (row, name) => !hasBound(name) || (valueOf(row, name) >= least[name] && valueOf(row, name) <= most[name]);
  const isEnd = (row) => !parts.ended || (valueOf(row, "end") !== "cut") === (parts.ended === "true");
  const isShown = (row) => (parts.store ?? [valueOf(row, "store")]).includes(valueOf(row, "store"));
  const rows = data.rows.filter((row) => isShown(row) && isEnd(row) && isInside(row, "return") && isInside(row, "steps"));
  // Numbers, then texts, then what is missing, as the server sorts.
  const rank = (value) => ["number", "string"].indexOf(typeof value) & 3;
  const sign = parts.order === "desc" ? -1 : 1;
  rows.sort((one, other) => {
    const [a, b] = [valueOf(one, parts.sort), valueOf(other, parts.sort)];
    return rank(a) - rank(b) || sign * (a < b ? -1 : a > b ? 1 : 0);
  });
  return {
    total: data.total, matching: rows.length, start: parts.start, sentence: "", command: "",
    columns: data.columns, rows: rows.slice(parts.start, parts.start + parts.count),
  };
}
