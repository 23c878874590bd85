// The script of fsdp-eval --html. Text of runs only ever becomes text nodes and attributes, never HTML.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const part = (id) => document.getElementById(id);

// --- Elements --------------------------------------------------------------------------------------------------------

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const color = (run) => `var(--run${run % 10})`;
const dash = (run) => (runs[run].dash[1] > 0
  ? `stroke-dasharray:${runs[run].dash[0]} ${runs[run].dash[1]};stroke-dashoffset:${runs[run].dash[2]}` : "");
const swatch = (run) => draw("svg", {class: "swatch", viewBox: "0 0 24 10", "aria-hidden": "true"},
  draw("line", {x1: 0, x2: 24, y1: 5, y2: 5, style: `stroke:${color(run)};stroke-width:3;stroke-dasharray:${dash(run) ? "6 3" : "none"}`}));
/** Words that keep together where a line is broken: options and paths have hyphens. */
const words = (text) => text.split(" ").flatMap((word, i) => [i > 0 ? " " : "", make("span", {class: "word"}, word)]);
const say = (text) => { part("live").textContent = text; };

// --- Numbers ---------------------------------------------------------------------------------------------------------

const separated = (x, digits = 0) =>
  x.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 4});
function value_text(x, unit) {
  if (unit === "nats per token") return separated(x, 4);
  if (unit === "%") return separated(x, 1) + " %";
  if (unit === "GiB") return separated(x, 2) + " GiB";
  if (unit === "MiB" || unit === "tokens/s") return separated(x) + (unit === "MiB" ? " MiB" : "");
  return String(Number(x.toPrecision(4)));
}
const x_units = {step: ["step", 1], tokens: ["tokens", 1]};
const longest = runs.reduce((longest, run) => Math.max(longest, run.curves.x.seconds.at(-1) ?? 0), 1);
x_units.seconds = longest < 180 ? ["seconds", 1] : longest < 10800 ? ["minutes", 60] : ["hours", 3600];
function x_text(x, exactly) {
  const scaled = x / x_units[state.x][1];
  if (state.x === "seconds") return exactly ? separated(scaled, 2) : String(Number(scaled.toPrecision(6)));
  return exactly || scaled < 1e5 ? separated(Math.round(scaled * 100) / 100, scaled % 1 && !exactly ? 1 : 0) : compact.format(scaled);
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** About `count` round numbers within [low, high]. */
function ticks(low, high, count, log) {
  const all = [];
  if (log) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power)
      for (const digit of [1, 2, 5]) all.push(digit * 10 ** power);
    const inside = all.filter((x) => x >= low * 0.999 && x <= high * 1.001);
    if (inside.length > 2 && inside.length <= 2 * count) return inside;
    const decades = inside.filter((x) => Math.abs(Math.log10(x) % 1) < 1e-9);
    if (decades.length > 2) return decades;
    all.length = 0;
  }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9), end = high + 1e-9 * (high - low);
  for (let i = 0; i <= 2 * count && (first + i) * step <= end; ++i) all.push(Number(((first + i) * step).toPrecision(15)));
  return all;
}

// --- State, which is kept in the address, so that it outlives a renewed page --------------------------------------------

const state = {x: "step", log: false, smooth: true, hidden: [], zoom: null, sort: null, paused: false};
try { Object.assign(state, JSON.parse(decodeURIComponent(location.hash.slice(1)))); } catch { /* a new page */ }
if (!x_units[state.x]) state.x = "step";
if (!Array.isArray(state.hidden)) state.hidden = [];
if (!Array.isArray(state.zoom) || !(state.zoom[0] < state.zoom[1])) state.zoom = null;
function keep() {
  try { history.replaceState(null, "", "#" + encodeURIComponent(JSON.stringify(state))); } catch { /* within a frame */ }
}

// --- Curves ----------------------------------------------------------------------------------------------------------

/** Means over neighbours; the window is short at both ends, where it would lag. */
function smoothed(values) {
  const half = Math.round(values.length / 60);
  if (half < 1 || values.length < 20) return null;
  return values.map((value, i) => {
    const reach = Math.min(half, i, values.length - 1 - i);
    const near = values.slice(i - reach, i + reach + 1).filter((x) => x !== null);
    return value === null ? null : near.reduce((sum, x) => sum + x, 0) / near.length;
  });
}

function curve_of(run, panel) {
  const curve = runs[run].curves[panel.key];
  if (!curve || curve.mean.every((x) => x === null)) return null;
  const scaled = (values) => values?.map((x) => (x === null ? null : x * panel.factor));
  curve.cache ??= {mean: scaled(curve.mean), low: scaled(curve.low), high: scaled(curve.high),
    smooth: panel.smooths ? smoothed(scaled(curve.mean)) : null};
  return {run, x: (curve.x ?? runs[run].curves.x)[state.x], ...curve.cache};
}

