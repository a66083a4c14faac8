// Wiring: theme, run, reward chips, sliders, contents; then everything is drawn once.

function drawAll() {
  for (const id of charts.keys()) draw(id);
}

function paintDots() {
  document.querySelectorAll("[data-reward]").forEach((dot) => { dot.style.background = rewardColour(dot.dataset.reward); });
  document.querySelectorAll("[data-run-name]").forEach((dot) => {
    const index = DATA.runs.findIndex((r) => r.name === dot.dataset.runName);
    dot.style.background = index < 0 ? css("--muted") : runColour(index);
  });
}

function setTheme(theme, keep = true) {
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", String(theme === "dark"));
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", "Dark theme");
  if (keep) try { localStorage.setItem("marble-theme", theme); } catch { /* a page opened from disk may have no storage */ }
}

function storedTheme() {
  try { return localStorage.getItem("marble-theme"); } catch { return null; }
}

const CHIP_CHARTS = ["rewards-raw", "rewards-relative", "alpha", "grad-norm"];

function lineKey(name) {
  const make = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const dash = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" }[rewardDash(name)];
  const svg = make("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
  const stroke = make("line", { x1: 1, x2: 25, y1: 5, y2: 5, "stroke-width": 4, "stroke-dasharray": dash });
  stroke.style.stroke = rewardColour(name);
  svg.append(stroke);
  return svg;
}

function setHidden(names) {
  state.hidden = new Set(names);
  document.querySelectorAll("[data-chip]").forEach((chip) => chip.setAttribute("aria-pressed", String(!state.hidden.has(chip.dataset.chip))));
  CHIP_CHARTS.forEach(draw);
}

function drawChips() {
  const names = currentRun().rewards, many = names.length > 10;
  const toggle = (name) => setHidden(state.hidden.has(name) ? [...state.hidden].filter((n) => n !== name) : [...state.hidden, name]);
  const chip = (name) => el("button", {
    type: "button", "aria-pressed": String(!state.hidden.has(name)), "data-chip": name, onclick: () => toggle(name),
  }, lineKey(name), name);
  const every = (label, hidden) => el("button", { type: "button", class: "every", onclick: () => setHidden(hidden) }, label);
  byId("chips").hidden = names.length < 2;
  byId("chips").classList.toggle("many", many);
  byId("chips").replaceChildren(...(many ? [every("all", []), every("none", names)] : []), ...names.map(chip));
}

function showRun(index) {
  state.run = index;
  document.querySelectorAll("[data-run]").forEach((block) => { block.hidden = Number(block.dataset.run) !== index; });
  drawChips();
  drawConflicts(currentRun());
  setUpPictures();
  drawPictures();
  drawFilm();
  drawGlance();
  setUpSliders();
  drawAll();
}

function listen() {
  byId("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    if (storedTheme()) return;
    setTheme(event.matches ? "dark" : "light", false);
    repaint();
  });
  byId("run")?.addEventListener("change", (event) => showRun(Number(event.target.value)));
  for (const id of ["cosines", "advantages"]) byId(`${id}-slider`).addEventListener("input", () => draw(id));
  for (const id of ["pareto-x", "pareto-y"]) byId(id).addEventListener("change", () => draw("pareto"));
  listenToPictures();
  listenToSliders();
  let timer = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(drawAll, 150);
  });
  // Paper is light and narrower than most screens.
  let before = null;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    setTheme("light", false);
    document.querySelectorAll(".plot").forEach((plot) => { plot.style.width = "690px"; });
    repaint();
  });
  addEventListener("afterprint", () => {
    document.querySelectorAll(".plot").forEach((plot) => { plot.style.width = ""; });
    setTheme(before || "light", false);
    repaint();
  });
}

function repaint() {
  paintDots();
  drawChips();
  drawPictures();
  if (frontOfRun()) showSetting();
  drawAll();
}

function followContents() {
  const links = new Map([...document.querySelectorAll(".toc a")].map((a) => [a.hash.slice(1), a]));
  const visible = new Set();
  const observer = new IntersectionObserver((entries) => {
    entries.forEach((entry) => (entry.isIntersecting ? visible.add(entry.target.id) : visible.delete(entry.target.id)));
    const first = [...links.keys()].find((id) => visible.has(id));
    links.forEach((link, id) => (id === first ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
  }, { rootMargin: "-80px 0px -55% 0px" });
  links.forEach((_, id) => observer.observe(byId(id)));
}

setTheme(storedTheme() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"), false);
setUpPareto();
paintDots();
listen();
showRun(0);
drawByMethod();
followContents();
document.documentElement.dataset.ready = "true";
