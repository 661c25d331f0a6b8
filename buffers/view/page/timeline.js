// Returns and lengths of the episodes in the order in which they were stored; a click opens one.
import { byId, counted, letter } from "./dom.js";
import { Curves } from "./curves.js";

export class Timeline {
  // onOpen: an episode, as {store, id, first_row}
  constructor(onOpen) {
    this.box = byId("timeline-box");
    const canvas = byId("timeline");
    const curves = (this.curves = new Curves(canvas, { first: 0, stop: 0, laneHeight: 58 }));
    curves.cursor = -1;
    new ResizeObserver(() => canvas.clientWidth && curves.layout()).observe(this.box);
    for (const kind of ["pointermove", "pointerleave"]) canvas.addEventListener(kind, () => (curves.cursor = curves.hover ?? -1));
    canvas.addEventListener("click", (event) => {
      const found = curves.nearest(event.offsetX, event.offsetY);
      if (!found) return;
      const [name, store] = found.name.split("/");
      const [id, first_row] = this.answer.curves[name][store][`${found.end}_key`][found.index];
      onOpen({ store: Number(store), id, first_row });
    });
  }

  // An answer of /api/timeline.
  setData(answer) {
    this.answer = answer;
    this.box.hidden = answer.stop < 2;
    const { curves } = this;
    if (curves.stop !== answer.stop) Object.assign(curves, { begin: 0, end: answer.stop, stop: answer.stop });
    const drawn = Object.entries(answer.curves).flatMap(([name, stores]) => stores.map((curve, store) => [`${name}/${store}`, curve]));
    curves.setData({ ...answer, curves: Object.fromEntries(drawn.filter(([, curve]) => curve)) });
    this.setTheme();
    curves.canvas.setAttribute("aria-label", `Returns and steps of ${counted(answer.stop, "episode")} in the order in which they were stored; the table has each`);
  }

  setTheme() {
    this.curves.setColours(document.documentElement.dataset.theme);
    const style = getComputedStyle(document.documentElement);
    const { curves: found = {}, window: count } = this.answer ?? {};
    this.curves.setLanes(Object.entries(found).map(([name, stores]) => ({
      name: `${name}, mean of ${count}`, kind: "points",
      series: stores.map((_, store) => ({ name: `${name}/${store}`, colour: style.getPropertyValue(`--s${store % 8}`), label: stores.length > 1 ? `${letter(store)} ` : "" })),
    })));
  }
}
