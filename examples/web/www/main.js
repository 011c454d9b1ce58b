// The visible part of the page. worker.js does all the computing; the two communicate through messages.
//
// Parameters of the address: `device=cpu` or `device=webgpu` instead of the best device, `seed=7`, `pause=100` to pause after 100 steps.
// A driver that runs kernels on the CPU is used only if `webgpu` is requested: the native kernels, as WebAssembly, are faster.

import { confusion, curve, images } from "./charts.js";
import { Pad } from "./pad.js";

const query = new URLSearchParams(location.search);
const $ = (id) => document.getElementById(id);
const number = (name, otherwise) => (query.has(name) ? Number(query.get(name)) : otherwise);

const state = {
  model: "reader",
  running: false,
  opened: false,
  losses: { reader: [], drawer: [] },
  steps: { reader: 0, drawer: 0 },
  rates: { reader: 0, drawer: 0 },
  /** Times and steps of the last chunks. */
  pace: [],
  snapshot: null,
  restarts: 0,
  stale: true,
  reading: { asked: false, again: false },
  hiddenAt: null,
};
let worker;

function open(snapshot) {
  worker?.terminate();
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => receive[data.type](data);
  worker.onerror = (event) => crashed(event.message ?? "the worker could not be loaded");
  const device = query.get("device") ?? "auto";
  worker.postMessage({ type: "open", device, seed: number("seed", 42), pauseAt: number("pause", null), snapshot });
}

const send = (type, data = {}, transfer = []) => worker.postMessage({ type, ...data }, transfer);

const receive = {
  opened({ device, reason, gpu, rates, steps }) {
    $("device-kind").textContent = gpu ? "WebGPU" : "CPU";
    $("device-kind").classList.toggle("cpu", !gpu);
    $("device-name").textContent = device;
    if (!gpu && query.get("device") !== "cpu") {
      notice("warning", `There is no WebGPU here, so training runs on the CPU: same results, but slower.\n${reason}`, "device");
    }
    Object.assign(state, { rates, steps, opened: true, stale: true });
    for (const model of ["reader", "drawer"]) state.losses[model].length = Math.min(state.losses[model].length, steps[model]);
    for (const id of ["start", "reset", "save-reader", "save-drawer"]) $(id).disabled = false;
    showRate();
    showRunning();
    if (state.running) send("start");
  },
  progress({ model, steps, losses, ms }) {
    state.steps[model] = steps;
    const all = state.losses[model];
    // Steps from a snapshot of another page have no losses here.
    while (all.length < steps - losses.length) all.push(losses[0]);
    all.push(...losses);
    state.pace.push([losses.length, ms]);
    while (state.pace.length > 1 && state.pace.reduce((sum, [, ms]) => sum + ms, 0) > 2000) state.pace.shift();
    state.restarts = 0;
    state.stale = true;
  },
  evaluation({ counts }) {
    const accuracy = confusion($("confusion"), counts);
    $("accuracy").textContent = `${(100 * accuracy).toFixed(1)} %`;
  },
  drawings({ images: values, recognised, count }) {
    images($("drawings"), values, 10);
    const read = recognised === null ? "" : ` The reader recognises ${recognised} of ${count}.`;
    $("recognised").textContent = `Asked for 0 to 9, four times.${read}`;
  },
  reading({ image, chances, trained }) {
    state.reading.asked = false;
    if (state.reading.again) return read();
    if (pad.strokes.length > 0) showReading(image, chances, trained);
  },
  chosen({ model }) {
    choose(model);
  },
  paused({ message }) {
    state.running = false;
    notice("info", message, "paused");
    showRunning();
  },
  reset() {
    Object.assign(state, { running: false, snapshot: null, stale: true, pace: [] });
    state.losses = { reader: [], drawer: [] };
    choose("reader");
    $("accuracy").textContent = "–";
    blank();
    $("recognised").textContent = "Asked for 0 to 9, four times. The noise is the same each time.";
    showRunning();
    read();
  },
  saved({ model, bytes }) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
    link.download = model === "reader" ? "digits.safetensors" : "denoiser.safetensors";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  },
  loaded({ model, name }) {
    notice("info", `${name}: the ${model} has these weights now.`, "file");
    choose(model);
    state.stale = true;
    read();
  },
  snapshot({ bytes }) {
    state.snapshot = bytes;
  },
  lost({ message, step, device }) {
    const where = `Training goes on from step ${step}, on ${device}.`;
    notice("warning", `The device was lost. ${where}\n${message}`, "lost");
  },
  error({ kind, message, about, name }) {
    if (about === "read") state.reading.asked = false;
    if (about === "train") state.running = false;
    const before = about === "load" ? `${name} was not loaded, and nothing has changed.` : `${kind}:`;
    notice("error", `${before}\n${message}`, about);
    showRunning();
  },
  crashed({ message }) {
    crashed(message);
  },
};

/** Restarts the worker from the last snapshot, at most twice. */
function crashed(message) {
  console.error(message);
  if (!state.opened || state.restarts === 2) {
    state.running = false;
    worker.terminate();
    for (const id of ["start", "reset", "save-reader", "save-drawer"]) $(id).disabled = true;
    return notice("error", `This page cannot compute here, and has stopped.\n${message}`, "crash");
  }
  state.restarts += 1;
  state.reading.asked = false;
  notice("warning", `Something failed, and training goes on from the last snapshot.\n${message}`, "crash");
  open(state.snapshot);
}

