// Draws curves of an episode's rows on a canvas: one lane each, under one cursor.

export const CURVE_COLOURS = {
  light: {
    ink: "#1c1e21", faint: "#5d636b", grid: "#e3e3df", zero: "#c4c4be", lane: "#ffffff",
    cursor: "#b3261e", hover: "#8a8f96", lost: "#b3261e",
    lines: ["#0b5cad", "#b04a00", "#00735a", "#9b3f7c", "#7a5c00", "#4a55b8"],
  },
  dark: {
    ink: "#e8eaed", faint: "#9aa1aa", grid: "#2a2f35", zero: "#474e57", lane: "#16191c",
    cursor: "#ff8a7a", hover: "#7b838c", lost: "#ff8a7a",
    lines: ["#6db1ff", "#ffa35c", "#4fd0ac", "#e79ac8", "#e0c050", "#a6afff"],
  },
};

// A number in at most about six characters more than its sign.
export function shortNumber(value) {
  if (typeof value !== "number") return String(value ?? "–");
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "+∞" : "−∞";
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e6) text = String(value);
  else if (size >= 1e6 || (size > 0 && size < 1e-3)) text = value.toExponential(2);
  else text = String(Number(value.toPrecision(5)));
  return text.replace("-", "−").replace("e−", "e-");
}

export class Curves {
  // first, stop: the episode has the rows first .. stop - 1.
  // lanes: [{name, kind: "line" | "stems" | "steps" | "points", format: (value) => text, names: [text],
  //   series: [{name, colour, label}]}]; without series it has the curve of its own name
  constructor(canvas, { first = 0, stop = 1, lanes = [], colours = "light", laneHeight = 64 } = {}) {
    Object.assign(this, { canvas, first, stop, lanes, laneHeight });
    this.colours = CURVE_COLOURS[colours];
    this.begin = first;
    this.end = stop;
    this.data = { rows: [], curves: {} };
    this.cursor = first;
    this.hover = null;
    this.exactAt = (name, row) => undefined; // a value that is known where points stand for several rows
    this.onPick = (row) => {}; // a row was chosen by click or drag
    this.onView = (begin, end) => {}; // the shown rows have changed: read exact data for them
    this.left = 8;
    this.right = 8;
    this.scheduled = 0;
    this.lines = document.createElement("canvas"); // rows and lanes without the cursor, as drawn last
    this.isStale = true; // they have to be drawn anew
    this.listen();
  }

  setColours(name) {
    this.colours = CURVE_COLOURS[name];
    this.redraw();
  }

  setLanes(lanes) {
    this.lanes = lanes;
    this.layout();
  }

  // The episode has grown.
  setStop(stop) {
    const atEnd = this.end === this.stop;
    this.stop = stop;
    if (atEnd) this.end = stop;
    this.redraw();
  }

  // rows: [first row of each point]; curves: {name: {values} or {low, high}}, null where there is no
  // value, with low and high perhaps a mean of each point; not_finite: {"nan": count} counts those that are NaN or infinite.
  // stop: the row after the last point, where points stand for several rows.
  setData({ rows, curves, stop = null }) {
    this.data = { rows, curves };
    const last = rows.length - 1;
    this.dataStop = stop ?? (last < 1 ? this.stop : 2 * rows[last] - rows[last - 1]);
    this.ranges = new Map();
    for (const [name, curve] of Object.entries(curves)) this.ranges.set(name, this.range(curve));
    this.redraw();
  }

  setCursor(row) {
    this.cursor = row;
    const wide = this.end - this.begin;
    if (row < this.begin || row >= this.end) this.setView(row - Math.floor(wide / 2), wide);
    this.redrawCursor();
  }

  // Shows the rows begin .. begin + wide - 1, moved and cut so that the episode has them.
  setView(begin, wide) {
    const all = this.stop - this.first;
    wide = Math.round(Math.max(Math.min(8, all), Math.min(all, wide)));
    begin = wide === all ? this.first : Math.max(this.first, Math.min(this.stop - wide, Math.round(begin)));
    if (begin === this.begin && begin + wide === this.end) return;
    this.begin = begin;
    this.end = begin + wide;
    this.onView(this.begin, this.end);
    this.redraw();
  }

  // factor < 1 shows fewer rows; the row `around` stays in its place.
  zoom(factor, around = this.cursor) {
    const wide = (this.end - this.begin) * factor;
    const part = (around - this.begin) / Math.max(1, this.end - this.begin);
    this.setView(around - part * wide, wide);
  }

