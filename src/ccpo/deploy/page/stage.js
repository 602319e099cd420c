// One side's picture: the task from above or from the side, or a timeline for a task without a space.

import { colours, costColour, dot, line, niceTicks, prepare, short } from "./paint.js";

/** Draw a side: {scene, places, bodies, actions, costs, ghost, index, most}; `places` has one entry more than `costs`. */
export function drawStage(canvas, side) {
  const surface = prepare(canvas);
  if (side.scene.kind === "timeline") drawTimeline(surface, side);
  else if (side.scene.kind === "side") drawFromTheSide(surface, side);
  else drawFromAbove(surface, side);
}

/** The bodies now, on a ground that moves below them, and the speed of every step against its limit. */
function drawFromTheSide({ context, width, height }, { scene, places, bodies, costs, ghost, index }) {
  const c = colours();
  const split = 0.62 * height, [left, right, top, bottom] = [40, width - 16, split + 26, height - 22];
  const [[near, far], [low, high]] = scene.bounds;
  const scale = Math.min(width / (far - near), split / (high - low));
  const x = places.length ? places[places.length - 1][0] : 0;
  const px = (at) => width / 2 + (at - x - (near + far) / 2) * scale;
  // Who leaves the picture upwards or downwards takes it along.
  const z = bodies.length ? bodies[0][1] : 0, edge = 0.2 * (high - low);
  const lift = Math.max(0, z - high + edge) + Math.min(0, z - low - edge);
  const pz = (at) => split - (at - lift - low) * scale;
  context.fillStyle = c.paper;
  context.fillRect(0, 0, width, height);
  drawGround(context, { x, width, split, scale, px, pz });

  const costly = costs.length > 0 && costs[costs.length - 1] > 0;
  context.strokeStyle = costly ? c.costly : c.sides[index];
  for (const [x0, z0, x1, z1, radius] of bodies) {
    context.lineWidth = Math.max(3, 2 * radius * scale);
    line(context, [[px(x0), pz(z0)], [px(x1) + 0.01, pz(z1)]]); // a line without length, for a ball, is not drawn
  }

  const speeds = [...places, ...(ghost || [])].map((place) => place[1]);
  const floor = Math.min(0, ...speeds), roof = Math.max(2 * scene.speed_limit, ...speeds);
  const pt = (step) => left + (step / scene.episode_length) * (right - left);
  const pv = (speed) => bottom - ((speed - floor) / (roof - floor)) * (bottom - top);
  context.fillStyle = c.forbidden;
  context.fillRect(left, top, right - left, pv(scene.speed_limit) - top);
  context.lineWidth = 1;
  context.font = "11.5px system-ui, sans-serif";
  context.fillStyle = c.soft;
  context.textAlign = "right";
  for (const tick of niceTicks(floor, roof, 3)) {
    context.strokeStyle = c.rule;
    line(context, [[left, pv(tick)], [right, pv(tick)]]);
    context.fillText(short(tick), left - 6, pv(tick) + 4);
  }
  context.textAlign = "center";
  for (const tick of niceTicks(0, scene.episode_length, 4)) context.fillText(short(tick), pt(tick), height - 6);
  context.textAlign = "left";
  context.fillText(`speed in m/s; above ${short(scene.speed_limit)} a step costs`, left, top - 8);
  context.strokeStyle = c["forbidden-edge"];
  context.lineWidth = 1.5;
  line(context, [[left, pv(scene.speed_limit)], [right, pv(scene.speed_limit)]]);
  const at = ([, speed], step) => [pt(step), pv(speed)];
  if (ghost) {
    context.globalAlpha = 0.35;
    context.strokeStyle = c.guide;
    line(context, ghost.map(at));
    context.globalAlpha = 1;
  }
  context.lineWidth = 1.5;
  strokeByCost(context, places.map(at), costs, 1);
  if (places.length) dot(context, ...at(places[places.length - 1], places.length - 1), 5, c.sides[index], c.card);
}

/** A line at height 0, and one at every metre that is seen. */
function drawGround(context, { x, width, split, scale, px, pz }) {
  const c = colours();
  context.lineWidth = 1;
  context.font = "11.5px system-ui, sans-serif";
  context.textAlign = "center";
  const reach = width / 2 / scale;
  for (let metre = Math.ceil(x - reach); metre <= x + reach; metre += 1) {
    context.strokeStyle = c.rule;
    line(context, [[px(metre), 0], [px(metre), split]]);
    context.fillStyle = c.soft;
    context.fillText(`${metre} m`, px(metre), 14);
  }
  context.strokeStyle = c.guide;
  line(context, [[0, pz(0)], [width, pz(0)]]);
}

