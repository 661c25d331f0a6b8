// Histograms of several stores, overlaid; a range of bars filters the table.
import { chip, counted, h, plain, svg, whole } from "./dom.js";
import { shortNumber } from "./curves.js";

const WIDTH = 256;
const HEIGHT = 54;

// One histogram: a line per store over the shared edges. Drag, click or keys choose a range.
export class Histogram {
  constructor(holder, { name, onRange }) {
    Object.assign(this, { name, onRange });
    this.first = this.last = -1; // bars chosen by keys
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.low = h("span");
    this.most = h("span", { class: "most" });
    this.high = h("span");
    this.box = h("div", {
      class: "plot", role: "slider", tabindex: 0, id: `bars-${name}`, "aria-label": `Histogram of ${name}: choose a range`,
      "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "no episodes",
    }, this.picture);
    holder.append(this.box, h("div", { class: "scale", "aria-hidden": "true" }, this.low, this.most, this.high));
    this.range = [null, null];
    this.setData({ edges: [0, 1], counts: [] }, []);
    this.listen();
  }

  get bars() {
    return Math.max(0, this.data.edges.length - 1);
  }

  setData(data, names) {
    // Of several stores the share of each store's episodes is drawn: a small one can be seen, too.
    this.totals = data.counts.map((bars) => bars.reduce((sum, count) => sum + count, 0));
    this.total = this.totals.reduce((sum, count) => sum + count, 0);
    this.isShare = this.totals.filter(Boolean).length > 1;
    this.shares = data.counts.map((bars, store) => bars.map((count) => (this.isShare ? count / this.totals[store] : count)));
    // Edges of whole numbers lie between them.
    this.half = data.edges.every((edge) => Math.abs(edge % 1) === 0.5) ? 0.5 : 0;
    this.data = data;
    this.names = names;
    this.first = Math.min(this.first, this.bars - 1);
    this.last = Math.min(this.last, this.bars - 1);
    this.draw();
  }

  // Bars that are being chosen; with -1 none is.
  choose(first, last = first) {
    Object.assign(this, { first, last });
    this.draw();
  }

  get chosen() {
    return this.first < 0 ? null : [Math.min(this.first, this.last), Math.max(this.first, this.last)];
  }

  // The range that the filter holds; numbers or null.
  setRange(low, high) {
    this.range = [low, high];
    this.draw();
  }

  draw() {
    const { edges } = this.data;
    const { total, shares, half } = this;
    const most = Math.max(1e-9, ...shares.flat());
    const parts = [];
    const [first, last] = this.chosen ?? [];
    const [low, high] = this.chosen ? [edges[first] + half, edges[last + 1] - half] : this.range;
    const span = edges[edges.length - 1] - edges[0] || 1;
    const place = (value) => Math.max(0, Math.min(WIDTH, ((value - edges[0]) / span) * WIDTH));
    if (low !== null || high !== null) {
      const [a, b] = [place((low ?? edges[0]) - half), place((high ?? edges[edges.length - 1]) + half)];
      parts.push(svg("rect", { class: "chosen", x: a, y: 0, width: Math.max(2, b - a), height: HEIGHT }));
    }
    shares.forEach((bars, store) => {
      if (!bars.some(Boolean)) return;
      let path = `M0 ${HEIGHT}`;
      bars.forEach((count, index) => {
        const y = HEIGHT - (count ? Math.max(2, (count / most) * (HEIGHT - 3)) : 0);
        path += `L${place(edges[index])} ${y}L${place(edges[index + 1])} ${y}`;
      });
      path += `L${WIDTH} ${HEIGHT}`;
      parts.push(svg("path", { class: `bars store-${store % 8}`, d: path, "vector-effect": "non-scaling-stroke" }));
    });
    this.picture.replaceChildren(...parts);
    this.low.textContent = total ? shortNumber(edges[0] + half) : "";
    this.high.textContent = total ? shortNumber(edges[edges.length - 1] - half) : "";
    const top = this.isShare ? `${Math.round(most * 100)}% of a store` : counted(most, "episode");
    this.most.textContent = total ? `highest bar: ${top}` : "no episodes";
    this.box.setAttribute("aria-valuemax", Math.max(0, this.bars - 1));
    this.box.setAttribute("aria-valuenow", Math.max(0, this.last));
    this.box.setAttribute("aria-valuetext", this.describe());
  }

  describe(chosen = this.chosen) {
    const { edges, counts } = this.data;
    const { total, half } = this;
    if (!total) return "no episodes";
    const [a, b] = chosen ?? [0, this.bars - 1];
    const ends = [shortNumber(edges[a] + half), shortNumber(edges[b + 1] - half)];
    if (!chosen) return `${counted(total, "episode")} from ${ends.join(" to ")}`;
    const inside = counts.map((bars) => bars.slice(a, b + 1).reduce((sum, count) => sum + count, 0));
    const parts = inside.map((count, store) => [count, this.names[store]]).filter(([count]) => count);
    const several = counts.filter((bars) => bars.some(Boolean)).length > 1;
    const text = several ? parts.map(([count, name]) => `${whole(count)} of ${plain(name, 40)}`).join(", ") : whole(parts[0]?.[0] ?? 0);
    return `${ends.join(" to ")}: ${text || 0} episodes`;
  }