const drawn_runs = () => runs.map((_, run) => run).filter((run) => !state.hidden.includes(run));
function whole_domain() {
  let low = Infinity, high = -Infinity;
  for (const run of drawn_runs()) {
    const x = runs[run].curves.x[state.x];
    if (x.length === 0) continue;
    low = Math.min(low, x[0]);
    high = Math.max(high, x.at(-1));
  }
  if (state.x !== "step") low = 0;
  if (!(low <= high)) return [0, 1];
  const room = Math.max(1, high * 1e-12);  // 1 is nothing beside 2^53
  return low < high ? [low, high] : [low - room, high + room];
}
const domain = () => state.zoom ?? whole_domain();

function zoom_to(low, high) {
  const [first, last] = whole_domain();
  const shortest = (last - first) / 2000;
  low = Math.max(first, low);
  high = Math.min(last, high);
  if (high - low < shortest) return;
  state.zoom = low <= first && high >= last ? null : [low, high];
  draw_all();
  say(`From ${x_text(domain()[0], true)} to ${x_text(domain()[1], true)} ${x_units[state.x][0]}`);
}
function zoom_by(factor, around) {
  const [low, high] = domain();
  const middle = around ?? (low + high) / 2;
  zoom_to(middle - (middle - low) * factor, middle + (high - middle) * factor);
}
function move_by(share) {
  const [low, high] = domain(), [first, last] = whole_domain();
  const way = Math.max(first - low, Math.min(last - high, share * (high - low)));
  if (way !== 0) zoom_to(low + way, high + way);
}
function reset_zoom() {
  state.zoom = null;
  draw_all();
  say("All of the run");
}

class Chart {
  constructor(panel, size) {
    this.panel = panel;
    this.height = size === "large" || size === "alone" ? 300 : 200;
    this.tip = make("div", {class: "tip", hidden: ""});
    this.plot = make("div", {class: "plot", tabindex: 0, role: "group", "aria-describedby": "hint",
      "aria-label": `${panel.title}: picture with keys`, keydown: (event) => this.key(event),
      pointerdown: (event) => this.press(event), pointermove: (event) => this.move(event),
      pointerup: (event) => this.release(event), pointercancel: () => { this.from = null; this.leave(); },
      pointerleave: () => this.leave(), blur: () => this.leave(), dblclick: reset_zoom});
    this.plot.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
    this.values = make("details", {toggle: () => this.tabulate()}, make("summary", {}, "Values as a table"));
    this.figure = make("figure", {class: `card ${size}`, "data-key": panel.key},
      make("figcaption", {}, make("h3", {}, panel.title), make("span", {class: "faint"}, panel.unit)),
      this.plot, this.values);
  }

  draw() {
    this.width = Math.max(240, this.plot.clientWidth);
    this.curves = drawn_runs().map((run) => curve_of(run, this.panel)).filter((curve) => curve);
    [this.low, this.high] = domain();
    this.scale_y();
    const labels = this.log || this.top > 0 ? ticks(this.bottom, this.top, this.height / 45, this.log) : [];
    this.left = 12 + 6.8 * Math.max(2, most(labels.map((y) => this.label(y).length)));
    this.right = this.width - 10;
    const base = this.height - 34, svg = draw("svg", {viewBox: `0 0 ${this.width} ${this.height}`, role: "img",
      "aria-label": this.words()});
    for (const y of labels) {
      svg.append(draw("line", {class: "grid", x1: this.left, x2: this.right, y1: this.y(y), y2: this.y(y)}),
        draw("text", {x: this.left - 6, y: this.y(y) + 4, "text-anchor": "end"}, this.label(y)));
    }
    svg.append(draw("line", {class: "axis", x1: this.left, x2: this.right, y1: base, y2: base}));
    const unit = x_units[state.x];
    for (const x of ticks(this.low / unit[1], this.high / unit[1], Math.max(3, this.width / 95))) {
      if (state.x === "step" && x % 1) continue;
      const text = x_text(x * unit[1]), right = this.width - 3.6 * text.length;
      svg.append(draw("text", {x: Math.min(this.x(x * unit[1]), right), y: base + 17, "text-anchor": "middle"}, text));
    }
    svg.append(draw("text", {x: this.right, y: this.height - 3, "text-anchor": "end"}, unit[0]));
    const inside = draw("svg", {x: this.left - 5, y: 0, width: this.right - this.left + 10, height: base + 5,
      viewBox: `${this.left - 5} 0 ${this.right - this.left + 10} ${base + 5}`});
    for (const curve of this.curves) this.add_curve(inside, curve);
    this.cursor = draw("line", {class: "cursor", y1: 8, y2: base, visibility: "hidden"});
    this.chosen = draw("rect", {class: "chosen", y: 8, height: base - 8, width: 0});
    svg.append(inside, this.cursor, this.chosen);
    if (this.curves.length === 0)
      svg.append(draw("text", {x: this.width / 2, y: this.height / 2, "text-anchor": "middle"}, "nothing to draw"));
    this.plot.replaceChildren(svg, this.tip);
    this.tip.hidden = true;
    this.figure.dataset.domain = `${this.low} ${this.high}`;
    if (this.values.open) this.tabulate();
  }

