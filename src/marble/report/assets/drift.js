// Drift statistics: image statistics against the base's range, and the gap to held-out rewards.

chart("drift-curves", (run, width) => {
  const names = Object.keys(run.drift);
  const extra = run.training.drift.diversity && !names.includes("diversity") ? ["diversity"] : [];
  const every = [...names, ...extra];
  if (!every.length) return null;
  const t = run.training;
  const built = panels(every, width, (name) => {
    const own = run.drift[name];
    const traces = [];
    if (own && own.range) {
      const x = [0, Math.max(...own.steps, ...t.steps, 1)];
      traces.push(
        { type: "scatter", mode: "lines", x, y: [own.range[0], own.range[0]], line: { width: 0 }, hoverinfo: "skip" },
        { type: "scatter", mode: "lines", x, y: [own.range[1], own.range[1]], line: { width: 0 }, fill: "tonexty", fillcolor: css("--good-ground"), hoverinfo: "skip" });
    }
    if (t.drift[name]) traces.push(line(t.steps, smooth(t.drift[name]), css("--muted"), { opacity: own ? 0.55 : 1, line: { width: 1.2, color: css("--muted") }, hovertemplate: "rollouts %{y:.3g}<extra></extra>" }));
    if (own) {
      const out = own.flagged;
      traces.push({
        type: "scatter", mode: "lines+markers", x: own.steps, y: own.means, line: { color: css("--blue"), width: 1.5 },
        marker: { size: 8, color: out.map((o) => css(o ? "--bad" : "--blue")), symbol: out.map((o) => (o ? "x" : "circle")) }, hovertemplate: "evaluation %{y:.3g}<extra></extra>",
      });
    }
    return traces;
  }, { titles: (n) => (run.drift[n] ? run.drift[n].title : "Diversity within a prompt"), yaxis: (n) => (n === "diversity" ? { rangemode: "tozero" } : {}) });
  const outside = names.filter((n) => run.drift[n].flagged.at(-1));
  return { ...built, alt: outside.length ? `Flagged at the end: ${outside.join(", ")}.` : "None flagged at the end." };
});

chart("gap", (run) => {
  const rows = run.gains;
  if (!rows.length) return null;
  const steps = [0, ...rows.map((g) => g.step)];
  const data = [line(steps, [0, ...rows.map((g) => g.trained)], css("--blue"), { mode: "lines+markers", name: "trained rewards" })];
  if (rows.some((g) => g.held != null)) {
    data.push(line(steps, [0, ...rows.map((g) => g.held)], css("--orange"), { mode: "lines+markers", name: "held-out rewards", line: { color: css("--orange"), width: 2, dash: "dash" } }));
  }
  const end = rows[rows.length - 1];
  return {
    data,
    layout: layout({ xaxis: axis("step"), yaxis: axis("mean gain, σ", { zeroline: true, zerolinecolor: css("--muted") }), showlegend: true, legend: legendBelow(), hovermode: "x unified", height: 300 }),
    alt: `At step ${end.step}: trained ${signed(end.trained)} σ, held-out ${end.held == null ? "not measured" : signed(end.held) + " σ"}.`,
  };
});
