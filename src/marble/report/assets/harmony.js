// Harmony between rewards, and the advantages that show specialist samples.

const KIND_LOOKS = {
  harmony: ["--blue", "solid", 2.5], harmony_heldout: ["--c2", "dot", 2],
  harmony_applied: ["--c5", "dash", 2], harmony_sum: ["--orange", "dashdot", 2],
};
const PARTS = { min: "worst reward", mean: "mean over rewards", var: "variance between rewards" };

chart("harmony-curves", (run, width) => {
  const kinds = Object.entries(run.harmony.kinds);
  if (!kinds.length) return null;
  const built = panels(Object.keys(PARTS), width, (part, i) => kinds.map(([key, kind]) => {
    const [colour, dash, thick] = KIND_LOOKS[key];
    return line(kind.steps, smooth(kind[part]), css(colour), {
      name: kind.label, legendgroup: key, showlegend: i === 0, line: { color: css(colour), dash, width: thick },
      hovertemplate: `${kind.label} %{y:.3f}<extra></extra>`,
    });
  }), { titles: (p) => PARTS[p], height: 190, yaxis: (p) => (p === "var" ? { rangemode: "tozero" } : { zeroline: true, zerolinecolor: css("--muted"), zerolinewidth: 1.5 }) });
  return { ...addLegend(built, width, kinds.length), alt: kinds.map(([, k]) => `${k.label}: worst cosine ${number(k.averages.min)} on average`).join("; ") + "." };
});

function drawConflicts(run) {
  const kinds = Object.values(run.harmony.kinds);
  const target = byId("conflicts");
  if (!kinds.length) return target.replaceChildren();
  const head = ["Direction", "Worst cos", "Mean cos", "Variance", "Conflict rate", "Steps"];
  const rows = kinds.map((k) => el("tr", {}, el("th", { scope: "row" }, k.label),
    ...[signed(k.averages.min), signed(k.averages.mean), number(k.averages.var), `${Math.round(100 * k.conflict)} %`, String(k.n)].map((text) => el("td", { class: "n" }, text))));
  target.replaceChildren(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of harmony" },
    el("table", {},
      el("caption", {}, el("span", {}, "Averages over refresh steps. Conflict rate: share of steps on which the worst reward's cosine is below zero.")),
      el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { scope: "col", class: i ? "n" : "" }, h)))),
      el("tbody", {}, ...rows))));
}

const diverging = () => [[0, css("--orange")], [0.5, css("--neutral")], [1, css("--blue")]];

function heatmap(x, y, z, extra) {
  return {
    type: "heatmap", x, y, z, colorscale: diverging(), hoverongaps: false,
    colorbar: { thickness: 10, outlinewidth: 0, tickfont: { size: 11, color: css("--muted") }, len: 0.9 }, ...extra,
  };
}

chart("cosines", (run, width) => {
  const cosines = run.harmony.cosines;
  const at = slider("cosines", cosines ? cosines.steps : []);
  if (at == null) return null;
  const names = run.rewards, k = names.length, upper = cosines.upper[at];
  const z = names.map(() => Array(k).fill(null));
  let i = 0;
  for (let a = 0; a < k; a++) {
    z[a][a] = 1;
    for (let b = a + 1; b < k; b++, i++) z[a][b] = z[b][a] = upper[i] == null ? null : upper[i] / 100;
  }
  const few = k <= 10, labels = names.map((n) => plain(brief(n, 16)));
  const side = Math.min(width, few ? 140 + 74 * k : 780);
  const ticks = { tickvals: names.map((_, j) => j), ticktext: labels, showgrid: false, zeroline: false, tickfont: { size: few ? 12 : 10, color: css("--ink") }, constrain: "domain" };
  const pairs = [];
  for (let a = 0; a < k; a++) for (let b = a + 1; b < k; b++) if (z[a][b] != null) pairs.push([z[a][b], names[a], names[b]]);
  pairs.sort((p, q) => p[0] - q[0]);
  const index = names.map((_, j) => j);
  return {
    data: [heatmap(index, index, z, {
      zmin: -1, zmax: 1, xgap: few ? 3 : 1, ygap: few ? 3 : 1, text: z.map((row) => row.map((v) => (v == null ? "" : v.toFixed(2).replace("-", "−")))), texttemplate: few && width > 420 ? "%{text}" : "",
      customdata: names.map((a) => names.map((b) => `${plain(a)} · ${plain(b)}`)), hovertemplate: "%{customdata}<br>cos %{z:.2f}<extra></extra>",
    })],
    layout: layout({ height: Math.min(side * 0.86, 680), margin: { l: 30, r: 10, t: 10, b: 30 }, xaxis: axis("", { ...ticks, tickangle: few && width > 520 ? 0 : -45 }), yaxis: axis("", { ...ticks, autorange: "reversed" }) }),
    alt: pairs.length ? `Most opposed: ${pairs[0][1]} and ${pairs[0][2]}, cosine ${number(pairs[0][0])}.` : "",
  };
});

chart("advantages", (run) => {
  const at = slider("advantages", run.advantages.map((t) => t.step));
  const fact = byId("specialist-fact");
  if (at == null) return (fact.textContent = ""), null;
  const table = run.advantages[at], count = table.source.length;
  const several = table.specialists != null;
  fact.textContent = several
    ? `At step ${table.step}, ${Math.round(100 * table.specialists)} % of the pictures are specialists: clearly good for one reward (advantage above 1) and below average for the rest.`
    : "";
  const edges = [];
  table.source.forEach((source, i) => { if (!i || source !== table.source[i - 1]) edges.push([i, source]); });
  const shapes = edges.slice(1).map(([i]) => ({ type: "line", x0: i - 0.5, x1: i - 0.5, yref: "paper", y0: 0, y1: 1.03, line: { color: css("--ink"), width: 1 } }));
  const annotations = edges.map(([i, source], j) => ({
    text: plain(source), x: (i + (edges[j + 1] ? edges[j + 1][0] : count)) / 2 - 0.5, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, font: { size: 12, color: css("--ink") },
  }));
  const index = table.rewards.map((_, k) => k);
  return {
    data: [heatmap(table.source.map((_, i) => i), index, table.values, {
      zmin: -3, zmax: 3, ygap: 2, customdata: table.rewards.map((r) => table.prompt.map((p, i) => `${plain(brief(p, 60))}<br>group ${table.group[i]} · ${plain(r)}`)),
      hovertemplate: "%{customdata} %{z:+.2f}<extra></extra>",
    })],
    layout: layout({
      height: 110 + Math.max(18, Math.min(40, 420 / index.length)) * index.length, margin: { l: 30, r: 10, t: 28, b: 40 }, shapes, annotations,
      xaxis: axis(count < table.samples ? `${count} of ${table.samples} pictures` : "pictures", { showgrid: false, showticklabels: false, ticks: "", zeroline: false }),
      yaxis: axis("", { tickvals: index, ticktext: table.rewards.map((n) => plain(brief(n, 16))), autorange: "reversed", showgrid: false, zeroline: false, tickfont: { size: index.length > 12 ? 10 : 12, color: css("--ink") } }),
    }),
    alt: fact.textContent,
  };
});
