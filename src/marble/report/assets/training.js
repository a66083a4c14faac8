// Training: rewards raw and relative, the balance, gradient norms, distances, time.

const line = (x, y, colour, extra = {}) => ({
  type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y, line: { color: colour, width: 2 }, marker: { color: colour, size: 7 },
  connectgaps: true, ...extra, // norms and cosines are logged on refresh steps only
});
const rewardLine = (x, y, name, extra = {}) =>
  line(x, y, rewardColour(name), {
    name: plain(name), line: { color: rewardColour(name), width: DATA.rewards.length > 12 ? 1.3 : 2, dash: rewardDash(name) },
    hovertemplate: `${plain(name)} %{y:.3g}<extra></extra>`, ...extra,
  });
const hover = (names) => (names.length <= 10 ? "x unified" : "closest");

// A centred moving mean, so that the noise of single batches does not hide the trend.
function smooth(values) {
  const half = Math.floor(values.length / 50);
  if (half < 1) return values;
  return values.map((value, i) => {
    if (value == null) return null;
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((v) => v != null);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
}

const faintAndSmooth = (x, y, colour, hovertemplate) => [
  line(x, y, colour, { opacity: 0.28, line: { color: colour, width: 1 }, hoverinfo: "skip" }),
  line(x, smooth(y), colour, { hovertemplate }),
];

function evalDots(run, name, colour) {
  const points = run.evals.filter((e) => e.scores[name]);
  const bound = (i, j) => points.map((e) => (e.scores[name][i] == null ? 0 : Math.abs(e.scores[name][i] - e.scores[name][j])));
  return {
    type: "scatter", mode: "markers", x: points.map((e) => e.step), y: points.map((e) => e.scores[name][0]),
    error_y: { type: "data", symmetric: false, array: bound(2, 0), arrayminus: bound(1, 0), color: colour, thickness: 1.2, width: 3 },
    marker: { color: css("--ground"), size: 7, line: { color: colour, width: 2 } },
    hovertemplate: "held-out %{y:.3g}<extra></extra>",
  };
}

chart("rewards-raw", (run, width) => {
  const t = run.training;
  const names = shown(run.rewards.filter((n) => t.reward[n] || run.evals.some((e) => e.scores[n])));
  if (!names.length) return null;
  const built = panels(names, width, (name) => {
    const values = t.reward[name] || [];
    const colour = rewardColour(name);
    return [...faintAndSmooth(t.steps, values, colour, "rollouts %{y:.3g}<extra></extra>"), evalDots(run, name, colour)];
  }, { height: names.length > 12 ? 110 : 150 });
  return { ...built, alt: `Last rollout means: ${summary(names, (n) => t.reward[n])}.` };
});

const relative = (t, name) => {
  const { mean, std } = t.origin[name] || {};
  return mean == null ? null : t.reward[name].map((v) => (v == null ? null : (v - mean) / (std || 1)));
};

chart("rewards-relative", (run) => {
  const t = run.training;
  const names = shown(run.rewards.filter((n) => t.reward[n] && relative(t, n)));
  if (!names.length) return null;
  return {
    data: names.map((n) => rewardLine(t.steps, smooth(relative(t, n)), n)),
    layout: layout({ xaxis: axis("step"), yaxis: axis("gain, σ", { zeroline: true, zerolinecolor: css("--muted") }), hovermode: hover(names) }),
    alt: `Gains at the end in standard deviations: ${summary(names, (n) => smooth(relative(t, n)))}.`,
  };
});

chart("progress", (run) => {
  const t = run.training;
  const names = shown(run.rewards.filter((n) => t.progress[n]));
  if (!names.length) return null;
  return {
    data: names.map((n) => rewardLine(t.steps, t.progress[n], n)),
    layout: layout({ xaxis: axis("step"), yaxis: axis("gain, σ", { zeroline: true, zerolinecolor: css("--muted") }), hovermode: hover(names) }),
    alt: `Last values in standard deviations: ${summary(names, (n) => t.progress[n])}.`,
  };
});

chart("alpha", (run) => {
  const t = run.training;
  const names = shown(run.rewards.filter((n) => t.alpha[n]));
  if (!names.length) return null;
  const uniform = 1 / run.pursued.length;
  return {
    data: names.map((n) => rewardLine(t.steps, t.per_point > 1 ? smooth(t.alpha[n]) : t.alpha[n], n)),
    layout: layout({
      xaxis: axis("step"), yaxis: axis("α", { rangemode: "tozero" }), hovermode: hover(names),
      shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: uniform, y1: uniform, line: { color: css("--muted"), width: 1.5, dash: "dash" } }],
      annotations: [{ xref: "paper", x: 1, y: uniform, yshift: 3, text: "uniform", showarrow: false, xanchor: "right", yanchor: "bottom", bgcolor: css("--ground"), font: { size: 11, color: css("--muted") } }],
    }),
    alt: `Uniform share ${number(uniform)}. Last values: ${summary(names, (n) => t.alpha[n])}.`,
  };
});