  scale_y() {
    let low = Infinity, high = -Infinity;
    this.log = state.log;
    for (const curve of this.curves) {
      for (let i = 0; i < curve.x.length; ++i) {
        if (curve.mean[i] === null || curve.x[i] < this.low || curve.x[i] > this.high) continue;
        low = Math.min(low, curve.low?.[i] ?? curve.mean[i]);
        high = Math.max(high, curve.high?.[i] ?? curve.mean[i]);
      }
    }
    if (!(low <= high)) [low, high] = [0, 1];
    if (low <= 0) this.log = false;
    if (this.panel.from_zero && !this.log) low = Math.min(0, low);
    const room = this.log ? (high / low) ** 0.05 : Math.max((high - low) * 0.06, Math.abs(high) * 1e-3, 1e-9);
    [this.bottom, this.top] = this.log ? [low / Math.max(room, 1.01), high * Math.max(room, 1.01)]
      : [low === 0 || (low > 0 && low < room) ? 0 : low - room, high + room];
  }

  x(value) { return this.left + (value - this.low) / (this.high - this.low) * (this.right - this.left); }
  y(value) {
    const share = this.log ? Math.log(value / this.bottom) / Math.log(this.top / this.bottom)
      : (value - this.bottom) / (this.top - this.bottom);
    return this.height - 34 - share * (this.height - 42);
  }
  at(place) { return this.low + (place - this.left) / (this.right - this.left) * (this.high - this.low); }
  label(y) { return y >= 1e5 ? compact.format(y) : separated(Number(y.toPrecision(6)), Math.min(6, (String(Number(y.toPrecision(6))).split(".")[1] ?? "").length)); }

  path(curve, values) {
    let text = "", gap = true;
    for (let i = 0; i < curve.x.length; ++i) {
      if (values[i] === null || (this.log && values[i] <= 0)) { gap = true; continue; }
      text += `${gap ? "M" : "L"}${this.x(curve.x[i]).toFixed(1)} ${this.y(values[i]).toFixed(1)}`;
      gap = false;
    }
    return text;
  }

  add_curve(svg, curve) {
    const group = draw("g", {"data-run": curve.run});
    const smooth = state.smooth ? curve.smooth : null;
    if (curve.low && this.panel.smooths) {
      const back = {x: [...curve.x].reverse()};
      const there = curve.low.map((y) => y ?? null), edges = this.path(curve, there);
      if (!there.includes(null))
        group.append(draw("path", {class: "range", style: `fill:${color(curve.run)}`,
          d: edges + this.path(back, [...curve.high].reverse()).replace("M", "L") + "Z"}));
    }
    if (smooth) group.append(draw("path", {class: "raw", style: `stroke:${color(curve.run)}`, d: this.path(curve, curve.mean)}));
    group.append(draw("path", {class: "line", style: `stroke:${color(curve.run)};${dash(curve.run)}`,
      d: this.path(curve, smooth ?? curve.mean)}));
    const dots = curve.x.length === 1 || (this.panel.key.includes("/") && curve.x.length <= 100);
    for (let i = 0; i < curve.x.length && dots; ++i)
      if (curve.mean[i] !== null && !(this.log && curve.mean[i] <= 0))
        group.append(draw("circle", {class: "point", style: `fill:${color(curve.run)}`, r: 3.5, cx: this.x(curve.x[i]), cy: this.y(curve.mean[i])}));
    svg.append(group);
  }

  text(y) { return value_text(y, this.panel.unit); }

  /** The description for those who do not see the picture. */
  words() {
    const each = this.curves.map((curve) => {
      const finite = curve.mean.filter((y) => y !== null);
      return `${runs[curve.run].name} from ${this.text(finite[0])} to ${this.text(finite.at(-1))}, lowest ${this.text(least(finite))}, highest ${this.text(most(finite))}`;
    });
    return `${this.panel.title} over ${x_units[state.x][0]} ${x_text(this.low, true)} to ${x_text(this.high, true)}. ${each.join(". ")}`;
  }

