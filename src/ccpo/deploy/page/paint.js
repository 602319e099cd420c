// Canvas helpers that stage and charts share.

export const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

let palette = null;
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => { palette = null; });

/** The page's colours, read from the style sheet once. */
export function colours() {
  if (!palette) {
    const names = ["paper", "card", "ink", "soft", "rule", "safe", "middle", "costly", "forbidden", "forbidden-edge", "guide"];
    palette = Object.fromEntries(names.map((name) => [name, style(name)]));
    palette.sides = [style("side-0"), style("side-1")];
    palette.ramp = Array.from({ length: 33 }, (_, i) => mix(i / 32));
  }
  return palette;
}

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function mix(share) {
  const stops = ["safe", "middle", "costly"].map((name) => channels(style(name)));
  const [from, to] = share < 0.5 ? [stops[0], stops[1]] : [stops[1], stops[2]];
  const part = share < 0.5 ? 2 * share : 2 * share - 1;
  return `rgb(${from.map((value, i) => Math.round(value + part * (to[i] - value))).join(" ")})`;
}

/** From no cost to the largest cost. */
export function costColour(cost, most) {
  const ramp = colours().ramp;
  return ramp[Math.round((ramp.length - 1) * Math.min(1, Math.max(0, most > 0 ? cost / most : 0)))];
}

/** A cleared 2D context in CSS pixels, sharp on every screen. */
export function prepare(canvas) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.lineCap = context.lineJoin = "round";
  return { context, width, height };
}

/** Round numbers between low and high, about `count` of them. */
export function niceTicks(low, high, count = 4) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + 1e-9 * step; at += step) ticks.push(+at.toPrecision(12));
  return ticks;
}

/** A number as short as it can be read. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return String(+value.toFixed(1));
  return String(+value.toFixed(size >= 1 ? 2 : 3));
}

export function line(context, points) {
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
}

export function dot(context, x, y, radius, fill, edge) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  if (fill) { context.fillStyle = fill; context.fill(); }
  if (edge) { context.strokeStyle = edge; context.stroke(); }
}