function drawFromAbove({ context, width, height }, { scene, places, costs, ghost, index }) {
  const c = colours();
  let [[left, right], [bottom, top]] = scene.bounds;
  for (const [x, y] of places) {
    [left, right] = [Math.min(left, x - 0.4), Math.max(right, x + 0.4)];
    [bottom, top] = [Math.min(bottom, y - 0.4), Math.max(top, y + 0.4)];
  }
  const scale = Math.min(width / (right - left), height / (top - bottom));
  const px = (x) => width / 2 + (x - (left + right) / 2) * scale;
  const py = (y) => height / 2 - (y - (bottom + top) / 2) * scale;

  context.fillStyle = c.paper;
  context.fillRect(0, 0, width, height);
  drawLimits(context, { width, height, px, py, scene });
  if (scene.circle_radius !== null) {
    context.strokeStyle = c.guide;
    context.lineWidth = 1.2;
    context.setLineDash([1.5, 5]);
    dot(context, px(0), py(0), scene.circle_radius * scale, null, c.guide);
    context.setLineDash([]);
  }

  const at = ([x, y]) => [px(x), py(y)];
  if (ghost) {
    context.globalAlpha = 0.4;
    context.strokeStyle = c.guide;
    context.lineWidth = 2;
    line(context, ghost.map(at));
    context.globalAlpha = 1;
  }
  context.lineWidth = 3.2;
  strokeByCost(context, places.map(at), costs, 1);
  if (places.length === 0) return;
  context.lineWidth = 2;
  dot(context, ...at(places[0]), 4, c.card, c.ink);
  const [x, y] = at(places[places.length - 1]);
  if (costs.length && costs[costs.length - 1] > 0) dot(context, x, y, 15, null, c.costly);
  dot(context, x, y, 9, c.sides[index], c.card);
}

function drawLimits(context, { width, height, px, py, scene }) {
  const c = colours();
  const bands = [];
  if (scene.x_limit !== null) {
    bands.push([0, 0, px(-scene.x_limit), height], [px(scene.x_limit), 0, width - px(scene.x_limit), height]);
  }
  if (scene.y_limit !== null) {
    bands.push([0, 0, width, py(scene.y_limit)], [0, py(-scene.y_limit), width, height - py(-scene.y_limit)]);
  }
  context.fillStyle = c.forbidden;
  for (const band of bands) context.fillRect(...band);
  context.strokeStyle = c["forbidden-edge"];
  context.lineWidth = 1.5;
  if (scene.x_limit !== null) for (const x of [px(-scene.x_limit), px(scene.x_limit)]) line(context, [[x, 0], [x, height]]);
  if (scene.y_limit !== null) for (const y of [py(-scene.y_limit), py(scene.y_limit)]) line(context, [[0, y], [width, y]]);
  context.fillStyle = c.soft;
  context.font = "12px system-ui, sans-serif";
  if (scene.speed_limit !== null) context.fillText(`costs outside the lane and above speed ${short(scene.speed_limit)}`, 10, 18);
}

/** Runs of equal colour become one stroke: a long path stays cheap. */
function strokeByCost(context, points, costs, most) {
  let from = 0;
  while (from < costs.length) {
    const colour = costColour(costs[from], most);
    let to = from + 1;
    while (to < costs.length && costColour(costs[to], most) === colour) to += 1;
    context.strokeStyle = colour;
    line(context, points.slice(from, to + 1));
    from = to;
  }
}

function drawTimeline({ context, width, height }, { scene, places, actions, costs, index, most }) {
  const c = colours();
  const [left, right, top] = [40, width - 16, 26];
  const split = height * 0.68, base = height - 24;
  const values = [...places, ...actions].flat();
  const low = Math.min(-1.05, ...values), high = Math.max(1.05, ...values);
  const px = (step) => left + (step / scene.episode_length) * (right - left);
  const py = (value) => split - ((value - low) / (high - low)) * (split - top);

  context.fillStyle = c.paper;
  context.fillRect(0, 0, width, height);
  context.font = "11.5px system-ui, sans-serif";
  context.lineWidth = 1;
  context.textAlign = "right";
  for (const tick of niceTicks(low, high, 4)) {
    context.strokeStyle = c.rule;
    line(context, [[left, py(tick)], [right, py(tick)]]);
    context.fillStyle = c.soft;
    context.fillText(short(tick), left - 6, py(tick) + 4);
  }
  context.strokeStyle = c.guide;
  line(context, [[left, base], [right, base]]);
  context.textAlign = "center";
  for (const tick of niceTicks(0, scene.episode_length, 4)) context.fillText(short(tick), px(tick), base + 16);
  context.textAlign = "left";
  context.fillText(width > 250 ? "action, coloured by its cost; observation in grey" : "action, observation", left, top - 11);
  context.fillText("cost per step", left, split + 18);

  context.globalAlpha = 0.55;
  context.strokeStyle = c.guide;
  for (let i = 0; i < (places[0] || []).length; i += 1) line(context, places.map((place, t) => [px(t), py(place[i])]));
  context.globalAlpha = 1;

  context.lineWidth = 3;
  for (let i = 0; i < (actions[0] || []).length; i += 1) {
    const points = [actions[0], ...actions].map((action, t) => [px(t), py(action[i])]);
    strokeByCost(context, points, costs, most);
    context.lineWidth = 2;
    dot(context, ...points[points.length - 1], 6, c.sides[index], c.card);
    context.lineWidth = 3;
  }

  const room = base - split - 26, bar = (right - left) / scene.episode_length + 0.3;
  costs.forEach((cost, t) => {
    const tall = most > 0 ? (cost / most) * room : 0;
    context.fillStyle = costColour(cost, most);
    context.fillRect(px(t), base - tall, bar, tall);
  });
}