  /** The curve's point that is nearest to x, as an index; -1 where the curve is not. */
  nearest(curve, x) {
    let best = -1;
    for (let i = 0; i < curve.x.length; ++i)
      if (curve.mean[i] !== null && (best < 0 || Math.abs(curve.x[i] - x) < Math.abs(curve.x[best] - x))) best = i;
    const room = (this.high - this.low) / 20;
    return best >= 0 && (x < curve.x[0] - room || x > curve.x.at(-1) + room) ? -1 : best;
  }

  read(x, aloud) {
    const rows = [];
    for (const curve of this.curves) {
      const i = this.nearest(curve, x);
      if (i >= 0) rows.push([curve.run, (state.smooth && curve.smooth ? curve.smooth : curve.mean)[i], curve.x[i]]);
    }
    this.reading = x;
    rows.sort((a, b) => a[1] - b[1]);
    const unit = x_units[state.x][0];
    const head = unit === "step" ? `step ${x_text(Math.round(x), true)}` : `${x_text(x, true)} ${unit}`;
    this.tip.replaceChildren(make("div", {class: "faint"}, head), make("table", {}, ...rows.slice(0, 12).map(([run, y]) =>
      make("tr", {}, make("td", {}, swatch(run)), make("td", {}, runs[run].name), make("td", {class: "number"}, this.text(y))))));
    this.tip.hidden = rows.length === 0;
    const place = this.x(x);
    for (const chart of charts) {
      const same = chart.low === this.low && chart.high === this.high;
      chart.cursor?.setAttribute("visibility", same ? "visible" : "hidden");
      for (const end of ["x1", "x2"]) chart.cursor?.setAttribute(end, chart.x(x));
    }
    this.tip.style.left = place < this.width / 2 ? `${place + 12}px` : "auto";
    this.tip.style.right = place < this.width / 2 ? "auto" : `${this.width - place + 12}px`;
    if (aloud) say(`${head}. ` + rows.map(([run, y]) => `${runs[run].name} ${this.text(y)}`).join(", "));
  }
  leave() {
    this.tip.hidden = true;
    for (const chart of charts) chart.cursor?.setAttribute("visibility", "hidden");
  }

  place(event) {
    const box = this.plot.getBoundingClientRect();
    return Math.max(this.left, Math.min(this.right, (event.clientX - box.left) * this.width / box.width));
  }
  press(event) {
    if (event.button !== 0) return;
    this.from = this.place(event);
    this.plot.setPointerCapture?.(event.pointerId);
  }
  move(event) {
    const place = this.place(event);
    if (this.from !== null && this.from !== undefined) {
      this.chosen.setAttribute("x", Math.min(place, this.from));
      this.chosen.setAttribute("width", Math.abs(place - this.from));
    }
    this.read(this.at(place), false);
  }
  release(event) {
    const place = this.place(event), from = this.from;
    this.from = null;
    this.chosen.setAttribute("width", 0);
    if (from !== null && from !== undefined && Math.abs(place - from) > 6) zoom_to(...[this.at(from), this.at(place)].sort((a, b) => a - b));
  }
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.plot) return;
    event.preventDefault();
    zoom_by(event.deltaY > 0 ? 1.25 : 0.8, this.at(this.place(event)));
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (this.high - this.low) / 50, way = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (way && event.shiftKey) move_by(way * 0.2);
    else if (way) this.read(Math.max(this.low, Math.min(this.high, (this.reading ?? (way > 0 ? this.low - step : this.high + step)) + way * step)), true);
    else if (event.key === "+" || event.key === "=") zoom_by(0.5, this.tip.hidden ? undefined : this.reading);
    else if (event.key === "-") zoom_by(2);
    else if (event.key === "0" || event.key === "Home") reset_zoom();
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
  }

  tabulate() {
    this.values.querySelector(".scroll")?.remove();
    if (!this.values.open) return;
    const inside = (curve) => curve.x.filter((x, i) => x >= this.low && x <= this.high && curve.mean[i] !== null);
    const points = [...new Set(this.curves.flatMap(inside))].sort((a, b) => a - b), all = points.length <= 25;
    const rows = [];
    for (const x of all ? points : Array.from({length: 11}, (_, i) => this.low + (this.high - this.low) * i / 10)) {
      const cells = this.curves.map((curve) => {
        const at = all ? curve.x.indexOf(x) : this.nearest(curve, x);
        return make("td", {class: "number"}, at < 0 || curve.mean[at] === null ? "–" : this.text(curve.mean[at]));
      });
      rows.push(make("tr", {}, make("th", {scope: "row", class: "number"}, x_text(state.x === "step" ? Math.round(x) : x, state.x !== "seconds")), ...cells));
    }
    const heads = this.curves.map((curve) => make("th", {scope: "col", class: "number"}, runs[curve.run].name));
    this.values.append(make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": `${this.panel.title}: values`},
      make("table", {}, make("thead", {}, make("tr", {}, make("th", {scope: "col", class: "number"}, x_units[state.x][0]), ...heads)), make("tbody", {}, ...rows))));
  }
}

