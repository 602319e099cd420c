// Reward and cost over the threshold (evaluated curves, this episode, finished ones), and the budget over time.

import { colours, dot, line, niceTicks, prepare, short } from "./paint.js";

/** `sides`: [{index, range, curve, threshold, reward, cost, episodes}]; `quantity` is "reward" or "cost".
 *  `tops` remembers the largest value of each, so that a new episode does not move the axis. */
export function drawChart(canvas, sides, quantity, tops) {
  const { context, width, height } = prepare(canvas);
  if (!sides.length) return;
  const c = colours();
  const [left, right, top, bottom] = [40, width - 12, 8, height - 24];
  const low = Math.min(...sides.map((side) => side.range[0]));
  const high = Math.max(...sides.map((side) => side.range[1]));
  const values = sides.flatMap((side) => [side[quantity], ...side.curve.map((p) => p[quantity]), ...side.episodes.map((e) => e[quantity])]);
  if (quantity === "cost") values.push(high);
  const floor = Math.min(0, ...values), ceiling = Math.max(...values, tops[quantity] ?? 0, floor + 1e-6);
  tops[quantity] = ceiling;
  const roof = ceiling + 0.06 * (ceiling - floor);
  const px = (threshold) => left + ((threshold - low) / (high - low)) * (right - left);
  const py = (value) => bottom - ((value - floor) / (roof - floor)) * (bottom - top);

  context.save();
  context.beginPath();
  context.rect(left - 8, top - 8, right - left + 16, bottom - top + 16);
  context.clip();
  if (quantity === "cost") {
    context.fillStyle = c.forbidden;
    context.beginPath();
    for (const [x, y] of [[low, low], [high, high], [high, roof], [low, roof]]) context.lineTo(px(x), py(y));
    context.fill();
  }
  context.restore();
  drawAxes(context, { px, py, low, high, floor, roof, left, right, bottom });
  if (quantity === "cost") {
    context.strokeStyle = c.soft;
    context.lineWidth = 1.5;
    context.setLineDash([5, 4]);
    line(context, [[px(low), py(low)], [px(high), py(high)]]);
    context.setLineDash([]);
  }

  const shared = sides.length > 1 && sides[0].actor === sides[1].actor;
  for (const side of sides) {
    const colour = c.sides[side.index];
    context.strokeStyle = shared ? c.soft : colour;
    context.lineWidth = 2;
    if (side.curve.length) line(context, side.curve.map((p) => [px(p.threshold), py(p[quantity])]));
    context.globalAlpha = 0.45;
    for (const episode of side.episodes) dot(context, px(episode.threshold), py(episode[quantity]), 3, colour);
    context.globalAlpha = 1;
  }
  for (const side of sides) {
    const colour = c.sides[side.index], x = px(side.threshold);
    context.lineWidth = 1;
    context.globalAlpha = 0.5;
    context.strokeStyle = colour;
    line(context, [[x, top], [x, bottom]]);
    context.globalAlpha = 1;
    context.lineWidth = 2;
    const expected = interpolate(side.curve, side.threshold, quantity);
    if (expected !== null) dot(context, x, py(expected), 5.5, colour, c.card);
    context.lineWidth = 2.5;
    dot(context, x, py(side[quantity]), 5, c.card, colour);
  }
}

function drawAxes(context, { px, py, low, high, floor, roof, left, right, bottom, ticks = 4 }) {
  const c = colours();
  context.font = "11.5px system-ui, sans-serif";
  context.fillStyle = c.soft;
  context.lineWidth = 1;
  context.textAlign = "right";
  for (const tick of niceTicks(floor, roof, ticks)) {
    context.strokeStyle = c.rule;
    line(context, [[left, py(tick)], [right, py(tick)]]);
    context.fillText(short(tick), left - 7, py(tick) + 4);
  }
  context.textAlign = "center";
  for (const tick of niceTicks(low, high, 4)) context.fillText(short(tick), px(tick), bottom + 17);
}

/** What is left of the threshold at each step of `side`, beside an even pace (dotted). `top` is the highest threshold
 *  on the page, so that sides compare; `limits` has the threshold of each step, since the dial may be turned. */
export function drawBudget(canvas, { scene, costs, limits, threshold, index }, top) {
  const { context, width, height } = prepare(canvas);
  const c = colours();
  const rows = [[0, limits[0] ?? threshold]];
  let spent = 0;
  costs.forEach((cost, t) => {
    // Turned between two steps, the budget jumps before the next one.
    if (limits[t] !== limits[t - 1]) rows.push([t, limits[t] - spent]);
    spent += cost;
    rows.push([t + 1, limits[t] - spent]);
  });
  if (threshold !== (limits[limits.length - 1] ?? threshold)) rows.push([costs.length, threshold - spent]);
  const floor = Math.min(0, ...rows.map((row) => row[1]));
  const [left, right, above, below] = [30, width - 14, 6, height - 18];
  const px = (step) => left + (step / scene.episode_length) * (right - left);
  const py = (value) => below - ((value - floor) / (1.05 * top - floor)) * (below - above);

  context.fillStyle = c.forbidden;
  if (floor < 0) context.fillRect(left, py(0), right - left, py(floor) - py(0));
  drawAxes(context, { px, py, low: 0, high: scene.episode_length, floor, roof: 1.05 * top, left, right, bottom: below, ticks: 3 });
  context.strokeStyle = c["forbidden-edge"];
  context.lineWidth = 1.5;
  line(context, [[left, py(0)], [right, py(0)]]);
  const [step, now] = rows[rows.length - 1];
  context.strokeStyle = c.guide;
  context.setLineDash([2, 4]);
  if (now > 0) line(context, [[px(step), py(now)], [right, py(0)]]);
  context.setLineDash([]);
  context.lineWidth = 2.5;
  context.strokeStyle = c.sides[index];
  line(context, rows.map(([at, value]) => [px(at), py(value)]));
  context.lineWidth = 2;
  dot(context, px(step), py(now), 5, now < 0 ? c.costly : c.sides[index], c.card);
}

/** The curve at a threshold, or null outside it. */
export function interpolate(curve, threshold, quantity) {
  for (let i = 1; i < curve.length; i += 1) {
    const [a, b] = [curve[i - 1], curve[i]];
    if (threshold >= a.threshold && threshold <= b.threshold) {
      const share = (threshold - a.threshold) / (b.threshold - a.threshold || 1);
      return a[quantity] + share * (b[quantity] - a[quantity]);
    }
  }
  return null;
}
