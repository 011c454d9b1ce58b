// The loss curve, the confusion matrix and images of pixels.

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** CSS resolves `light-dark()` where a colour is used, not where it is declared: an element shows the result. */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = style(name);
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** Draws losses by step, `{ reader: [first step, losses], drawer: … }`, on a logarithmic axis. */
export function curve(canvas, series) {
  const scale = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = "12px system-ui, sans-serif";
  const [left, right, top, bottom] = [44, width - 8, 8, height - 22];
  const all = Object.values(series).flat();
  const positive = all.filter((loss) => loss > 0);
  const low = Math.floor(Math.log10(positive.reduce((a, b) => Math.min(a, b), 0.1)) - 1e-9);
  const high = Math.ceil(Math.log10(positive.reduce((a, b) => Math.max(a, b), 1)) + 1e-9);
  const longest = Math.max(20, ...Object.values(series).map((losses) => losses.length));
  const x = (step) => left + ((right - left) * step) / longest;
  const y = (loss) => bottom - ((bottom - top) * (Math.log10(loss) - low)) / (high - low);

  context.strokeStyle = colour("--line");
  context.fillStyle = colour("--faint");
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let power = low; power <= high; power++) {
    const at = Math.round(y(10 ** power)) + 0.5;
    context.beginPath();
    context.moveTo(left, at);
    context.lineTo(right, at);
    context.stroke();
    context.fillText(String(Number((10 ** power).toPrecision(1))), left - 6, Math.min(at, bottom));
  }
  context.textBaseline = "top";
  context.textAlign = "left";
  context.fillText("0", left, bottom + 6);
  context.textAlign = "right";
  context.fillText(`${longest} steps`, right, bottom + 6);

  for (const [name, losses] of Object.entries(series)) {
    line(context, losses, x, y, colour(name === "reader" ? "--accent" : "--second"), right - left);
  }
}

/** Every loss as a faint line, and above it the running mean. */
function line(context, losses, x, y, stroke, pixels) {
  if (losses.length === 0) return;
  const each = Math.max(1, Math.floor(losses.length / pixels));
  context.strokeStyle = stroke;
  for (const memory of [0, 0.9]) {
    context.globalAlpha = memory ? 1 : 0.3;
    context.lineWidth = memory ? 2 : 1;
    context.beginPath();
    let [mean, weight] = [0, 0];
    losses.forEach((loss, step) => {
      mean = memory * mean + (1 - memory) * loss;
      weight = memory * weight + (1 - memory);
      if (step % each === 0 || step === losses.length - 1) context.lineTo(x(step + 1), y(Math.max(mean / weight, 1e-12)));
    });
    context.stroke();
  }
  context.globalAlpha = 1;
}

/** Fills the table with counts `[label, answer]`; returns the share of correct answers. */
export function confusion(table, counts) {
  const classes = Math.sqrt(counts.length);
  const cell = (name, text, scope) => {
    const element = document.createElement(name);
    element.textContent = text;
    if (scope) element.scope = scope;
    return element;
  };
  const row = (cells) => {
    const element = document.createElement("tr");
    element.append(...cells);
    return element;
  };
  const digits = [...Array(classes).keys()];
  const body = document.createElement("tbody");
  body.append(row([cell("td", ""), ...digits.map((digit) => cell("th", digit, "col"))]));
  body.firstChild.firstChild.style.border = "none";
  let right = 0;
  let total = 0;
  for (const label of digits) {
    const line = counts.slice(label * classes, (label + 1) * classes);
    const sum = line.reduce((a, b) => a + b, 0);
    total += sum;
    right += line[label];
    const cells = digits.map((predicted) => {
      const count = line[predicted];
      const element = cell("td", count || "");
      const name = predicted === label ? "--accent" : "--second";
      const share = Math.round((count / Math.max(sum, 1)) * 65 + (count > 0 ? 12 : 0));
      element.style.background = `color-mix(in srgb, var(${name}) ${share}%, transparent)`;
      return element;
    });
    body.append(row([cell("th", label, "row"), ...cells]));
  }
  table.tBodies[0]?.remove();
  table.append(body);
  return right / Math.max(total, 1);
}

/** Draws images of 8×8 pixels, 0 for paper and 1 for ink, in rows, with crisp edges. */
export function images(canvas, values, columns) {
  const [pixel, gap] = columns > 1 ? [8, 8] : [1, 0];
  const count = values.length / 64;
  const pitch = 8 * pixel + gap;
  canvas.width = columns * pitch - gap;
  canvas.height = Math.ceil(count / columns) * pitch - gap;
  const context = canvas.getContext("2d");
  for (let at = 0; at < values.length; at++) {
    const image = Math.floor(at / 64);
    const x = (image % columns) * pitch + (at % 8) * pixel;
    const y = Math.floor(image / columns) * pitch + Math.floor((at % 64) / 8) * pixel;
    const grey = Math.round(255 * (1 - values[at]));
    context.fillStyle = `rgb(${grey} ${grey} ${grey})`;
    context.fillRect(x, y, pixel, pixel);
  }
}