const charts = [];
function draw_all() {
  keep();
  for (const chart of charts) chart.draw();
  part("reset").disabled = state.zoom === null;
}

function add_charts() {
  const peak = most(runs.map((run) => most(run.curves.memory.mean)));
  for (const panel of data.panels) {
    panel.factor = 1;
    panel.smooths = ["loss", "speed", "grad_norm"].includes(panel.key);
    panel.from_zero = ["speed", "memory"].includes(panel.key);
    if (panel.key === "memory" && peak > 4096) { panel.unit = "GiB"; panel.factor = 1 / 1024; }
  }
  const present = data.panels.filter((panel) => runs.some((_, run) => curve_of(run, panel)));
  const is_loss = (panel) => panel.unit === "nats per token";
  const losses = present.filter(is_loss);
  present.forEach((panel, i) => {
    const odd_one = losses.length % 2 === 1 && panel === losses.at(-1);
    const chart = new Chart(panel, !is_loss(panel) ? "small" : odd_one ? "alone" : "large");
    charts.push(chart);
    part("panels").append(chart.figure);
  });
  if (present.length === 0) part("panels").append(make("p", {class: "faint"}, "No step has been logged yet."));
  new ResizeObserver(() => { for (const chart of charts) if (chart.width !== Math.max(240, chart.plot.clientWidth)) chart.draw(); }).observe(part("panels"));
}

