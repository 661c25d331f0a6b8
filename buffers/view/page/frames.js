// Shows the frames of an episode, which come as sprites: blocks of columns x rows frames, row by row.
// A block holds the absolute rows [block * B, (block + 1) * B) with B = columns * rows.

export class FramePlayer {
  // canvas: shows the wanted row. Its data-row is the row whose pixels it holds.
  // count, firstRow: the episode has the rows firstRow .. firstRow + count - 1.
  // step: 0 where blocks hold absolute rows; else they hold each step-th row and the last one,
  // counted from firstRow.
  // source: async (block, signal) => ImageBitmap or HTMLImageElement.
  constructor(canvas, { height, width, columns, rows, count, firstRow = 0, step = 0, source }) {
    Object.assign(this, { canvas, height, width, columns, rows, count, firstRow, step, source });
    this.size = columns * rows;
    // About 16 megapixels (64 MB) of decoded sprites, and never fewer than three.
    this.capacity = Math.max(3, Math.min(64, Math.floor(16e6 / (this.size * height * width))));
    this.blocks = new Map(); // block -> image; the one used last comes last
    this.loads = new Map(); // block -> {abort, promise}
    this.older = []; // canvases of the rows before, the nearest first
    this.wanted = null;
    this.waiting = [];
    this.onError = null;
    this.prepare(canvas);
  }

  prepare(canvas) {
    canvas.width = this.width;
    canvas.height = this.height;
    delete canvas.dataset.row;
  }

  // Canvases that show the rows before the wanted one: the frame stack.
  setOlder(canvases) {
    this.older = canvases;
    canvases.forEach((canvas) => this.prepare(canvas));
    if (this.wanted !== null) this.show(this.wanted);
  }

  // The episode has grown: the last block has more frames now.
  setCount(count) {
    if (count === this.count) return;
    this.drop(this.block(this.firstRow + this.count - 1));
    this.count = count;
    if (this.canvas.dataset.wanted !== undefined) this.loadWanted();
  }

  clamp(row) {
    return Math.max(this.firstRow, Math.min(this.firstRow + this.count - 1, row));
  }

  index(row) {
    if (!this.step) return row;
    const isLast = row === this.firstRow + this.count - 1;
    return Math[isLast ? "ceil" : "floor"]((row - this.firstRow) / this.step);
  }

  block(row) {
    return Math.floor(this.index(row) / this.size);
  }

  needed(row) {
    const oldest = this.clamp(row - this.older.length);
    const found = [];
    for (let block = this.block(row); block >= this.block(oldest); block--) found.push(block);
    return found;
  }

  // Draws a row as soon as its sprite is there. The latest call wins: resolves to true if this row
  // was drawn, to false if another one was wanted meanwhile or its sprite could not be read.
  async show(row) {
    row = this.clamp(row);
    this.wanted = row;
    if (this.drawWanted()) return true;
    this.canvas.dataset.wanted = row;
    const drawn = new Promise((resolve) => this.waiting.push({ row, resolve }));
    this.loadWanted();
    return drawn;
  }

  // Loads the block after the one of this row (or before it), so that it is there in time.
  prefetch(row, direction = 1) {
    const block = this.block(this.clamp(row)) + (direction < 0 ? -1 : 1);
    const last = this.block(this.firstRow + this.count - 1);
    if (block < this.block(this.firstRow) || block > last) return;
    if (!this.blocks.has(block) && !this.loads.has(block) && this.loads.size < 2) this.load(block);
  }

  drawWanted() {
    const row = this.wanted;
    if (!this.needed(row).every((block) => this.blocks.has(block))) return false;
    this.draw(this.canvas, row);
    this.older.forEach((canvas, index) => {
      if (row - 1 - index >= this.firstRow) this.draw(canvas, row - 1 - index);
      else this.prepare(canvas); // no such row: padding
    });
    delete this.canvas.dataset.wanted;
    this.settle();
    return true;
  }

  draw(canvas, row) {
    const block = this.block(row);
    const image = this.blocks.get(block);
    this.blocks.delete(block);
    this.blocks.set(block, image);
    const place = this.index(row) - block * this.size;
    const x = (place % this.columns) * this.width;
    const y = Math.floor(place / this.columns) * this.height;
    const context = canvas.getContext("2d", { alpha: false });
    context.imageSmoothingEnabled = false;
    context.drawImage(image, x, y, this.width, this.height, 0, 0, this.width, this.height);
    canvas.dataset.row = row;
  }

  settle(failed = false) {
    const waiting = this.waiting;
    this.waiting = [];
    for (const { row, resolve } of waiting) resolve(!failed && row === this.wanted);
  }

  // At most two sprites are on their way: those that nobody waits for any more are given up.
  loadWanted() {
    if (this.wanted === null) return;
    const needed = this.needed(this.wanted).filter((block) => !this.blocks.has(block));
    for (const [block, load] of this.loads) {
      if (this.loads.size < 2) break;
      if (needed.includes(block)) continue;
      load.abort.abort();
      this.loads.delete(block);
    }
    for (const block of needed) if (!this.loads.has(block)) this.load(block);
  }

  async load(block) {
    const load = { abort: new AbortController() };
    this.loads.set(block, load);
    try {
      const image = await this.source(block, load.abort.signal);
      if (this.loads.get(block) !== load) return image.close?.();
      this.loads.delete(block);
      this.keep(block, image);
    } catch (error) {
      if (this.loads.get(block) !== load) return;
      this.loads.delete(block);
      if (error.name === "AbortError") return;
      if (this.wanted !== null && this.needed(this.wanted).includes(block)) {
        this.settle(true);
        this.onError?.(error);
      }
      return;
    }
    if (this.wanted !== null && this.canvas.dataset.wanted !== undefined) this.drawWanted();
  }

  keep(block, image) {
    this.blocks.set(block, image);
    for (const oldest of this.blocks.keys()) {
      if (this.blocks.size <= this.capacity) break;
      if (this.wanted === null || !this.needed(this.wanted).includes(oldest)) this.drop(oldest);
    }
  }

  drop(block) {
    this.loads.get(block)?.abort.abort();
    this.loads.delete(block);
    this.blocks.get(block)?.close?.();
    this.blocks.delete(block);
  }

  // Frees the decoded sprites. The player shows nothing afterwards.
  close() {
    for (const block of [...this.loads.keys(), ...this.blocks.keys()]) this.drop(block);
    this.wanted = null;
    this.settle(true);
  }
}
