// A slider per reward: the nearest of the settings that were drawn, its pictures, and the front.

const frontOfRun = () => DATA.fronts[state.run];
const weightsSet = () => frontOfRun().names.map((_, k) => Number(byId(`weight-${k}`).value));
const weightText = (value) => value.toFixed(2).replace(/\.?0+$/, "");

function nearestSetting() {
  const { settings } = frontOfRun(), wanted = weightsSet();
  const distance = (s) => s.weights.reduce((sum, w, k) => sum + (w - wanted[k]) ** 2, 0);
  return settings.reduce((best, s) => (distance(s) < distance(best) ? s : best));
}

function setUpSliders() {
  const section = byId("sliders");
  if (!section) return;
  const front = frontOfRun();
  section.hidden = !front;
  if (!front) return;
  byId("slider-inputs").replaceChildren(...front.names.map((name, k) => {
    const dot = el("span", { class: "dot", "aria-hidden": "true", "data-reward": name });
    dot.style.background = rewardColour(name);
    return el("label", { class: "field slider" }, el("span", {}, dot, ` ${name}`),
      el("input", { type: "range", id: `weight-${k}`, min: 0, max: front.top, step: 0.05, value: 1, oninput: moveSlider }),
      el("output", { id: `weight-${k}-at`, for: `weight-${k}` }));
  }));
  const names = front.names.map((n) => [n, n]);
  options(byId("front-x"), names);
  options(byId("front-y"), names);
  [byId("front-x").value, byId("front-y").value] = front.axes.map((k) => front.names[k]);
  showSetting();
}

function moveSlider() {
  showSetting();
  draw("front");
}

function resetSliders() {
  frontOfRun().names.forEach((_, k) => { byId(`weight-${k}`).value = 1; });
  moveSlider();
}

const hundredths = (value) => (Number(value.toFixed(2)) || 0).toFixed(2).replace("-", "−");

function showSetting() {
  const front = frontOfRun(), chosen = nearestSetting(), normal = front.settings[0];
  weightsSet().forEach((value, k) => {
    byId(`weight-${k}-at`).textContent = weightText(value);
    byId(`weight-${k}`).setAttribute("aria-valuetext", `${front.names[k]} ${weightText(value)}`);
  });
  byId("slider-status").textContent = `Nearest of ${front.settings.length} settings drawn: ` +
    front.names.map((n, k) => `${n} ${weightText(chosen.weights[k])}`).join(", ") + ".";
  byId("slider-code").textContent = `pipe.set_adapters([${["shared", ...front.names].map((n) => JSON.stringify(n)).join(", ")}], [${[1, ...weightsSet()].map((w) => (Number.isInteger(w) ? `${w}.0` : w)).join(", ")}])`;
  byId("slider-gains").replaceChildren(...front.names.map((name, k) => {
    const [now, then] = [chosen.gains[k], normal.gains[k]];
    const change = now == null || then == null ? null : now - then;
    const way = change > 0.005 ? "up" : change < -0.005 ? "down" : "";
    const dot = el("span", { class: "dot", "aria-hidden": "true" });
    dot.style.background = rewardColour(name);
    return el("li", {}, dot, el("span", { class: "name", title: name }, name), el("span", { class: "both" }, now == null ? "–" : `${now >= 0.005 ? "+" : ""}${hundredths(now)} σ`),
      el("span", { class: `change ${way}` }, change == null ? "" : `${{ up: "▲", down: "▼", "": "=" }[way]} ${hundredths(Math.abs(change))}`));
  }));
  byId("slider-pictures").replaceChildren(...front.samples.map((sample, i) => el("li", { class: "pair" },
    el("div", { class: "sides" }, titled(normal.images[i], "default", sample.prompt), titled(chosen.images[i], "chosen", sample.prompt)),
    promptLine(sample))));
}

chart("front", () => {
  const front = frontOfRun();
  if (!front) return null;
  const x = front.names.indexOf(byId("front-x").value), y = front.names.indexOf(byId("front-y").value);
  const points = front.settings.filter((s) => s.gains[x] != null && s.gains[y] != null).map((s) => ({ x: s.gains[x], y: s.gains[y], s }));
  if (points.length < 2) return null;
  const chosen = nearestSetting(), edge = frontOf(points);
  const at = points.find((p) => p.s === chosen);
  const told = (p) => front.names.map((n, k) => `${plain(n)} ${weightText(p.s.weights[k])}`).join("<br>");
  const dots = (some, marker) => ({ type: "scatter", mode: "markers", x: some.map((p) => p.x), y: some.map((p) => p.y), customdata: some.map(told), hovertemplate: "%{customdata}<extra></extra>", marker });
  return {
    data: [
      { type: "scatter", mode: "lines", x: edge.map((p) => p.x), y: edge.map((p) => p.y), line: { color: css("--muted"), width: 1.2, dash: "dot", shape: "vh" }, hoverinfo: "skip" },
      dots(points, { color: css("--accent"), size: points.map((p) => (edge.includes(p) ? 11 : 8)), opacity: 0.75 }),
      ...(at ? [dots([at], { color: css("--orange"), size: 18, symbol: "circle", line: { color: css("--ink"), width: 2 } })] : []),
    ],
    layout: layout({ height: 380, xaxis: axis(`${plain(front.names[x])}, gain in σ`, { zeroline: true }), yaxis: axis(`${plain(front.names[y])}, gain in σ`, { zeroline: true }) }),
    alt: at ? `Chosen setting: ${front.names[x]} ${signed(at.x)} σ, ${front.names[y]} ${signed(at.y)} σ; ${edge.length} of ${points.length} settings are on the front.` : "",
  };
});

function listenToSliders() {
  if (!byId("sliders")) return;
  byId("slider-reset").addEventListener("click", resetSliders);
  for (const id of ["front-x", "front-y"]) byId(id).addEventListener("change", () => draw("front"));
}