/** Buttons of which one is pressed. */
function choice(label, options, now, change) {
  const group = make("div", {class: "choice", role: "group", "aria-label": label});
  for (const [value, text] of options)
    group.append(make("button", {type: "button", "aria-pressed": String(value === now), click: (event) => {
      for (const button of group.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      change(value);
    }}, text));
  return group;
}

function add_controls() {
  part("controls").append(
    choice("Horizontal axis", [["step", "Step"], ["tokens", "Tokens"], ["seconds", "Time"]], state.x, (value) => {
      state.x = value;
      state.zoom = null;
      draw_all();
    }),
    choice("Vertical axis", [[false, "Linear"], [true, "Log"]], Boolean(state.log), (value) => { state.log = value; draw_all(); }),
    make("button", {type: "button", "aria-pressed": String(Boolean(state.smooth)), click: (event) => {
      state.smooth = !state.smooth;
      event.currentTarget.setAttribute("aria-pressed", String(state.smooth));
      draw_all();
    }}, "Smooth"),
    make("div", {class: "choice", role: "group", "aria-label": "Zoom"},
      make("button", {type: "button", "aria-label": "Zoom in", click: () => zoom_by(0.5)}, "+"),
      make("button", {type: "button", "aria-label": "Zoom out", click: () => zoom_by(2)}, "−"),
      make("button", {type: "button", id: "reset", click: reset_zoom}, "Whole run")));
  runs.forEach((run, i) => part("legend").append(make("button", {type: "button", "aria-pressed": String(!state.hidden.includes(i)),
    title: "hides or shows the run's curves", click: (event) => {
      const shown = state.hidden.includes(i);
      state.hidden = shown ? state.hidden.filter((other) => other !== i) : [...state.hidden, i];
      event.currentTarget.setAttribute("aria-pressed", String(shown));
      draw_all();
    }}, swatch(i), make("span", {}, run.name))));
}

// --- Tables ----------------------------------------------------------------------------------------------------------

const scrolling = (label, table) => make("div", {class: "card"},
  make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": label}, table));
const state_mark = (name) => make("span", {class: `state ${name}`}, name);

function add_table() {
  const {columns, rows} = data.table, body = make("tbody");
  const unranked = ["steps", "predicted", "retries", "first loss"];
  const best = columns.map((column, c) => {
    const values = rows.map((row) => row.cells[c][1]).filter((x) => typeof x === "number");
    if (column.is_text || unranked.includes(column.title) || values.length < 2 || new Set(values).size < 2) return null;
    return column.high_is_good ? most(values) : least(values);
  });
  const cell_of = (row, c) => {
    const [text, value] = row.cells[c];
    if (c === 0) return make("th", {scope: "row", class: "wrap"}, swatch(row.run), text);
    if (columns[c].title === "state") return make("td", {}, state_mark(text));
    const is_best = best[c] !== null && value === best[c];
    return make("td", {class: columns[c].is_text ? "wrap" : `number${is_best ? " best" : ""}`}, text, is_best ? make("span", {hidden: ""}, " (best)") : null);
  };
  const heads = columns.map((column, c) => make("th", {scope: "col", class: column.is_text ? "" : "number", "aria-sort": "none"},
    make("button", {type: "button", click: () => sort_by(c)}, column.title)));
  function show(order) { body.replaceChildren(...order.map((row) => make("tr", {}, ...columns.map((_, c) => cell_of(row, c))))); }
  function apply() {
    const sort = state.sort;
    if (!sort || !columns[sort.column]) return show(rows);
    const sign = sort.up ? 1 : -1, at = (row) => row.cells[sort.column][1];
    show([...rows].sort((a, b) => {
      const [x, y] = [at(a), at(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", {numeric: true}));
    }));
    heads.forEach((head, c) => head.setAttribute("aria-sort", c !== sort.column ? "none" : sort.up ? "ascending" : "descending"));
  }
  function sort_by(column) {
    const again = state.sort?.column === column;
    state.sort = {column, up: again ? !state.sort.up : !columns[column].high_is_good};
    keep();
    apply();
    say(`Sorted by ${columns[column].title}, ${state.sort.up ? "lowest" : "highest"} first`);
  }
  part("runs").append(scrolling("Table of runs", make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body)));
  apply();
}

/** The lowest validation loss of each run over the number that the sweep varies. */
function sweep_picture({name, points}) {
  const width = 640, height = 260, left = 64, right = width - 16, base = height - 40, top = 12;
  const xs = points.map((point) => point[1]), ys = points.map((point) => point[2]);
  const [low, high] = [least(xs), most(xs)], log = low > 0 && high / low >= 8;
  const [bottom, peak] = [least(ys), most(ys)], room = Math.max((peak - bottom) * 0.08, 1e-6);
  const scaled = (x) => (log ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low));
  const across = (x) => left + 12 + scaled(x) * (right - left - 24);
  const up = (y) => base - (y - bottom + room) / (peak - bottom + 2 * room) * (base - top);
  const best = points.find((point) => point[2] === bottom);
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label":
    `Lowest validation loss over ${name}: ${points.map(([run, x, y]) => `${runs[run].name} ${x}: ${separated(y, 4)}`).join(", ")}`});
  for (const y of ticks(bottom - room, peak + room, 5, false))
    svg.append(draw("line", {class: "grid", x1: left, x2: right, y1: up(y), y2: up(y)}),
      draw("text", {x: left - 6, y: up(y) + 4, "text-anchor": "end"}, String(Number(y.toPrecision(5)))));
  svg.append(draw("line", {class: "axis", x1: left, x2: right, y1: base, y2: base}));
  let end = -Infinity;  // of the last label, where values are close
  for (const x of [...new Set(xs)].sort((a, b) => a - b)) {
    const text = String(x), half = 3.6 * text.length;
    if (across(x) - half < end) continue;
    end = across(x) + half + 6;
    svg.append(draw("text", {x: across(x), y: base + 17, "text-anchor": "middle"}, text));
  }
  svg.append(draw("text", {x: right, y: height - 4, "text-anchor": "end"}, log ? `${name}, logarithmic` : name));
  for (const [run, x, y] of points)
    svg.append(draw("circle", {class: "point", "data-run": run, style: `fill:${color(run)}`, r: run === best[0] ? 7 : 5, cx: across(x), cy: up(y)},
      draw("title", {}, `${runs[run].name}: ${separated(y, 4)}`)));
  return make("figure", {class: "card sweep", "data-key": "sweep"},
    make("figcaption", {}, make("h3", {}, `Lowest validation loss over ${name}`), make("span", {class: "faint"}, `best: ${runs[best[0]].name}`)),
    make("div", {class: "plot"}, svg));
}

