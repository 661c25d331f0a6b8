// The players of a report: each article with frames or curves gets its controls.

const OFTEN = 1000 / 60;

class Player {
  constructor(article, dark) {
    this.article = article;
    this.facts = JSON.parse(article.querySelector(".data").textContent);
    const { first, last, step } = this.facts;
    this.rows = []; // those with a frame: each step-th one, and the last
    for (let row = first; row < last; row += step) this.rows.push(row);
    this.rows.push(last);
    this.range = article.querySelector("input[type=range]");
    this.button = article.querySelector("button");
    this.speed = article.querySelector("select");
    this.readout = article.querySelector(".readout");
    this.place = 0; // index into the shown rows
    this.timer = 0;
    this.count = this.rows.length;
    this.frames = [...article.querySelectorAll(".stage canvas")].map((canvas, index) => {
      const sheets = article.querySelectorAll(`.sheets[data-field="${index}"] img`);
      const { height, width, columns, rows } = this.facts.images[index];
      // Whole pixels of the page for each of the picture, where it is small.
      canvas.style.width = `${Math.max(1, Math.floor(336 / Math.max(width, height))) * width}px`;
      return new FramePlayer(canvas, {
        height, width, columns, rows, count: this.count,
        source: async (block) => {
          await sheets[block].decode();
          return createImageBitmap(sheets[block]);
        },
      });
    });
    this.curves = this.makeCurves(dark);
    this.listen();
    article.querySelector(".player").hidden = false;
    this.curves?.layout();
    this.show(0);
  }

  makeCurves(dark) {
    const canvas = this.article.querySelector("canvas.curves");
    if (!canvas) return null;
    const first = this.facts.first;
    const stop = this.facts.last + 1;
    const curves = new Curves(canvas, {
      first, stop, lanes: this.facts.lanes.map((lane) => this.lane(lane)),
      colours: dark.matches ? "dark" : "light",
    });
    curves.onPick = (row) => {
      this.pause();
      this.show(this.nearest(row));
    };
    // Without rows the values are those of all rows.
    const rows = Array.from({ length: stop - first }, (_, index) => first + index);
    curves.setData({ rows, stop, ...this.facts.curves });
    dark.addEventListener("change", () => curves.setColours(dark.matches ? "dark" : "light"));
    let width = canvas.clientWidth;
    new ResizeObserver(() => {
      if (canvas.clientWidth !== width) curves.layout();
      width = canvas.clientWidth;
    }).observe(canvas);
    return curves;
  }

  lane({ name, kind, names }) {
    const none = name.startsWith("action") ? "none" : "NaN";
    if (!names) return { name, kind, none };
    const format = (value) => names[value] ?? shortNumber(value);
    return { name, kind, names, format, none };
  }

  listen() {
    this.range.addEventListener("input", () => {
      this.pause();
      this.show(Number(this.range.value));
    });
    this.button.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    this.article.addEventListener("keydown", (event) => {
      if (event.key !== " " || event.target !== this.range) return;
      event.preventDefault();
      this.button.click();
    });
  }

  play() {
    for (const other of players) if (other !== this) other.rest();
    if (this.place === this.count - 1) this.place = 0;
    this.button.textContent = "Pause";
    let due = performance.now();
    const step = async (now) => {
      if (!this.timer) return;
      const apart = 1000 / Number(this.speed.value);
      // Several rows in one drawing where the speed is above that of the screen.
      if (now >= due) {
        const rows = Math.max(1, Math.round(OFTEN / apart));
        due = Math.max(due + apart * rows, now - apart);
        await this.show(Math.min(this.count - 1, this.place + rows));
        if (this.place === this.count - 1) this.pause();
      }
      if (this.timer) this.timer = requestAnimationFrame(step);
    };
    this.timer = requestAnimationFrame(step);
  }

  pause() {
    if (!this.timer) return;
    cancelAnimationFrame(this.timer);
    this.timer = 0;
    this.button.textContent = "Play";
  }

  // Another one plays: its decoded pictures are freed; what the canvases hold stays.
  rest() {
    this.pause();
    for (const player of this.frames) for (const block of [...player.blocks.keys()]) player.drop(block);
  }

  nearest(row) {
    let low = 0;
    let high = this.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.rows[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  async show(place) {
    this.place = place;
    const row = this.rows[place];
    const drawn = this.frames.map((player) => player.show(place));
    for (const player of this.frames) player.prefetch(place);
    this.curves?.setCursor(row);
    this.range.value = place;
    const parts = this.parts(row);
    this.range.setAttribute("aria-valuetext", parts.map(({ text }) => text).join(", "));
    this.readout.replaceChildren(...parts.map(({ text, kind }) => {
      const part = document.createElement("span");
      part.textContent = text;
      part.className = kind ?? "";
      return part;
    }));
    await Promise.all(drawn);
    this.article.dataset.row = row;
  }

  // What is known of a row, in words.
  parts(row) {
    const parts = [{ text: `row ${row} of ${this.facts.last}` }];
    for (const { name, format = shortNumber, none } of this.curves?.lanes.slice(0, 8) ?? []) {
      const value = this.curves.valueAt(name, row);
      if (value !== undefined) parts.push({ text: `${name}: ${value === null ? none : format(value)}` });
    }
    if (row === 0) parts.push({ text: "reset" });
    if (row === this.facts.last) parts.push({ text: this.facts.end, kind: "end" });
    return parts;
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const players = [];
document.documentElement.classList.add("scripted");
for (const article of document.querySelectorAll("article.episode")) {
  if (article.querySelector(".data")) players.push(new Player(article, dark));
}
