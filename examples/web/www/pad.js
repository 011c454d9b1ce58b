// The box for drawing a digit, with a mouse, a pen or a finger.

const WIDTH = 0.07;

export class Pad {
  #canvas;
  #strokes = [];
  #changed;

  /** `changed` is called with the strokes whenever they grow: lists of points from 0 to 1. */
  constructor(canvas, changed) {
    this.#canvas = canvas;
    this.#changed = changed;
    let pointer = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (pointer !== null || event.button !== 0) return;
      event.preventDefault();
      pointer = event.pointerId;
      canvas.setPointerCapture(pointer);
      this.#strokes.push([]);
      this.#add(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerId !== pointer) return;
      for (const part of event.getCoalescedEvents?.() ?? []) this.#add(part);
      this.#add(event);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, (event) => {
        if (event.pointerId === pointer) pointer = null;
      });
    }
    canvas.addEventListener("keydown", (event) => {
      if (["Escape", "Delete", "Backspace"].includes(event.key)) this.clear();
    });
  }

  get strokes() {
    return this.#strokes;
  }

  clear() {
    this.#strokes = [];
    this.#draw();
    this.#changed(this.#strokes);
  }

  #add(event) {
    const box = this.#canvas.getBoundingClientRect();
    const inside = (value) => Math.min(1, Math.max(0, value));
    const point = [inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height)];
    this.#strokes.at(-1).push(point);
    this.#draw();
    this.#changed(this.#strokes);
  }

  #draw() {
    const context = this.#canvas.getContext("2d");
    const size = this.#canvas.width;
    context.clearRect(0, 0, size, size);
    Object.assign(context, { lineWidth: WIDTH * size, lineCap: "round", lineJoin: "round", strokeStyle: "#1b1d20" });
    for (const stroke of this.#strokes) {
      context.beginPath();
      for (const [x, y] of stroke) context.lineTo(x * size, y * size);
      if (stroke.length === 1) context.lineTo(stroke[0][0] * size + 0.01, stroke[0][1] * size);
      context.stroke();
    }
  }
}