/** Options with a value for each run: a line for each option, or, for many runs, a column. */
function option_table(options) {
  const names = runs.map((run, i) => make("span", {class: "name"}, swatch(i), run.name));
  const is_number = (text) => /^[-+]?[\d.,]+(e[-+]?\d+)?( [kMB])?$/.test(text) || text === "-";
  const by_run = runs.length > 6;
  const heads = by_run ? ["run", ...options.map((option) => option.name)] : ["option", ...names];
  const lines = by_run ? runs.map((_, i) => [names[i], ...options.map((option) => option.values[i])])
    : options.map((option) => [option.name, ...option.values]);
  const right = heads.map((_, c) => c > 0 && by_run && lines.every((line) => is_number(line[c])));
  return scrolling("Options that differ", make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head, c) => make("th", {scope: "col", class: right[c] ? "number" : ""}, head)))),
    make("tbody", {}, ...lines.map((line) => make("tr", {}, ...line.map((cell, c) =>
      (c === 0 ? make("th", {scope: "row"}, cell) : make("td", {class: right[c] ? "number" : "wrap mono"}, cell))))))));
}

function add_options() {
  const {differ, alike} = data.options, first = 12;
  if (runs.length === 1) {
    part("options").append(make("p", {}, `${differ[0].values[0]} parameters.`));
  } else {
    part("options").append(
      data.sweep ? sweep_picture(data.sweep) : "",
      make("p", {class: "faint"}, differ.length > 1 ? "Those that differ, the most important first." : "All options of the runs are alike."),
      option_table(differ.slice(0, first)));
    if (differ.length > first)
      part("options").append(make("details", {}, make("summary", {}, `${differ.length - first} more options that differ`), option_table(differ.slice(first))));
  }
  if (alike.length > 0)
    part("options").append(make("details", {}, make("summary", {}, runs.length > 1 ? `${alike.length} options that are alike` : `${alike.length} options`),
      make("dl", {class: "card two"}, ...alike.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {class: "mono"}, value))))));
}

// --- Samples, checkpoints, problems ------------------------------------------------------------------------------------

function command(text) {
  const code = make("pre", {}, ...words(text));
  return make("div", {class: "command"}, code, make("button", {type: "button", "aria-label": `Copy: ${text}`, click: async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      say("Copied");
    } catch {
      getSelection().selectAllChildren(code);
      say("Selected");
    }
  }}, "Copy"));
}

function add_samples() {
  const prompts = [...new Set(runs.flatMap((run) => run.samples.map((sample) => sample.prompt)))];
  if (prompts.length === 0) return part("samples").remove();
  const steps = [...new Set(runs.flatMap((run) => run.samples.flatMap((sample) => sample.texts.map(([step]) => step))))].sort((a, b) => a - b);
  const shown = make("div"), output = make("output", {for: "sample-step"});
  const show = (index) => {
    output.textContent = `step ${separated(steps[index])}`;
    shown.replaceChildren(...prompts.flatMap((prompt) => {
      const cards = runs.flatMap((run, i) => {
        const texts = run.samples.find((sample) => sample.prompt === prompt)?.texts ?? [];
        const last = texts.filter(([step]) => step <= steps[index]).at(-1);
        if (!last) return [];
        return [make("div", {class: "card"},
          make("h4", {class: "figures"}, make("span", {class: "name"}, swatch(i), run.name), make("span", {}, `step ${separated(last[0])}`)),
          make("div", {class: "text", tabindex: 0, role: "region", "aria-label": `Sample of ${run.name}`}, make("span", {class: "given"}, prompt), last[1].trimEnd() || make("span", {class: "given"}, " (nothing but blanks)")))];
      });
      return [make("h3", {class: "prompt"}, prompt), make("div", {class: "cards"}, ...cards)];
    }));
  };
  if (steps.length > 1)
    part("samples").append(make("div", {class: "slider"}, make("label", {for: "sample-step"}, "After"),
      make("input", {type: "range", id: "sample-step", min: 0, max: steps.length - 1, value: steps.length - 1,
        "aria-valuetext": `step ${steps.at(-1)}`, input: (event) => {
          show(Number(event.target.value));
          event.target.setAttribute("aria-valuetext", output.textContent);
        }}), output));
  part("samples").append(shown);
  show(steps.length - 1);
}

function add_checkpoints() {
  const chosen = runs.map((run) => run.checkpoints.all.find((one) => one.best) ?? run.checkpoints.all.find((one) => one.latest));
  if (chosen.every((one) => !one)) return part("checkpoints").remove();
  const losses = chosen.map((one) => one?.validation ?? null).filter((x) => x !== null);
  const lowest = losses.length > 1 ? least(losses) : null;
  const describe = (one) => [one.validation === null ? null : `validation ${separated(one.validation, 4)}`, one.bytes].filter((x) => x);
  part("checkpoints").append(make("div", {class: "cards wide"}, ...runs.flatMap((run, i) => {
    const one = chosen[i];
    if (!one) return [];
    const others = run.checkpoints.all.filter((other) => other !== one);
    return [make("div", {class: "card"},
      make("h3", {class: "name"}, swatch(i), run.name,
        lowest !== null && one.validation === lowest ? make("span", {class: "badge good"}, "best of all") : null),
      make("div", {class: "figures"}, make("span", {}, one.best ? "best: " : "newest: ", make("span", {class: "mono"}, one.name)),
        ...describe(one).map((text) => make("span", {}, text))),
      command(run.checkpoints.use),
      others.length === 0 ? null : make("details", {}, make("summary", {}, `${others.length} more`),
        ...others.map((other) => make("div", {class: "figures"}, make("span", {class: "mono"}, other.name),
          ...describe(other).map((text) => make("span", {}, text)), other.latest ? make("span", {}, "newest") : null))))];
  })));
}

