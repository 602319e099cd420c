// The page: one socket, one or two sides, and the controls.

import { drawBudget, drawChart } from "./charts.js";
import { niceTicks, short } from "./paint.js";
import { drawStage } from "./stage.js";

const $ = (id) => document.getElementById(id);
const HOLD = 1600;        // how long a finished episode stays, in ms
const RETRY = 1500;
const NARROW = 700;
const UNWATCHED = 4000, TOO_MANY = 1013;

const state = { welcome: null, sides: [], seed: 0, start: 0, paused: false, received: 0, drawn: 0, dirty: true, next: null, most: 0, tops: {} };
let socket = null;

function connect() {
  socket = new WebSocket(`ws://${location.host}/live${location.search}`);
  socket.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  socket.addEventListener("close", closed);
}

function send(message) {
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function closed(event) {
  state.received = state.drawn = 0;
  if (event.code === UNWATCHED && document.hidden) {
    document.addEventListener("visibilitychange", connect, { once: true });
    return;
  }
  notify(event.code === TOO_MANY ? event.reason : "The playground does not answer. Is 'ccpo play' still running?");
  setTimeout(connect, event.code === TOO_MANY ? 5 * RETRY : RETRY);
}

function notify(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

const handlers = {
  welcome(message) {
    notify("");
    const first = !state.welcome;
    state.welcome = message;
    if (first) {
      for (const speed of message.speeds) $("speed").add(new Option(`${speed}×`, speed, speed === 1, speed === 1));
      $("compare").checked = message.compare || innerWidth >= NARROW;
      makeSides(defaultActors());
    }
    send({ type: "speed", value: Number($("speed").value) });
    send({ type: "pause", paused: state.paused });
    open();
  },
  start(message) {
    if (String(message.actors) !== String(state.sides.map((side) => side.actor))) return; // asked for before the sides changed
    for (const [i, side] of state.sides.entries()) {
      const same = message.seed === state.shownSeed && side.places.length > 1;
      side.ghost = same ? side.places : null;
      Object.assign(side, { places: [message.places[i]], bodies: message.bodies[i], actions: [], costs: [], limits: [], cost: 0, reward: 0, length: 0, ended: null, steady: true });
      side.started = side.threshold;
      side.view.querySelector(".verdict").hidden = true;
    }
    state.start = message.start;
    state.shownSeed = message.seed;
    clearTimeout(state.next);
    state.next = null;
  },
  frame(message) {
    if (message.start !== state.start) return;
    message.sides.forEach((news, i) => update(state.sides[i], news));
    if (state.sides.every((side) => side.ended) && !state.next) finish();
  },
  heartbeat() {},
  error(message) { notify(message.message); setTimeout(notify, 4000, ""); },
};

function receive(message) {
  state.received = message.number;
  handlers[message.type](message);
  state.dirty = true;
}

function update(side, news) {
  for (const moment of news.moments) {
    side.places.push(moment.place);
    side.actions.push(moment.action);
    side.costs.push(moment.cost);
    side.limits.push(news.threshold);
    state.most = Math.max(state.most, moment.cost);
  }
  if (news.threshold !== side.started && news.moments.length) side.steady = false;
  const ended = news.ended && !side.ended;
  Object.assign(side, { bodies: news.bodies, cost: news.cost, reward: news.reward, length: news.length, ended: news.ended });
  if (ended) conclude(side);
  if (news.monitor) promise(side, news.monitor);
}

/** Keep a finished episode for the charts, if its threshold stood still. */
function conclude(side) {
  if (side.steady) {
    side.episodes.push({ threshold: side.threshold, reward: side.reward, cost: side.cost });
    if (side.episodes.length > 200) side.episodes.shift();
  }
  const excess = side.cost - side.threshold;
  const verdict = side.view.querySelector(".verdict");
  verdict.textContent = `${side.ended === "terminated" ? "ended early, " : ""}${excess > 1e-9 ? `${short(excess)} above the threshold` : "within the threshold"}`;
  verdict.classList.toggle("exceeded", excess > 1e-9);
  verdict.hidden = false;
}

/** What the page's episodes say of the promise: intervals that hold whenever one looks, and alarms. */
function promise(side, monitor) {
  const line = side.view.querySelector(".promise");
  const percent = (share) => `${Math.round(100 * share)} %`;
  const told = { refuted: "promise refuted", drift: "cost drifts" };
  const parts = [`${monitor.episodes} episode${monitor.episodes === 1 ? "" : "s"} at ${short(side.threshold)}`];
  if (monitor.cost) {
    const [low, mean, high] = monitor.cost;
    parts.push(`mean cost ${short(mean)} (${short(low)} to ${high === null ? "?" : short(high)})`);
    parts.push(`beyond it ${percent(monitor.rate[1])} (${percent(monitor.rate[0])} to ${percent(monitor.rate[2])})`);
  }
  line.textContent = [...parts, ...monitor.alarms.map((kind) => told[kind])].join(" · ");
  line.classList.toggle("exceeded", monitor.alarms.length > 0);
  line.hidden = false;
}

function finish() {
  const spoken = state.sides.map((side) => `Threshold ${short(side.threshold)}: cost ${short(side.cost)}, reward ${short(side.reward)}`);
  $("announcer").textContent = spoken.join(". ");
  state.next = setTimeout(function next() {
    if (state.paused) state.next = setTimeout(next, HOLD);
    else restart(state.seed + 1);
  }, HOLD);
}

function defaultActors() {
  const { actors, compare } = state.welcome;
  return $("compare").checked ? [0, compare && actors[1]?.task === actors[0].task ? 1 : 0] : [0];
}

function makeSides(chosen) {
  const old = state.sides;
  state.sides = chosen.map((actor, index) => {
    const side = { index, actor, places: [], bodies: [], actions: [], costs: [], limits: [], episodes: [], cost: 0, reward: 0, length: 0 };
    const { range, task } = state.welcome.actors[actor];
    const kept = old[index]?.actor === actor ? old[index] : null;
    const share = chosen.length > 1 ? [1 / 6, 5 / 6][index] : 0.5;
    side.step = niceStep((range[1] - range[0]) / 50);
    side.threshold = kept ? kept.threshold : snap(range[0] + share * (range[1] - range[0]), range, 5 * side.step);
    side.episodes = kept ? kept.episodes : [];
    side.scene = state.welcome.scenes[task];
    return side;
  });
  // Colours are relative to the pace at which the largest threshold is spent, and to the dearest step yet.
  const spendable = Math.max(...state.sides.map((side) => actorOf(side).range[1] / side.scene.episode_length));
  state.most = state.sides[0].scene.kind === "timeline" ? spendable : 1;
  state.tops = {};
  state.start = null; // frames of the sides that were are not drawn on these
  $("sides").replaceChildren(...state.sides.map(makeView));
  $("sides").classList.toggle("alone", chosen.length === 1);
  const task = state.welcome.actors[chosen[0]].task;
  $("task").textContent = task.replace(/(Circle|Run|Velocity)\b/, "-$1");
  document.title = `${$("task").textContent} · ccpo playground`;
  $("legend-curve").hidden = !state.sides.some((side) => actorOf(side).curve.length);
  state.sides.forEach(showThreshold);
}

/** Wider than high, seen from above: the rest is drawn in a square. */
const isWide = ({ kind, bounds }) => kind === "above" && bounds[0][1] - bounds[0][0] > 1.1 * (bounds[1][1] - bounds[1][0]);

const actorOf = (side) => state.welcome.actors[side.actor];

function niceStep(raw) {
  const power = 10 ** Math.floor(Math.log10(raw));
  return +(power * [5, 2, 1].find((factor) => factor * power <= raw * 1.001)).toPrecision(3);
}

function snap(value, [low, high], step) {
  return Math.min(high, Math.max(low, +(low + Math.round((value - low) / step) * step).toPrecision(10)));
}

function makeView(side) {
  const view = $("side").content.firstElementChild.cloneNode(true);
  const { range, task, behaviour_thresholds: trained, closed_loop: closed } = actorOf(side);
  const letter = "AB"[side.index];
  side.view = view;
  view.style.setProperty("--own", `var(--side-${side.index})`);
  view.querySelector(".badge").textContent = letter;
  view.querySelector(".stage").classList.add(`seen-${side.scene.kind}`);
  view.querySelector(".stage").classList.toggle("wide", isWide(side.scene));
  view.querySelector(".stage canvas").setAttribute("aria-label", `Side ${letter}, ${task}`);
  view.querySelector(".budget canvas").setAttribute("aria-label", `Side ${letter}, budget left over the steps`);
  view.querySelector(".sees").textContent = closed ? "" : "the policy does not see it";
  fillActors(view.querySelector(".actor"), side);
  const slider = view.querySelector(".slider");
  Object.assign(slider, { min: range[0], max: range[1], step: side.step, value: side.threshold });
  slider.setAttribute("aria-label", state.sides.length > 1 ? `Threshold of ${letter}` : "Threshold");
  slider.addEventListener("input", () => turn(side, Number(slider.value)));
  for (const value of new Set([range[0], ...(trained.length ? trained : niceTicks(...range)), range[1]])) {
    const tick = document.createElement("span");
    tick.textContent = short(value);
    if (trained.includes(value)) Object.assign(tick, { className: "trained", title: "trained at this threshold" });
    tick.style.left = `${(100 * (value - range[0])) / (range[1] - range[0])}%`;
    view.querySelector(".ticks").append(tick);
  }
  return view;
}

/** The first side chooses among all, grouped by task; the second among those of the same task. */
function fillActors(select, side) {
  const { actors } = state.welcome;
  const tasks = side.index ? [actors[state.sides[0].actor].task] : [...new Set(actors.map((actor) => actor.task))];
  for (const task of tasks) {
    const group = document.createElement("optgroup");
    group.label = task;
    actors.forEach((actor, i) => actor.task === task && group.append(new Option(actor.name, i, i === side.actor, i === side.actor)));
    select.append(group);
  }
  select.addEventListener("change", () => {
    const chosen = state.sides.map((other) => other.actor);
    chosen[side.index] = Number(select.value);
    if (chosen.length > 1 && actors[chosen[0]].task !== actors[chosen[1]].task) chosen[1] = chosen[0];
    makeSides(chosen);
    open();
  });
}

function turn(side, value) {
  side.threshold = snap(value, actorOf(side).range, side.step);
  send({ type: "threshold", side: side.index, value: side.threshold });
  showThreshold(side);
}

function showThreshold(side) {
  const [low, high] = actorOf(side).range;
  const slider = side.view.querySelector(".slider");
  const share = (side.threshold - low) / (high - low);
  slider.value = side.threshold;
  slider.style.setProperty("--filled", `calc(12px + ${share} * (100% - 24px))`);
  side.view.querySelector(".threshold").textContent = short(side.threshold);
  side.view.querySelector(".of").textContent = ` of ${short(side.threshold)}`;
  state.dirty = true;
}

function open() {
  send({ type: "open", actors: state.sides.map((side) => side.actor), thresholds: state.sides.map((side) => side.threshold), seed: state.seed });
}

function restart(seed) {
  state.seed = seed;
  send({ type: "restart", seed });
}

function pause(paused) {
  state.paused = paused;
  $("pause").classList.toggle("paused", paused);
  $("pause").querySelector("span").textContent = paused ? "Play" : "Pause";
  send({ type: "pause", paused });
}

function compare(on) {
  $("compare").checked = on;
  const chosen = state.sides.map((side) => side.actor);
  makeSides(on ? [chosen[0], chosen[0]] : [chosen[0]]);
  open();
}

function changeSpeed(by) {
  const select = $("speed");
  select.selectedIndex = Math.min(select.options.length - 1, Math.max(0, select.selectedIndex + by));
  send({ type: "speed", value: Number(select.value) });
}

function oneStep() {
  pause(true);
  send({ type: "step" });
}

$("pause").addEventListener("click", () => pause(!state.paused));
$("restart").addEventListener("click", () => restart(state.seed));
$("new-start").addEventListener("click", () => restart(state.seed + 1));
$("compare").addEventListener("change", () => compare($("compare").checked));
$("speed").addEventListener("change", () => changeSpeed(0));

const keys = {
  " ": () => pause(!state.paused),
  r: () => restart(state.seed),
  n: () => restart(state.seed + 1),
  c: () => compare(!$("compare").checked),
  "+": () => changeSpeed(1),
  "=": () => changeSpeed(1),
  "-": () => changeSpeed(-1),
  ".": oneStep,
  ArrowRight: () => turn(state.sides[0], state.sides[0].threshold + state.sides[0].step),
  ArrowLeft: () => turn(state.sides[0], state.sides[0].threshold - state.sides[0].step),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !state.welcome) return;
  const owner = event.target.closest("select, button, input, [contenteditable]");
  const own = { SELECT: () => true, BUTTON: (key) => key === " ", INPUT: (key) => (event.target.type === "range" ? key.startsWith("Arrow") : key === " ") };
  const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action || (owner && own[owner.tagName]?.(event.key))) return;
  event.preventDefault();
  action();
});

