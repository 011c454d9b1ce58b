// All computation, away from the page's thread: the page stays responsive however slow the device is.
//
// The page's commands are queued and handled between chunks of steps, because the session does one thing at a time.

import init, { Model, Trainer, image_of } from "./pkg/meganeura_web.js";

/** The target duration of a chunk of steps, in milliseconds: short enough to look live, long enough to keep the device busy. */
const CHUNK = 100;
/** The reader's steps before the drawer's turn: 12 epochs. */
const READER_STEPS = 264;
/** The drawer's steps. */
const DRAWER_STEPS = 6000;
/** Rows of ten drawings. */
const ROWS = 4;

const models = { reader: Model.Reader, drawer: Model.Drawer };
const state = { model: "reader", running: false, pauseAt: null, moves: true };
let trainer;
let settings;
let snapshot;
/** Devices that were lost since the last step. */
let lostDevices = 0;
const chunk = { reader: 1, drawer: 1 };
const watches = { evaluate: { share: 5, least: 400 }, snapshot: { share: 10, least: 1000 } };
const commands = [];
let wake = () => {};

onmessage = ({ data }) => {
  commands.push(data);
  wake();
};

/** Lets messages in. A timer would work, but browsers slow down timers of background tabs. */
const breath = new MessageChannel();
const breathe = () =>
  new Promise((resolve) => {
    breath.port1.onmessage = resolve;
    breath.port2.postMessage(null);
  });

const tell = (type, data = {}, transfer = []) => postMessage({ type, ...data }, transfer);

const handlers = {
  async open({ device, seed, pauseAt, snapshot: earlier }) {
    await init();
    settings = { device, seed };
    state.pauseAt = pauseAt;
    trainer = earlier ? await Trainer.restore(earlier, device) : await Trainer.open(seed, device);
    snapshot = earlier;
    opened();
    if (earlier) await show();
  },
  start() {
    state.running = true;
  },
  async pause() {
    state.running = false;
    await keep();
  },
  choose({ model }) {
    state.model = model;
    state.moves = false;
  },
  async reset() {
    Object.assign(state, { running: false, model: "reader", moves: true });
    trainer.free();
    trainer = await Trainer.open(settings.seed, settings.device);
    snapshot = undefined;
    opened();
    tell("reset");
  },
  rate({ model, rate }) {
    trainer.set_lr(models[model], rate);
  },
  async read({ points, lengths }) {
    const image = image_of(points, lengths);
    if (!image) return;
    const chances = await trainer.read(image);
    tell("reading", { image, chances, trained: trainer.steps(Model.Reader) > 0 });
  },
  async save({ model }) {
    const bytes = await trainer.save(models[model]);
    tell("saved", { model, bytes }, [bytes.buffer]);
  },
  async load({ name, bytes }) {
    const loaded = trainer.load(new Uint8Array(bytes)) === Model.Reader ? "reader" : "drawer";
    await keep();
    tell("loaded", { model: loaded, name });
    await show();
  },
};

function opened() {
  const rates = { reader: trainer.lr(Model.Reader), drawer: trainer.lr(Model.Drawer) };
  const steps = { reader: trainer.steps(Model.Reader), drawer: trainer.steps(Model.Drawer) };
  tell("opened", { device: trainer.device(), reason: trainer.reason(), gpu: trainer.is_gpu(), rates, steps });
}

/** Trains for about the duration of a chunk. */
async function train() {
  const model = state.model;
  const before = trainer.steps(models[model]);
  let steps = chunk[model];
  if (state.pauseAt !== null) steps = Math.min(steps, state.pauseAt - before);
  if (steps > 0) {
    const start = performance.now();
    const values = await trainer.train(models[model], steps);
    const ms = performance.now() - start;
    lostDevices = 0;
    chunk[model] = Math.max(1, Math.min(64, Math.round((steps * CHUNK) / Math.max(ms, 1)), 2 * steps));
    tell("progress", { model, steps: before + steps, losses: values, ms }, [values.buffer]);
  }
  const done = trainer.steps(models[model]);
  if (state.pauseAt !== null && done >= state.pauseAt) return stop(`Paused after ${done} steps, as the address asks.`);
  if (due(watches.evaluate)) await timed(watches.evaluate, () => (model === "reader" ? evaluate() : draw()));
  if (due(watches.snapshot)) await keep();
  if (!state.moves) return;
  if (model === "reader" && done >= READER_STEPS) {
    await evaluate();
    state.model = "drawer";
    tell("chosen", { model: "drawer" });
  } else if (model === "drawer" && done >= DRAWER_STEPS) {
    state.moves = false;
    await stop(`The drawer has trained for ${done} steps. Press Start to continue.`);
  }
}

async function stop(message) {
  state.running = false;
  await show();
  await keep();
  tell("paused", { message });
}

/** Whether an action may be repeated that should take only a share of the time. */
function due(watch) {
  const now = performance.now();
  watch.last ??= now;
  return now - watch.last > Math.max(watch.least, (watch.took ?? 0) * watch.share);
}

async function timed(watch, what) {
  const start = performance.now();
  await what();
  watch.last = performance.now();
  watch.took = watch.last - start;
}

async function show() {
  await evaluate();
  if (trainer.steps(Model.Drawer) > 0) await draw();
}

async function evaluate() {
  const counts = await trainer.evaluate();
  tell("evaluation", { counts }, [counts.buffer]);
}

async function draw() {
  const images = await trainer.draw(ROWS);
  const chances = await trainer.read(images);
  let recognised = 0;
  for (let i = 0; i < ROWS * 10; i++) {
    const row = chances.subarray(i * 10, i * 10 + 10);
    if (row.indexOf(Math.max(...row)) === i % 10) recognised++;
  }
  const read = trainer.steps(Model.Reader) > 0;
  tell("drawings", { images, recognised: read ? recognised : null, count: ROWS * 10 }, [images.buffer]);
}

/** Keeps the trained state in memory that survives the loss of the device or the worker. */
async function keep() {
  await timed(watches.snapshot, async () => {
    snapshot = await trainer.snapshot();
    tell("snapshot", { bytes: snapshot });
  });
}

/** Reopens the device and restores the last snapshot. Falls back to the CPU if that fails, or at the third loss without a step in between. */
async function recover(error) {
  const old = trainer;
  const open = (device) => (snapshot ? Trainer.restore(snapshot, device) : Trainer.open(settings.seed, device));
  lostDevices += 1;
  trainer = lostDevices > 2 ? await open("cpu") : await open(settings.device).catch(() => open("cpu"));
  old.free();
  opened();
  const step = trainer.steps(models[state.model]);
  tell("lost", { message: error.message, step, device: trainer.device() });
  await show();
}

async function guarded(what, command) {
  try {
    await what();
  } catch (error) {
    if (error instanceof WebAssembly.RuntimeError || !trainer) throw error;
    if (error.name === "DeviceLost") {
      await recover(error);
      // The command is repeated on the new device.
      if (command && command.type !== "reset") commands.unshift(command);
    } else {
      if (!command) state.running = false;
      tell("error", { kind: error.name, message: error.message, about: command?.type ?? "train", name: command?.name });
    }
  }
}

try {
  for (;;) {
    while (commands.length > 0) {
      const command = commands.shift();
      await guarded(() => handlers[command.type](command), command);
    }
    if (state.running) {
      await guarded(train);
      await breathe();
    } else {
      await new Promise((resolve) => {
        wake = resolve;
        if (commands.length > 0) resolve();
      });
    }
  }
} catch (error) {
  // The state of this worker is unreliable now: the page starts another worker.
  tell("crashed", { message: String(error.message ?? error) });
}