/** A message; a later one of the same topic replaces it. */
function notice(kind, text, topic) {
  const element = document.createElement("div");
  element.className = `notice ${kind}`;
  element.dataset.topic = topic;
  const paragraph = document.createElement("p");
  paragraph.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "✕";
  close.setAttribute("aria-label", "Dismiss");
  close.onclick = () => element.remove();
  element.append(paragraph, close);
  dismiss(topic);
  $("notices").append(element);
}

const dismiss = (topic) => $("notices").querySelector(`[data-topic="${topic}"]`)?.remove();

function choose(model) {
  state.model = model;
  state.pace = [];
  document.querySelector(`input[name="model"][value="${model}"]`).checked = true;
  state.stale = true;
  showRate();
}

function showRate() {
  const rate = state.rates[state.model];
  $("rate").value = Math.log10(rate);
  $("rate-value").value = Number(rate.toPrecision(2));
}

function showRunning() {
  $("start").textContent = state.running ? "Pause" : "Start";
}

/** Draws changes, at most once a frame, and not at all in the background. */
function frame() {
  if (state.stale) {
    state.stale = false;
    const [steps, losses] = [state.steps[state.model], state.losses[state.model]];
    const [taken, ms] = state.pace.reduce(([a, b], [steps, ms]) => [a + steps, b + ms], [0, 0]);
    $("steps").textContent = steps;
    $("speed").textContent = ms > 0 ? Number(((1000 * taken) / ms).toPrecision(3)) : "–";
    $("loss").textContent = losses.length > 0 ? mean(losses.slice(-20)).toPrecision(3) : "–";
    curve($("curve"), state.losses);
  }
  requestAnimationFrame(frame);
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function showReading(image, chances, trained) {
  images($("seen"), image, 1);
  const best = chances.indexOf(Math.max(...chances));
  const percent = (chance) => `${(100 * chance).toFixed(0)} %`;
  $("answer").textContent = trained ? `This is a ${best} (${percent(chances[best])}).` : "It has not learned to read yet: press Start.";
  [...$("chances").children].forEach((item, digit) => {
    item.children[1].firstChild.style.width = `${100 * chances[digit]}%`;
    item.children[2].textContent = percent(chances[digit]);
  });
}

/** Sends the drawing to the worker to read: later, if the worker still reads the last one. */
function read() {
  const strokes = pad.strokes;
  if (strokes.length === 0) {
    $("answer").textContent = "Draw a digit in the box.";
    images($("seen"), new Float32Array(64), 1);
    for (const item of $("chances").children) {
      item.children[1].firstChild.style.width = "0";
      item.children[2].textContent = "";
    }
    return;
  }
  state.reading.again = state.reading.asked;
  if (state.reading.asked) return;
  state.reading.asked = true;
  const points = new Float32Array(strokes.flat(2));
  send("read", { points, lengths: new Uint32Array(strokes.map((stroke) => stroke.length)) });
}

/** Draws results without content. They take the space that they will need: nothing moves when the first ones come. */
function blank() {
  confusion($("confusion"), new Uint32Array(100));
  images($("drawings"), new Float32Array(40 * 64), 10);
}

async function load(file) {
  if (!file) return;
  dismiss("load");
  dismiss("file");
  const bytes = await file.arrayBuffer();
  send("load", { name: file.name, bytes }, [bytes]);
}

for (let digit = 0; digit < 10; digit++) {
  const item = document.createElement("li");
  const [label, bar, value] = ["b", "span", "span"].map((name) => document.createElement(name));
  label.textContent = digit;
  bar.append(document.createElement("i"));
  item.append(label, bar, value);
  $("chances").append(item);
}

const pad = new Pad($("pad"), read);
$("clear").onclick = () => pad.clear();
$("start").onclick = () => {
  state.running = !state.running;
  dismiss("paused");
  send(state.running ? "start" : "pause");
  showRunning();
};
$("reset").onclick = () => {
  for (const topic of ["paused", "lost", "train", "load", "file", "crash"]) dismiss(topic);
  send("reset");
};
for (const input of document.querySelectorAll('input[name="model"]')) {
  input.onchange = () => {
    choose(input.value);
    send("choose", { model: input.value });
  };
}
$("rate").oninput = () => {
  const rate = 10 ** Number($("rate").value);
  state.rates[state.model] = rate;
  $("rate-value").value = Number(rate.toPrecision(2));
  send("rate", { model: state.model, rate });
};
$("save-reader").onclick = () => send("save", { model: "reader" });
$("save-drawer").onclick = () => send("save", { model: "drawer" });
$("file").onchange = async () => {
  await load($("file").files[0]);
  $("file").value = "";
};

addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) document.body.classList.remove("dropping");
});
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  load(event.dataTransfer.files[0]);
});

document.addEventListener("visibilitychange", () => {
  const total = state.steps.reader + state.steps.drawer;
  if (document.hidden) {
    state.hiddenAt = state.running ? total : null;
  } else if (state.hiddenAt !== null) {
    const steps = total - state.hiddenAt;
    notice("info", `While this page was in the background it took ${steps} steps.`, "background");
    state.hiddenAt = null;
  }
});

addEventListener("resize", () => (state.stale = true));
matchMedia("(prefers-color-scheme: dark)").onchange = () => (state.stale = true);

blank();
images($("seen"), new Float32Array(64), 1);
showRunning();
open(null);
frame();