function show(side) {
  const { view, threshold, cost } = side;
  const top = Math.max(...state.sides.flatMap((each) => [each.threshold, ...each.limits]));
  drawBudget(view.querySelector(".budget canvas"), side, top);
  view.querySelector(".left").textContent = short(threshold - cost);
  view.querySelector(".spending").classList.toggle("exceeded", cost > threshold + 1e-9);
  view.querySelector(".cost").textContent = short(cost);
  view.querySelector(".reward").textContent = short(side.reward);
  view.querySelector(".step").textContent = side.length;
  view.querySelector(".steps").textContent = ` of ${side.scene.episode_length}`;
  drawStage(view.querySelector(".stage canvas"), { ...side, most: state.most });
}

function draw() {
  if (state.dirty && state.welcome) {
    state.sides.forEach(show);
    const charted = state.sides.map((side) => ({ ...side, ...actorOf(side) }));
    drawChart($("reward-chart"), charted, "reward", state.tops);
    drawChart($("cost-chart"), charted, "cost", state.tops);
    state.dirty = false;
  }
  // Only what was drawn is confirmed: in a hidden tab nothing is, and the session rests.
  if (state.drawn !== state.received) {
    state.drawn = state.received;
    send({ type: "seen", number: state.drawn });
  }
  requestAnimationFrame(draw);
}

addEventListener("resize", () => { state.dirty = true; });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { state.dirty = true; });
connect();
draw();
