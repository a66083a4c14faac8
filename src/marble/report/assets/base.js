// What every chart shares: the data, small DOM helpers, colours of the theme, and one registry.
// Text from a run (prompts, names) reaches the page by textContent or plain(), never as HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const state = { run: 0, hidden: new Set() };
const charts = new Map();
const DASHES = ["solid", "dash", "dot", "dashdot"];

const byId = (id) => document.getElementById(id);
const currentRun = () => DATA.runs[state.run];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shown = (names) => names.filter((name) => !state.hidden.has(name));

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// Plotly reads a small markup in labels; this makes any text mean itself.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const brief = (text, most = 22) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

const rewardIndex = (name) => Math.max(0, DATA.rewards.indexOf(name));
// Twelve hues; further rounds are the same hues towards the ink, each round with its own dash.
const COLOURS = 12;
const rewardRound = (name) => Math.floor(rewardIndex(name) / COLOURS);
const rewardColour = (name) => mixed(css(`--c${rewardIndex(name) % COLOURS}`), css("--ink"), Math.min(0.75, 0.3 * rewardRound(name)));
const rewardDash = (name) => DASHES[rewardRound(name) % 4];
const runColour = (index) => css(`--r${index % 8}`);
// Colours come round after eight runs, symbols one later, so that the pair stays its own.
const runSymbol = (index) => ["circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "x"][(index + Math.floor(index / 8)) % 8];

function mixed(colour, other, share) {
  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const [a, b] = [parts(colour), parts(other)];
  return "#" + a.map((v, i) => Math.round(v + share * (b[i] - v)).toString(16).padStart(2, "0")).join("");
}

const number = (value) => {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : size > 0 && size < 0.01 ? Math.min(8, 1 - Math.floor(Math.log10(size))) : 3;
  return value.toFixed(digits).replace("-", "−");
};
const signed = (value) => (value > 0 ? "+" : "") + number(value);

function axis(title, extra = {}) {
  return {
    title: { text: title, font: { size: 12, color: css("--muted") }, standoff: 8 },
    gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"),
    tickfont: { size: 11, color: css("--muted") }, automargin: true, fixedrange: coarse.matches, exponentformat: "power", ...extra,
  };
}

const coarse = matchMedia("(pointer: coarse)");

function layout(extra = {}) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css("--sans"), size: 12, color: css("--ink") },
    margin: { l: 50, r: 12, t: 10, b: 44 }, height: 340, showlegend: false,
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } },
    dragmode: coarse.matches ? false : "zoom", ...extra,
  };
}

// Room under a chart's own height for a legend of `entries` names, which wrap on a narrow screen.
function addLegend(built, width, entries) {
  const { layout: l } = built;
  const rows = Math.ceil(entries / Math.max(1, Math.floor(width / 230)));
  const plot = l.height - l.margin.t - l.margin.b, room = 22 * rows + 14;
  Object.assign(l, { showlegend: true, legend: { ...legendBelow(), y: -36 / plot }, height: l.height + room });
  l.margin.b += room;
  return built;
}

const legendBelow = () => ({ orientation: "h", x: 0, y: -0.2, yanchor: "top", font: { size: 12, color: css("--ink") } });

// A chart is an id and a function of (run, width) that gives {data, layout, alt}, or null for none.
function chart(id, build) {
  if (byId(id)) charts.set(id, build);
}

function draw(id) {
  const node = byId(id);
  if (!node) return;
  const figure = byId(`${id}-figure`);
  figure.hidden = node.hidden = false; // what is hidden has no width
  const width = Math.max(260, node.clientWidth);
  const built = charts.get(id)(currentRun(), width);
  figure.querySelector(".nothing").hidden = Boolean(built);
  figure.classList.toggle("empty", !built);
  node.hidden = !built;
  figure.hidden = !built && "optional" in figure.dataset; // not a thing of every method
  if (!built) {
    Plotly.purge(node);
    return;
  }
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", `${node.dataset.title}. ${built.alt || ""}`);
  const settings = { displayModeBar: false, responsive: false, doubleClick: "reset" };
  Plotly.react(node, built.data, { ...built.layout, width }, settings);
}

// Small multiples: one panel a name, each with its own scale, as many columns as fit.
const PANEL = { left: 46, gap: 48, between: 52, top: 24, bottom: 30 };

function panels(names, width, traces, { height = 150, titles = (n) => n, units = () => "", yaxis = () => ({}) } = {}) {
  const fit = Math.max(1, Math.floor((width + 20) / (width < 600 ? 170 : 196)));
  const rows = Math.ceil(names.length / fit);
  const columns = Math.ceil(names.length / rows);
  const inner = { w: width - PANEL.left - 8, h: rows * height + (rows - 1) * PANEL.between };
  const cell = (inner.w - (columns - 1) * PANEL.gap) / columns;
  const extra = {
    annotations: [], height: inner.h + PANEL.top + PANEL.bottom, margin: { l: PANEL.left, r: 8, t: PANEL.top, b: PANEL.bottom },
  };
  const data = [];
  names.forEach((name, i) => {
    const column = i % columns, row = Math.floor(i / columns), suffix = i ? i + 1 : "";
    const left = (column * (cell + PANEL.gap)) / inner.w, right = Math.min(1, left + cell / inner.w);
    const top = 1 - (row * (height + PANEL.between)) / inner.h, bottom = Math.max(0, top - height / inner.h);
    extra[`xaxis${suffix}`] = axis("", { domain: [left, right], anchor: `y${suffix}`, nticks: 4, automargin: false });
    extra[`yaxis${suffix}`] = axis("", { domain: [bottom, top], anchor: `x${suffix}`, nticks: 5, automargin: false, ...yaxis(name) });
    extra.annotations.push({
      text: plain(brief(titles(name), 26)) + units(name), x: left, y: top, yshift: 3, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom",
      showarrow: false, font: { size: 12.5, color: css("--ink") },
    });
    for (const trace of traces(name, i)) data.push({ ...trace, xaxis: `x${suffix}`, yaxis: `y${suffix}` });
  });
  return { data, layout: layout(extra) };
}

function lastValue(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] != null) return values[i];
  return null;
}

const summary = (names, values) =>
  names.slice(0, 8).map((name) => `${name} ${number(lastValue(values(name) || []))}`).join(", ");

// Slider over logged steps: stays where the reader put it as long as the run has that many steps.
function slider(id, steps) {
  const input = byId(`${id}-slider`), output = byId(`${id}-at`);
  if (!steps.length) return (output.textContent = "–"), null;
  if (Number(input.max) !== steps.length - 1) {
    input.max = steps.length - 1;
    input.value = steps.length - 1;
  }
  input.disabled = steps.length < 2;
  const at = Number(input.value);
  output.textContent = steps[at];
  input.setAttribute("aria-valuetext", `step ${steps[at]}`);
  return at;
}

function options(select, entries) {
  const kept = select.value;
  select.replaceChildren(...entries.map(([value, label]) => el("option", { value }, label)));
  if (entries.some(([value]) => String(value) === kept)) select.value = kept;
}