  // The exact value at a row, or undefined if points stand for several rows here.
  valueAt(name, row) {
    const curve = this.data.curves[name];
    if (!curve?.values) return undefined;
    const index = this.indexOf(row);
    return this.data.rows[index] === row ? curve.values[index] : undefined;
  }

  indexOf(row) {
    const rows = this.data.rows;
    let low = 0;
    let high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle] <= row) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  // null: no value, or none that is finite.
  number(value) {
    return value === null || value === undefined ? NaN : Number(value);
  }

  range(curve) {
    let low = Infinity;
    let high = -Infinity;
    for (const values of curve.values ? [curve.values] : [curve.low, curve.high]) {
      for (const one of values) {
        const value = this.number(one);
        if (!Number.isFinite(value)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    return [low, high];
  }

  seriesOf(lane, place) {
    const series = lane.series ?? [{ name: lane.name, colour: this.colours.lines[place % this.colours.lines.length] }];
    return series.filter(({ name }) => this.data.curves[name]);
  }

  rangeOf(series) {
    const ends = series.flatMap(({ name }) => this.ranges.get(name)).filter(Number.isFinite);
    return ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1];
  }

  // The vertical place of a value in a lane.
  scaleOf(lane, place) {
    let [least, most] = this.rangeOf(this.seriesOf(lane, place));
    if (lane.kind === "stems") [least, most] = [Math.min(0, least), Math.max(0, most)];
    if (least === most) [least, most] = lane.kind === "stems" ? [-1, 1] : [least - 0.5, most + 0.5];
    const [top, high] = [place * this.laneHeight + 20, this.laneHeight - 26];
    return { least, most, top, high, y: (value) => top + high - ((value - least) / (most - least)) * high };
  }

  // The end of a point, "low" or "high", that is drawn nearest to a place of the canvas.
  nearest(x, y) {
    const place = Math.floor(y / this.laneHeight);
    if (!this.lanes[place]) return null;
    const index = this.indexOf(this.rowAt(x));
    const scale = this.scaleOf(this.lanes[place], place);
    const found = this.seriesOf(this.lanes[place], place).flatMap(({ name }) =>
      ["low", "high"].map((end) => ({ name, index, end, away: Math.abs(scale.y(this.number(this.data.curves[name][end][index])) - y) })));
    return found.filter(({ away }) => away >= 0).sort((a, b) => a.away - b.away)[0] ?? null;
  }

  // ---- geometry

  layout() {
    const width = this.canvas.clientWidth || this.canvas.parentElement?.clientWidth || 300;
    const height = this.lanes.length * this.laneHeight + 22;
    const ratio = globalThis.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    Object.assign(this, { width, height, ratio });
    this.isStale = true;
    this.draw();
  }

  x(row) {
    const span = this.width - this.left - this.right;
    return this.left + ((row + 0.5 - this.begin) / Math.max(1, this.end - this.begin)) * span;
  }

  rowAt(x) {
    const span = this.width - this.left - this.right;
    const row = Math.floor(this.begin + ((x - this.left) / span) * (this.end - this.begin));
    return Math.max(this.begin, Math.min(this.end - 1, row));
  }

  // ---- drawing

  redraw() {
    this.isStale = true;
    this.redrawCursor();
  }

  redrawCursor() {
    this.scheduled ||= requestAnimationFrame(() => {
      this.scheduled = 0;
      if (this.width === undefined) this.layout();
      else this.draw();
    });
  }

  draw() {
    if (this.isStale) this.drawLines();
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.lines, 0, 0);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const drawLabels = (isBackground) => this.lanes.forEach((lane, place) => this.drawLabel(context, lane, place, isBackground));
    drawLabels(true);
    const mark = (row, colour, wide) => {
      if (row === null || row < this.begin || row >= this.end) return;
      context.fillStyle = colour;
      context.fillRect(Math.round(this.x(row) - wide / 2), 0, wide, this.lanes.length * this.laneHeight);
    };
    mark(this.hover, this.colours.hover, 1);
    mark(this.cursor, this.colours.cursor, 2);
    drawLabels(false);
  }

  drawLines() {
    this.isStale = false;
    this.lines.width = this.canvas.width; // clears it
    this.lines.height = this.canvas.height;
    const context = this.lines.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    this.drawRows(context, this.lanes.length * this.laneHeight);
    this.lanes.forEach((lane, place) => this.drawLane(context, lane, place));
  }

  drawRows(context, bottom) {
    const wide = this.end - this.begin;
    const most = Math.max(2, Math.floor(this.width / 80));
    let step = 1;
    for (let scale = 1; wide / step > most; scale *= 10) {
      for (const factor of [1, 2, 5]) if (wide / (step = scale * factor) <= most) break;
    }
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = Math.ceil(this.begin / step) * step; row < this.end; row += step) {
      const x = Math.round(this.x(row));
      context.fillStyle = this.colours.grid;
      context.fillRect(x, 0, 1, bottom);
      context.fillStyle = this.colours.faint;
      const half = context.measureText(String(row)).width / 2;
      context.fillText(String(row), Math.max(half + 1, Math.min(this.width - half - 1, x)), bottom + 12);
    }
  }

  drawLane(context, lane, place) {
    context.fillStyle = this.colours.grid;
    context.fillRect(0, (place + 1) * this.laneHeight - 1, this.width, 1);
    const series = this.seriesOf(lane, place);
    if (!series.length) return;
    const { least, most, top, high, y } = this.scaleOf(lane, place);
    if (least < 0 && most > 0) {
      context.fillStyle = this.colours.zero;
      context.fillRect(this.left, Math.round(y(0)), this.width - this.left - this.right, 1);
    }
    context.save();
    context.beginPath();
    context.rect(this.left - 3, top - 4, this.width - this.left - this.right + 6, high + 8);
    context.clip();
    for (const { name, colour } of series) {
      const shape = { context, curve: this.data.curves[name], lane, y, top, high, colour };
      if (shape.curve.values) this.drawValues(shape);
      else this.drawBands(shape);
    }
    context.restore();
  }

  drawValues({ context, curve, lane, y, top, high, colour }) {
    const rows = this.data.rows;
    const from = Math.max(0, this.indexOf(this.begin) - 1);
    const rowWidth = (this.width - this.left - this.right) / Math.max(1, this.end - this.begin);
    context.strokeStyle = colour;
    context.fillStyle = colour;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    let isDown = false;
    const lost = [];
    for (let index = from; index < rows.length; index++) {
      if (rows[index - 1] > this.end) break;
      const value = this.number(curve.values[index]);
      const x = this.x(rows[index]);
      if (!Number.isFinite(value)) {
        if (curve.not_finite) lost.push(x);
        isDown = false;
        continue;
      }
      const point = y(value);
      if (lane.kind === "stems") {
        if (value !== 0) {
          context.fillRect(x - 0.75, Math.min(point, y(0)), 1.5, Math.max(1, Math.abs(point - y(0))));
          context.fillRect(x - 2, point - 2, 4, 4);
        }
        continue;
      }
      if (lane.kind === "steps") {
        if (isDown) context.lineTo(x - rowWidth / 2, point);
        else context.moveTo(x - rowWidth / 2, point);
        context.lineTo(x + rowWidth / 2, point);
      } else if (isDown) context.lineTo(x, point);
      else context.moveTo(x, point);
      if (lane.kind !== "steps" && (rowWidth > 9 || rows.length === 1)) context.fillRect(x - 2, point - 2, 4, 4);
      isDown = true;
    }
    context.stroke();
    for (const x of lost) this.drawLost(context, x, top + high - 3);
  }

  drawBands({ context, curve, lane, y, top, high, colour }) {
    const rows = this.data.rows;
    context.fillStyle = colour;
    if (curve.mean) context.globalAlpha = 0.4;
    for (let index = Math.max(0, this.indexOf(this.begin)); index < rows.length; index++) {
      if (rows[index] >= this.end) break;
      const next = rows[index + 1] ?? this.dataStop;
      const x = this.x(rows[index] - 0.5);
      const wide = Math.max(1, this.x(next - 0.5) - x);
      let low = this.number(curve.low[index]);
      let most = this.number(curve.high[index]);
      if (!Number.isFinite(low) || !Number.isFinite(most)) {
        if (curve.not_finite) this.drawLost(context, x + wide / 2, top + high - 3);
        continue;
      }
      if (lane.kind === "stems") [low, most] = [Math.min(0, low), Math.max(0, most)];
      if (lane.kind === "stems" && low === 0 && most === 0) continue;
      const [upper, lower] = [Math.max(top - 4, y(most)), Math.min(top + high + 4, y(low))];
      const [across, thick] = lane.kind === "points" ? [Math.min(wide, 4), Math.min(Math.max(wide, 1.5), 4)] : [wide, 1.5];
      context.fillRect(x + (wide - across) / 2, upper - thick / 2, across, lower - upper + thick);
    }
    Object.assign(context, { globalAlpha: 1, strokeStyle: colour, lineWidth: 1.75 });
    context.beginPath();
    (curve.mean ?? []).forEach((value, index) => {
      const next = rows[index + 1] ?? this.dataStop;
      if (value !== null) context.lineTo(this.x((rows[index] + next - 1) / 2), y(value));
    });
    context.stroke();
  }

  // A gap: a cross where a value is NaN or infinite.
  drawLost(context, x, y) {
    context.save();
    context.strokeStyle = this.colours.lost;
    context.lineWidth = 1.25;
    context.beginPath();
    for (const side of [-2.5, 2.5]) {
      context.moveTo(x - side, y - 2.5);
      context.lineTo(x + side, y + 2.5);
    }
    context.stroke();
    context.restore();
  }

  // The value of a curve at the cursor.
  textAt(lane, name, format) {
    const curve = this.data.curves[name];
    const index = this.indexOf(this.cursor);
    if (index < 0 || index >= this.data.rows.length || this.cursor >= this.dataStop) return "";
    if (curve.values) {
      if (this.data.rows[index] !== this.cursor) return "";
      const value = curve.values[index];
      return value === null ? (curve.not_finite ? "not finite" : "none") : format(value);
    }
    const [low, high] = [curve.low[index], curve.high[index]];
    const exact = this.exactAt(name, this.cursor);
    if (typeof exact === "number") return format(exact);
    // No range of names: they have no order.
    if (low === null || (lane.kind === "steps" && low !== high)) return "";
    return low === high ? format(low) : `${format(low)} to ${format(high)}`;
  }

  // Name, extremes and the value at the cursor, above the lane's line. The background is drawn
  // before the cursor, the text after it: neither hides the other.
  drawLabel(context, lane, place, isBackground) {
    const y = place * this.laneHeight + 10;
    const series = this.seriesOf(lane, place);
    const format = lane.format ?? shortNumber;
    const write = (text, x, fill, align) => {
      const wide = context.measureText(text).width;
      context.fillStyle = isBackground ? this.colours.lane : fill;
      context.textAlign = align;
      if (isBackground) context.fillRect((align === "right" ? x - wide : x) - 3, y - 8, wide + 6, 16);
      else context.fillText(text, x, y);
      return wide;
    };
    context.textBaseline = "middle";
    context.font = "600 11px system-ui, sans-serif";
    const colour = lane.series ? this.colours.ink : this.colours.lines[place % this.colours.lines.length];
    const wide = write(lane.name, this.left, colour, "left");
    if (!series.length) return;
    const texts = series.map(({ name, label = "" }) => [label, this.textAt(lane, name, format)]);
    const text = texts.filter(([, value]) => value).map((parts) => parts.join("")).join(" · ");
    const taken = text ? write(text, this.width - this.right, this.colours.ink, "right") : 0;
    context.font = "11px system-ui, sans-serif";
    const [least, most] = this.rangeOf(series);
    const lost = Object.entries(this.data.curves[lane.name]?.not_finite ?? {}).map(([name, count]) => `, ${count} × ${name}`);
    const extent = `${format(least)} … ${format(most)}${lost.join("")}`;
    if (wide + taken + context.measureText(extent).width + 40 < this.width) {
      write(extent, this.left + wide + 10, this.colours.faint, "left");
    }
  }

  // ---- pointer

  listen() {
    const canvas = this.canvas;
    const place = (event) => event.clientX - canvas.getBoundingClientRect().left;
    const fingers = new Map();
    let pinch = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 0) return;
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, place(event));
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()];
        pinch = { apart: Math.abs(a - b), wide: this.end - this.begin, row: this.rowAt((a + b) / 2) };
      } else this.onPick(this.rowAt(place(event)));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, place(event));
      if (pinch && fingers.size === 2) {
        const [a, b] = [...fingers.values()];
        const wide = (pinch.wide * pinch.apart) / Math.max(10, Math.abs(a - b));
        const part = ((a + b) / 2 - this.left) / (this.width - this.left - this.right);
        this.setView(pinch.row - part * wide, wide);
      } else if (fingers.size === 1) this.onPick(this.rowAt(place(event)));
      else {
        this.hover = this.rowAt(place(event));
        this.redrawCursor();
      }
    });
    const lift = (event) => {
      fingers.delete(event.pointerId);
      if (fingers.size < 2) pinch = null;
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      this.redrawCursor();
    });
    canvas.addEventListener("dblclick", () => this.zoom(Infinity));
    // Only with Ctrl (and a touchpad's pinch) or Shift: the plain wheel scrolls the page.
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (event.ctrlKey) this.zoom(Math.exp(event.deltaY * 0.004), this.rowAt(place(event)));
        else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          const wide = this.end - this.begin;
          const moved = ((event.deltaX || event.deltaY) / this.width) * wide;
          this.setView(this.begin + Math.sign(moved) * Math.max(1, Math.abs(moved)), wide);
        } else return;
        event.preventDefault();
      },
      { passive: false },
    );
  }
}