// Ticks at 1, 2 and 5 of every decade, at its 1 alone over many: Plotly's own are bare digits.
function logTicks(values) {
  const known = values.filter((v) => v > 0).map(Math.log10);
  if (!known.length) return {};
  const low = Math.floor(Math.min(...known)), high = Math.ceil(Math.max(...known));
  const tickvals = [];
  for (let e = low; e <= high; e++) for (const m of high - low > 3 ? [1] : [1, 2, 5]) tickvals.push(m * 10 ** e);
  return { tickvals, ticktext: tickvals.map((v) => String(Number(v.toPrecision(1)))) };
}

chart("grad-norm", (run) => {
  const t = run.training;
  const names = shown(run.rewards.filter((n) => t.grad_norm[n]));
  if (!names.length) return null;
  return {
    data: names.map((n) => rewardLine(t.steps, smooth(t.grad_norm[n]), n)),
    layout: layout({ xaxis: axis("step"), yaxis: axis("‖g‖", { type: "log", ...logTicks(names.flatMap((n) => t.grad_norm[n])) }), hovermode: hover(names) }),
    alt: `Last values: ${summary(names, (n) => t.grad_norm[n])}.`,
  };
});

const VITALS = { kl: "KL", old_deviation: "to v_old", loss: "loss" };

chart("vitals", (run, width) => {
  const t = run.training;
  const names = Object.keys(VITALS).filter((n) => t.vitals[n]);
  if (!names.length) return null;
  // Very small numbers are shown in units of a power of ten, which the title names.
  const powers = Object.fromEntries(names.map((n) => {
    const top = Math.max(...t.vitals[n].filter((v) => v != null).map(Math.abs));
    return [n, top > 0 && top < 0.01 ? Math.floor(Math.log10(top)) : 0];
  }));
  const scaled = (n) => t.vitals[n].map((v) => (v == null ? null : v / 10 ** powers[n]));
  const unit = (n) => (powers[n] ? `, 10<sup>${String(powers[n]).replace("-", "−")}</sup>` : "");
  const built = panels(names, width, (n) => faintAndSmooth(t.steps, scaled(n), css("--accent"), `%{y:.3g}${powers[n] ? `e${powers[n]}` : ""}<extra></extra>`),
    { titles: (n) => VITALS[n], units: unit, yaxis: (n) => (n === "loss" ? {} : { rangemode: "tozero" }) });
  return { ...built, alt: `Last values: ${summary(names, (n) => t.vitals[n])}.` };
});

chart("time", (run) => {
  const { steps, phases, totals, per_point: each } = run.training.time;
  const names = Object.keys(phases);
  if (!names.length) return null;
  const total = Object.values(totals).reduce((a, b) => a + b, 0);
  const share = (p) => `${p} ${Math.round((100 * totals[p]) / total)} %`;
  const colours = { rollout: "--r0", reward: "--r4", paired: "--r5", train: "--r7", refresh: "--r3", eval: "--r1" };
  return {
    data: names.map((p) => ({
      type: "bar", x: steps, y: phases[p], name: share(p), width: steps.length > 1 ? steps[1] - steps[0] : undefined,
      marker: { color: css(colours[p]), line: { width: 0 } }, opacity: 0.85, hovertemplate: `${p} %{y:.2f} s<extra></extra>`,
    })),
    layout: layout({ xaxis: axis("step"), yaxis: axis(each > 1 ? `seconds per step, mean of ${each}` : "seconds per step"), showlegend: true, legend: { ...legendBelow(), traceorder: "normal" }, barmode: "stack", hovermode: "x unified", height: 320 }),
    alt: `Share of the time: ${names.map(share).join(", ")}.`,
  };
});
