// Trade-offs: any two rewards with the front between them, and all rewards at once.

const dominates = (p, q) => p.x >= q.x && p.y >= q.y && (p.x > q.x || p.y > q.y);
const frontOf = (points) => points.filter((p) => !points.some((q) => dominates(q, p))).sort((a, b) => a.x - b.x);

// Area dominated beyond the reference point: a sweep over the front from right to left.
function area(points, origin) {
  let sum = 0, height = origin.y;
  for (const p of frontOf(points).reverse()) {
    if (p.x <= origin.x || p.y <= height) continue;
    sum += (p.x - origin.x) * (p.y - height);
    height = p.y;
  }
  return sum;
}

function paretoPoints(x, y) {
  return DATA.runs.flatMap((run, index) => run.evals
    .filter((e) => e.scores[x] && e.scores[y])
    .map((e) => ({ run: index, step: e.step, x: e.scores[x][0], y: e.scores[y][0], ex: e.scores[x], ey: e.scores[y] })));
}

const MOST_SPANS = 16;
const span = (scores, colour) => ({
  type: "data", symmetric: false, thickness: 0.8, width: 0, color: colour,
  array: scores.map(([mean, , high]) => (high == null ? 0 : high - mean)), arrayminus: scores.map(([mean, low]) => (low == null ? 0 : mean - low)),
});

function setUpPareto() {
  const names = DATA.rewards.map((n) => [n, n]);
  options(byId("pareto-x"), names);
  options(byId("pareto-y"), names);
  [byId("pareto-x").value, byId("pareto-y").value] = opposedPair();
}

// The two trained rewards whose gradients disagree most over the first run: where a trade-off is likeliest.
function opposedPair() {
  const { rewards, pursued, harmony } = DATA.runs[0];
  const pairs = rewards.flatMap((a, i) => rewards.slice(i + 1).map((b) => [a, b]));
  const means = pairs.map((_, i) => {
    const values = (harmony.cosines ? harmony.cosines.upper : []).map((row) => row[i]).filter((v) => v != null);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : Infinity;
  });
  const tried = pairs.map((pair, i) => [means[i], pair]).filter(([, pair]) => pair.every((n) => pursued.includes(n)));
  tried.sort((a, b) => a[0] - b[0]);
  const names = DATA.rewards;
  return tried.length && Number.isFinite(tried[0][0]) ? tried[0][1] : [names[0], names[Math.min(1, names.length - 1)]];
}

chart("pareto", () => {
  const x = byId("pareto-x").value, y = byId("pareto-y").value;
  const note = byId("pareto-note");
  note.textContent = "";
  const points = paretoPoints(x, y);
  if (points.length < 2) return null;
  const front = frontOf(points);
  // Intervals keep a reader from taking noise for a trade-off; among many points they only hide them.
  const spans = points.length <= MOST_SPANS;
  const several = DATA.runs.length > 1;
  const data = [{
    type: "scatter", mode: "lines", x: front.map((p) => p.x), y: front.map((p) => p.y), line: { color: css("--muted"), width: 1.2, dash: "dot", shape: "vh" }, hoverinfo: "skip", showlegend: false,
  }];
  const notes = [];
  DATA.runs.forEach((run, index) => {
    const own = points.filter((p) => p.run === index);
    if (!own.length) return;
    const colour = several ? runColour(index) : css("--accent");
    // The path first, then the base as a ring, then the checkpoints: the legend shows the latter.
    data.push({ type: "scatter", mode: "lines", x: own.map((p) => p.x), y: own.map((p) => p.y), line: { color: colour, width: 1 }, opacity: 0.6, hoverinfo: "skip", showlegend: false });
    for (const some of [own.filter((p) => !p.step), own.filter((p) => p.step)]) {
      if (!some.length) continue;
      const last = some.length - 1, based = !some[0].step;
      data.push({
        type: "scatter", mode: several ? "markers" : "markers+text", x: some.map((p) => p.x), y: some.map((p) => p.y), name: plain(run.name), showlegend: several && !based,
        text: some.map((p, i) => (based ? " base" : some.length <= 12 || i === last ? ` ${p.step}` : "")), textposition: "bottom right", textfont: { size: 11, color: css("--muted") },
        marker: {
          color: colour, size: some.map((p) => (front.includes(p) ? 13 : 9)), symbol: based ? "circle-open" : runSymbol(index),
          opacity: some.map((_, i) => (based ? 1 : 0.5 + (0.5 * (i + 1)) / some.length)), line: { color: based ? colour : css("--ink"), width: some.map((p) => (based ? 1.5 : front.includes(p) ? 2 : 0)) },
        },
        ...(spans ? { error_x: span(some.map((p) => p.ex), colour), error_y: span(some.map((p) => p.ey), colour) } : {}),
        customdata: some.map((p) => (p.step ? `step ${p.step}` : "base")), hovertemplate: `${plain(run.name)} %{customdata}<br>${plain(x)} %{x:.3g}<br>${plain(y)} %{y:.3g}<extra></extra>`,
      });
    }
    const origin = own.find((p) => p.step === 0);
    if (origin) {
      const rise = area(own, origin);
      notes.push({ name: run.name, rise });
    }
  });
  if (x !== y && notes.length) {
    note.textContent = `Hypervolume beyond the base (${x} × ${y}): ` + notes.map((n) => (several ? `${n.name} ` : "") + (n.rise ? number(n.rise) : "0")).join(", ") + ".";
  }
  return {
    data,
    layout: layout({ xaxis: axis(plain(x)), yaxis: axis(plain(y)), height: 420, showlegend: several, legend: { ...legendBelow(), y: -0.18 }, hovermode: "closest" }),
    alt: `${points.length} points, ${front.length} on the front: ${front.slice(0, 6).map((p) => `${DATA.runs[p.run].name} ${p.step ? "step " + p.step : "base"}`).join(", ")}.`,
  };
});

