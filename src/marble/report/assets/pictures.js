// Pictures: base beside trained, sorted and filtered; the film of training; runs side by side.

const PAGE = 12;
const picture = { count: PAGE };

function image(index, alt) {
  return el("img", { src: DATA.images[index], alt, decoding: "async" });
}

function titled(index, title, prompt) {
  return el("figure", {}, image(index, `${title}: ${prompt}`), el("figcaption", {}, title));
}

function promptLine(row) {
  return el("p", { class: "prompt" }, row.prompt || "(empty prompt)", " ", el("span", { class: "tag" }, row.source));
}

function scoreLine(name, [before, after]) {
  const change = after - before;
  const way = change > 0 ? "up" : change < 0 ? "down" : "";
  const dot = el("span", { class: "dot", "aria-hidden": "true" });
  dot.style.background = rewardColour(name);
  return el("li", {}, dot, el("span", { class: "name", title: name }, name),
    el("span", { class: "both" }, `${number(before)} → ${number(after)}`),
    el("span", { class: `change ${way}` }, `${{ up: "▲", down: "▼", "": "=" }[way]} ${number(Math.abs(change))}`));
}

function card(pair, step) {
  return el("li", { class: "pair" },
    el("div", { class: "sides" }, titled(pair.base, "base", pair.prompt), titled(pair.trained, `step ${step}`, pair.prompt)),
    promptLine(pair),
    el("ul", { class: "scores" }, ...Object.entries(pair.scores).map(([name, both]) => scoreLine(name, both))));
}

function setUpPictures() {
  const { pairs } = DATA.pairs[state.run];
  const names = DATA.rewards.filter((n) => pairs.some((p) => p.scores[n]));
  options(byId("picture-sort"), [
    ["telling", "most telling first"], ["mean-", "regressed most, all rewards"], ["mean+", "improved most, all rewards"],
    ...names.flatMap((n) => [[`-${n}`, `${n}: largest fall`], [`+${n}`, `${n}: largest rise`]]),
  ]);
  options(byId("picture-source"), [["", "all sources"], ...[...new Set(pairs.map((p) => p.source))].sort().map((s) => [s, s])]);
  picture.count = PAGE;
}

function chosenPairs() {
  const sort = byId("picture-sort").value, source = byId("picture-source").value;
  const regressed = byId("picture-regressed").checked;
  const name = sort.slice(1), sign = sort[0] === "+" ? -1 : 1;
  const perReward = sort[0] === "+" || sort[0] === "-";
  const change = (p) => p.scores[name][1] - p.scores[name][0]; // as shown under the pictures
  const rows = DATA.pairs[state.run].pairs.filter((p) =>
    (!source || p.source === source) && (!perReward || p.scores[name]) && (!regressed || (perReward ? change(p) < 0 : p.mean < 0)));
  if (sort === "mean-") rows.sort((a, b) => a.mean - b.mean);
  if (sort === "mean+") rows.sort((a, b) => b.mean - a.mean);
  if (perReward) rows.sort((a, b) => sign * (change(a) - change(b)));
  return rows;
}

function drawPictures() {
  const { step, left_out: leftOut } = DATA.pairs[state.run];
  const rows = chosenPairs();
  const some = rows.slice(0, picture.count);
  byId("picture-list").replaceChildren(...some.map((pair) => card(pair, step)));
  const left = leftOut ? ` ${leftOut} less telling pairs are not in this file, to keep it small; they lie in the run folder.` : "";
  byId("picture-status").textContent = DATA.pairs[state.run].pairs.length
    ? `Showing ${some.length} of ${rows.length} pairs.${left}`
    : "No pairs yet: they appear once the base and the trained model have been evaluated.";
  byId("picture-more").hidden = some.length >= rows.length;
}

// The two pairs a reader should see before any chart: the best change and the worst.
function drawGlance() {
  const { pairs, step } = DATA.pairs[state.run];
  const sorted = [...pairs].sort((a, b) => b.mean - a.mean);
  const ends = sorted.length > 1 ? [sorted[0], sorted[sorted.length - 1]] : [];
  const title = (pair, i) => (i ? (pair.mean < 0 ? "Most regressed" : "Least improved") : pair.mean > 0 ? "Most improved" : "Least regressed");
  byId("glance").replaceChildren(...ends.map((pair, i) => el("div", {},
    el("h2", {}, `${title(pair, i)} `, el("small", {}, `${pair.mean.toFixed(2).replace("-", "−")} σ on average`)),
    el("div", { class: "sides" }, titled(pair.base, "base", pair.prompt), titled(pair.trained, `step ${step}`, pair.prompt)),
    promptLine(pair))));
}

function stripRow(row, titles, className = "film-row") {
  return el("div", { class: className },
    promptLine(row),
    el("div", { class: "strip", tabindex: 0, role: "group", "aria-label": `Pictures of: ${row.prompt}` }, ...row.images.map((index, i) => titled(index, titles[i], row.prompt))));
}

function drawFilm() {
  const film = DATA.films[state.run], fresh = DATA.rollouts[state.run], target = byId("film");
  if (fresh) {
    return target.replaceChildren(el("h3", {}, `Training pictures of step ${fresh.step}`),
      el("ul", { class: "gallery" }, ...fresh.pictures.map((p) => el("li", {}, image(p.image, `Training picture: ${p.prompt}`), promptLine(p)))));
  }
  if (!film) return target.replaceChildren();
  const titles = film.steps.map((s) => (s ? `step ${s}` : "base"));
  target.replaceChildren(el("h3", {}, "The same prompts and seeds during training"), ...film.rows.map((row) => stripRow(row, titles)));
}

function drawByMethod() {
  const beside = DATA.by_method, target = byId("by-method");
  if (!target || !beside) return;
  const names = ["base", ...beside.runs.map((i) => DATA.runs[i].name)];
  target.replaceChildren(
    el("h3", {}, "The same prompts and seeds by run"),
    el("p", { class: "status" }, `The ${beside.rows.length} prompts on which the runs differ most${beside.left_out ? `, of ${beside.rows.length + beside.left_out}` : ""}. Under each picture: its mean change over all rewards, in σ.`),
    ...beside.rows.map((row) => stripRow(row, names.map((n, i) => (i ? `${n} ${row.mean[i] > 0 ? "+" : ""}${row.mean[i].toFixed(2)} σ`.replace("-", "−") : n)))));
}

function listenToPictures() {
  for (const id of ["picture-sort", "picture-source", "picture-regressed"]) {
    byId(id).addEventListener("change", () => { picture.count = PAGE; drawPictures(); });
  }
  byId("picture-more").addEventListener("click", () => {
    const next = picture.count;
    picture.count += PAGE;
    drawPictures();
    // Keyboard readers go on where the new pictures start.
    const first = byId("picture-list").children[next];
    if (first) { first.tabIndex = -1; first.focus(); }
  });
}