  barAt(event) {
    const place = this.box.getBoundingClientRect();
    const bar = Math.floor(((event.clientX - place.left) / place.width) * this.bars);
    return Math.max(0, Math.min(this.bars - 1, bar));
  }

  // Filters by the chosen bars. A bar holds its lower edge, and only the last one its upper edge.
  apply() {
    if (!this.chosen || !this.bars) return;
    const [a, b] = this.chosen;
    this.first = this.last = -1;
    const { edges } = this.data;
    let [low, high] = [edges[a], edges[b + 1]];
    if (this.half) [low, high] = [low + 0.5, high - 0.5];
    else {
      // Rounded, outwards, to a hundredth of a bar: numbers that one can read.
      const unit = 10 ** Math.floor(Math.log10((edges[1] - edges[0]) / 100 || 1));
      const digits = Math.min(12, Math.max(0, -Math.log10(unit)));
      low = (Math.floor(low / unit + 1e-6) * unit).toFixed(digits);
      high = (Math.ceil(high / unit - 1e-6) * unit).toFixed(digits);
    }
    const tidy = (value) => String(Number(value));
    this.onRange(a === 0 ? null : tidy(low), b === this.bars - 1 ? null : tidy(high));
  }

  listen() {
    const box = this.box;
    box.addEventListener("pointerdown", (event) => {
      if (event.button > 0 || !this.bars) return;
      box.setPointerCapture(event.pointerId);
      this.choose(this.barAt(event));
    });
    box.addEventListener("pointermove", (event) => {
      const bar = this.barAt(event);
      if (box.hasPointerCapture(event.pointerId)) this.choose(this.first, bar);
      else box.title = this.bars ? this.describe([bar, bar]) : "";
    });
    box.addEventListener("pointerup", () => this.apply());
    box.addEventListener("pointercancel", () => this.choose(-1));
    box.addEventListener("dblclick", () => this.onRange(null, null));
    box.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -Infinity, End: Infinity }[event.key];
      if (move !== undefined && this.bars) {
        const from = this.first < 0 ? (move > 0 ? -1 : this.bars) : this.last;
        const bar = Math.max(0, Math.min(this.bars - 1, from + move));
        this.choose(event.shiftKey && this.first >= 0 ? this.first : bar, bar);
      } else if (event.key === "Enter") this.apply();
      else if (event.key === "Delete" || event.key === "Backspace") this.onRange(null, null);
      else if (event.key === "Escape" && this.chosen) this.choose(-1);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    box.addEventListener("blur", () => this.chosen && this.choose(-1));
  }
}

// The share of each action, a bar for each store; of a vector's components the first.
export function drawActions(holder, note, data, stores, components) {
  const totals = data.counts.map((counts) => counts.reduce((sum, count) => sum + count, 0));
  const shares = data.counts.map((counts, store) => counts.map((count) => (totals[store] ? count / totals[store] : 0)));
  const most = Math.max(1e-9, ...shares.flat());
  const shown = shares.map((_, store) => store).filter((store) => totals[store]);
  const rows = data.rows_read < data.of ? `${whole(data.rows_read)} of ${whole(data.of)} rows` : counted(data.of, "row");
  note.textContent = components > 1 ? `${plain(data.name, 40)}, the first of ${components}; ${rows}` : rows;
  if (!shown.length) {
    holder.replaceChildren(h("p", { class: "note" }, "No actions to count."));
    return;
  }
  const head = h("tr", { class: "unseen" }, h("th", { scope: "col" }, "Action"), shown.map((store) => h("th", { scope: "col" }, plain(stores[store]?.name))));
  const lines = data.names.map((name, action) => {
    const cells = shown.map((store) => {
      const share = shares[store][action];
      const bar = h("span", { class: `share store-${store % 8}` });
      bar.style.width = `${(share / most) * 100}%`;
      const text = `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)}%`;
      return h("td", { title: `${whole(data.counts[store][action])} rows` },
        shown.length > 1 ? chip(store) : null, h("span", { class: "track", "aria-hidden": "true" }, bar), h("span", { class: "percent" }, text));
    });
    return h("tr", {}, h("th", { scope: "row" }, plain(name, 40)), cells);
  });
  holder.replaceChildren(h("table", { class: "actions" }, h("caption", { class: "unseen" }, "Share of each action"), h("thead", {}, head), h("tbody", {}, lines)));
}