chart("parallel", (run, width) => {
  const several = DATA.runs.length > 1;
  const volumes = DATA.runs.filter((r) => r.hypervolume != null && r.pursued.length > 2);
  byId("parallel-note").textContent = volumes.length
    ? `Hypervolume beyond the base over all trained rewards, in σ: ${volumes.map((r) => (several ? `${r.name} ` : "") + (r.hypervolume ? number(r.hypervolume) : "0")).join(", ")}.`
    : "";
  const rows = several
    ? DATA.runs.map((r, i) => ({ run: r, index: i, gain: r.gains[r.gains.length - 1] })).filter((r) => r.gain)
    : run.gains.map((gain, i) => ({ run, index: i, gain }));
  if (!rows.length) return null;
  const names = DATA.rewards.filter((n) => rows.some((r) => r.gain.z[n] != null));
  const x = names.map((_, i) => i);
  const data = rows.map(({ run: owner, index, gain }, i) => {
    const taken = gain.step === owner.chosen;
    const label = several ? `${plain(owner.name)} (step ${gain.step})` : `step ${gain.step}${taken ? (gain.sound ? ", recommended" : ", least harmful") : ""}`;
    const colour = several ? runColour(index) : taken ? css("--accent") : css("--muted");
    return {
      type: "scatter", mode: "lines+markers", x, y: names.map((n) => gain.z[n] ?? null), name: label, connectgaps: false,
      opacity: several || taken ? 1 : 0.25 + (0.5 * (i + 1)) / rows.length, line: { color: colour, width: several || taken ? 2.5 : 1.2, dash: several ? DASHES[Math.floor(index / 2) % 4] : "solid" },
      marker: { size: 7, symbol: several ? runSymbol(index) : "circle", color: colour }, hovertemplate: `${label} %{y:+.2f} σ<extra></extra>`,
    };
  });
  const tilted = names.length * 80 > width;
  const held = names.filter((n) => DATA.runs.every((r) => !r.pursued.includes(n)));
  return {
    data,
    layout: layout({
      height: 400, showlegend: rows.length <= 12, legend: { ...legendBelow(), y: tilted ? -0.34 : -0.18 }, hovermode: names.length <= 12 ? "x unified" : "closest",
      xaxis: axis("", { tickvals: x, ticktext: names.map((n) => (held.includes(n) ? `<i>${plain(brief(n, 16))}</i>` : plain(brief(n, 16)))), tickangle: tilted ? -45 : 0, tickfont: { size: 12, color: css("--ink") }, range: [-0.3, names.length - 0.7] }),
      yaxis: axis("gain, σ", { zeroline: true, zerolinecolor: css("--ink"), zerolinewidth: 1.5 }),
    }),
    alt: rows.slice(-4).map(({ run: owner, gain }) => `${several ? owner.name : "step " + gain.step}: lowest gain ${number(Math.min(...names.map((n) => gain.z[n]).filter((v) => v != null)))} σ`).join("; ") + ".",
  };
});

chart("overlay", (_, width) => {
  const names = DATA.rewards.filter((n) => DATA.runs.some((r) => r.evals.some((e) => e.scores[n])));
  if (!names.length) return null;
  const built = panels(names, width, (name, i) => DATA.runs.map((run, index) => {
    const dots = evalDots(run, name, runColour(index));
    return {
      ...dots, mode: "lines+markers", name: plain(run.name), legendgroup: String(index), showlegend: i === 0, line: { color: runColour(index), width: 1.8 },
      marker: { color: runColour(index), size: 6, symbol: runSymbol(index) }, hovertemplate: `${plain(run.name)} %{y:.3g}<extra></extra>`,
    };
  }), { height: 160 });
  return { ...addLegend(built, width, DATA.runs.length), alt: `Curves of ${DATA.runs.map((r) => r.name).join(", ")} for ${names.length} rewards.` };
});