function add_problems() {
  if (data.problems.length === 0) return part("problems").remove();
  part("problems").append(...data.problems.map((problem) => {
    const run = runs[problem.run], severe = ["failed", "ended"].includes(run.state);
    return make("div", {class: `card problem${severe ? "" : " mild"}`},
      make("h3", {class: "name"}, swatch(problem.run), run.name),
      make("p", {}, problem.what), problem.remedy ? make("p", {class: "faint"}, ...words(problem.remedy)) : null,
      problem.command ? command(problem.command) : null);
  }));
}

/** The figures that matter most: those of the one run, or the best with their runs. */
function tiles() {
  const {columns, rows} = data.table, counts = (run) => runs.length === 1 || runs[run].state !== "failed";
  const tile = (title, values, sign) => {  // values: [run, number, text]
    if (values.length === 0) return [];
    const [run, , text] = values.reduce((a, b) => (sign * b[1] < sign * a[1] ? b : a));
    return [make("div", {class: "card tile"}, make("div", {class: "faint"}, title), make("div", {class: "value"}, text),
      runs.length > 1 ? make("div", {class: "name faint"}, swatch(run), runs[run].name) : null)];
  };
  const validations = data.panels.filter((panel) => panel.key.startsWith("validation/")).flatMap((panel) =>
    tile(`Lowest ${panel.title.replace("V", "v")}`, runs.flatMap((run, i) => {
      const curve = counts(i) ? run.curves[panel.key] : undefined;
      const lowest = least((curve?.low ?? curve?.mean ?? []).filter((y) => y !== null));
      return lowest < Infinity ? [[i, lowest, value_text(lowest, panel.unit)]] : [];
    }), 1));
  const wanted = [["last loss", "Lowest training loss, last step"], ["tokens/s", "Highest tokens/s"], ["memory", "Least memory of a rank"]];
  return make("div", {class: "tiles"}, ...validations, ...wanted.flatMap(([title, text]) => {
    const c = columns.findIndex((column) => column.title === title);
    const values = rows.filter((row) => typeof row.cells[c]?.[1] === "number" && counts(row.run));
    return tile(runs.length > 1 ? text : title, values.map((row) => [row.run, row.cells[c][1], row.cells[c][0].split(" ± ")[0]]),
      columns[c]?.high_is_good ? -1 : 1);
  }));
}

function add_head() {
  const paragraphs = (all) => all.map((sentence) => make("p", {}, sentence));
  const is_best = (sentence) => sentence.startsWith("Best validation");
  const sentences = paragraphs(data.sentences.filter((sentence) => !is_best(sentence)));
  part("summary").append(tiles(), ...paragraphs(data.sentences.filter(is_best)));
  if (runs.length <= 4) part("summary").append(...sentences);
  else part("summary").append(make("details", {}, make("summary", {}, "The runs against the first one, in words"), ...sentences));
  part("about").append(`Written ${data.written} by fsdp ${data.version}`);
  if (data.renew_seconds > 0) {
    let timer = 0;
    const pause = make("button", {type: "button", click: () => { state.paused = !state.paused; keep(); arm(); }});
    const arm = () => {
      clearTimeout(timer);
      pause.textContent = state.paused ? "Renew" : "Pause";
      if (!state.paused) timer = setTimeout(() => location.reload(), 1000 * data.renew_seconds);
    };
    part("about").append(`, while runs go on every ${data.renew_seconds} s `, pause);
    arm();
  }
  for (const section of document.querySelectorAll("main section"))
    part("contents").append(make("a", {href: `#${section.id}`, click: (event) => {
      event.preventDefault();
      section.scrollIntoView();
      section.setAttribute("tabindex", "-1");
      section.focus({preventScroll: true});
    }}, section.querySelector("h2").textContent));
}

add_problems();
add_charts();
add_controls();
add_table();
add_options();
add_samples();
add_checkpoints();
add_head();
draw_all();
})();
