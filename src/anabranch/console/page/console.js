"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "class") node.className = value; else node.setAttribute(key, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };
  const sum = (values) => Object.values(values).reduce((total, value) => total + value, 0);
  const none = (value) => value === null || value === undefined;
  // At most three digits, without zeros at the end: 20, 2.5, 0.125.
  const short = (value) => String(Number(value.toPrecision(3)));
  const scaled = (value, units) => {
    const [size, unit] = units.find(([least]) => Math.abs(value) >= least) || units[units.length - 1];
    return short(value / size) + (unit ? " " + unit : "");
  };
  const count = (value) => value >= 1e4 ? scaled(value, [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    : value >= 100 ? Math.round(value).toLocaleString("en") : short(value);
  const bytes = (value) => scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);
  const seconds = (value) => value === 0 ? "0 s" : scaled(value, [[172800, "days"], [7200, "h"], [120, "min"], [1, "s"], [.001, "ms"]]);
  const number = (value) => none(value) ? "–" : count(value);
  const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");
  // The steps between the ticks of an axis of seconds: round numbers of milliseconds, seconds, minutes, hours or days.
  const STEPS = [[.001, [1, 2, 5, 10, 20, 50, 100, 200, 500]], [1, [1, 2, 5, 10, 20, 30, 60]], [60, [2, 5, 10, 20, 30, 60]],
    [3600, [2, 4, 6, 12, 24, 48]], [86400, [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]]].flatMap(([unit, steps]) => steps.map((step) => unit * step));

  let runs = [], run = null, figures = null, quiet = "", samples = [], records = [], events = null, canAct = false;
  let view = "now", charts = {}, drawn = "", answered = Date.now() / 1000, state = "";

  // --- runs and news ------------------------------------------------------------------------------------------------

  async function loadRuns() {
    const found = await (await fetch("api/runs", {signal: AbortSignal.timeout(5000)})).json();
    canAct = found.canAct;
    const ids = found.runs.map((each) => each.id).join();
    const known = runs.map((each) => each.id).join();
    runs = found.runs;
    const same = run && runs.find((each) => each.id === run.id);
    if (ids !== known) $("run").replaceChildren(...runs.map((each) => el("option", {value: each.id}, each.title)));
    if (!same || events.readyState === EventSource.CLOSED) return follow(same || runs[runs.length - 1]);
    run = same;
    $("run").value = run.id;
    if (events.readyState === EventSource.OPEN) answer();
    showControls();
  }

  function follow(chosen) {
    if (events) events.close();
    run = chosen; figures = null; quiet = ""; samples = []; records = []; drawn = "";
    if (!run) return;
    $("run").value = run.id;
    $("text").textContent = run.text;
    $("query").replaceChildren(...(run.queries.length ? run.queries : [""]).map((name) => el("option", {value: name}, name || "the query")));
    $("query").parentElement.hidden = run.queries.length < 2;
    showControls();
    for (const chart of Object.values(charts)) chart.destroy();
    charts = {};
    for (const each of document.querySelectorAll(".charts figure")) each.hidden = !run.hasPicture;
    events = new EventSource(`api/runs/${encodeURIComponent(run.id)}/events`);
    events.onmessage = (event) => take(JSON.parse(event.data));
    events.onerror = silence;
  }

  function showControls() {
    $("act").hidden = !canAct || !run.canChange;
    $("controls").hidden = !$("token").value;
  }

  function take(news) {
    if (news.samples.length) samples = samples.filter((each) => each.number < news.samples[0].number).concat(news.samples).slice(-1000);
    const seen = new Set(records.map((record) => JSON.stringify(record)));
    records = records.concat(news.records.filter((record) => !seen.has(JSON.stringify(record))));
    figures = news.figures; quiet = news.quiet; state = news.status;
    answer();
    show();
  }

  // The console answered: the figures are those of now.
  function answer() {
    answered = Date.now() / 1000;
    document.body.classList.remove("stale");
    const kind = state.split(":")[0];
    status(state.split("\n")[0] + (kind === "running" && figures ? `, batch ${figures.batch}` : ""), kind);
    if (kind === "failed") notice(`The query ${state}`, "bad");
    else if (kind === "ended") notice("The query has ended. The figures are those of its last minute.");
    else if (quiet === "idle") notice(`Idle since ${clock(figures.end)}: no new rows.`);
    else if (quiet === "busy") notice(`No batch has ended since ${clock(figures.end)}. The next one is running.`);
    else if (figures && figures.migrating.length) notice(changing(figures.migrating));
    else notice("");
  }

  function changing(slots) {
    const begun = records.findLast((each) => each.phase === "began");
    return `The plan is changing${begun ? ` to ${begun.to}` : ""} in slot${slots.length > 1 ? "s" : ""} ${slots.join(", ")}.`;
  }

  function silence() {
    document.body.classList.add("stale");
    status("no answer", "failed");
    notice(`No answer from the console since ${clock(answered)}. The driver may have ended. The figures are from then.`, "bad");
  }

  function notice(words, kind = "") {
    $("notice").hidden = !words;
    $("notice").className = "notice " + kind;
    if ($("notice").textContent !== words) $("notice").textContent = words;
  }

  function status(words, kind) {
    $("status").textContent = words;
    $("status").className = "status " + kind;
  }

  // --- now ----------------------------------------------------------------------------------------------------------

  const tile = (value, words, extra = null, kind = "") => el("div", {class: "tile " + kind}, el("b", {}, value), extra, el("span", {}, words));

  function showNow() {
    const facts = run.facts || {};
    if (!figures) {
      const stored = Object.keys(facts).length;
      $("tiles").replaceChildren(...(stored ? [
        tile(String(facts.batch), "last committed batch"), tile(count(facts.rows), "rows kept"), tile(String(facts.files), "row files"),
        ...Object.entries(facts.plans).map(([name, plan]) => el("div", {class: "tile"}, el("code", {}, plan), el("span", {}, " plan of " + (name || "the query")))),
      ] : [el("p", {class: "none"}, "Waiting for the first batch …")]));
      $("slots").replaceChildren(...(stored ? [table("Slots", ["slot", "groups"], Object.entries(facts.slots))] : []));
      for (const id of ["streams", "queries"]) $(id).replaceChildren();
      return;
    }
    const now = figures, isIdle = quiet === "idle";
    const split = el("div", {class: "split", title: "ours, and Spark's"}, el("i", {style: `width:${Math.min(100, 100 * now.own / (now.trigger || 1))}%`}));
    const late = now.streams.filter((each) => each.lateTotal);
    $("tiles").replaceChildren(
      tile(isIdle ? "0" : count(now.in), isIdle ? "rows/s in: idle" : "rows/s in"),
      tile(isIdle ? "0" : count(now.out), isIdle ? "rows/s out: idle" : "rows/s out"),
      tile(seconds(now.trigger), `trigger, longest ${seconds(now.longest)}: ours ${seconds(now.own)}, Spark ${seconds(Math.max(0, now.trigger - now.own))}`, split),
      tile(none(now.lag) ? "–" : seconds(Math.max(0, now.lag)), none(now.lag) ? "no watermark: a stream had no rows yet" : "watermark behind"),
      tile(bytes(now.stateBytes), `state, ${count(now.stateRows)} rows`),
      tile(count(sum(late.map((each) => each.lateTotal))), late.length ? "late rows: " + late.map((each) => `${each.stream} ${count(each.lateTotal)}`).join(", ") : "late rows", null, late.length ? "warn" : ""),
      ...(none(now.backlog) ? [] : [tile(count(now.backlog), "backlog of the sources")]),
      tile(short(now.skew), `skew over ${now.slots.filter((slot) => slot.groups).length} slots`),
    );
    $("streams").replaceChildren(table("Streams", ["stream", "rows/s", "behind", "late in the last minute", "late in all"], now.streams.map((each) => [
      each.stream + (each.idle ? " (idle)" : ""), isIdle ? "0" : count(each.rate), none(each.lag) ? "–" : seconds(Math.max(0, each.lag)), lateRows(each.late), lateRows(each.lateTotal)])));
    const most = Math.max(1, ...now.slots.map((slot) => slot.load));
    $("slots").replaceChildren(table("Slots", ["slot", "load (cores)", "state", "groups"], now.slots.map((slot) => [
      slot.slot, el("span", {}, el("span", {class: "load"}, el("i", {style: `width:${isIdle ? 0 : 100 * slot.load / most}%`})), el("span", {class: "figure"}, isIdle ? "0" : short(slot.load))),
      bytes(slot.bytes) + (slot.rebuilt ? " (rebuilt)" : ""), slot.groups])));
    $("queries").replaceChildren(...(now.queries.length ? [table("Queries", ["query", "results/s", "results", "plan"],
      now.queries.map((each) => [each.query, isIdle ? "0" : count(each.rate), count(each.total), each.plan]), [3])] : []));
    draw();
  }

  const lateRows = (rows) => rows ? el("span", {class: "warned"}, count(rows)) : "0";

  function table(caption, heads, rows, left = []) {
    const cell = (tag, value, place) => el(tag, left.includes(place) ? {class: "left"} : {}, value instanceof Node ? value : String(value));
    return el("table", {}, caption ? el("caption", {}, caption) : null, el("thead", {}, el("tr", {}, ...heads.map((head, i) => cell("th", head, i)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value, i) => cell("td", value, i))))));
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  function draw() {
    const of = (name) => samples.map((each) => none(each[name]) ? null : Math.max(0, each[name]));
    plot("chart-rows", [["in", "in", of("in")], ["out", "out", of("out"), false, "right"]], count);
    plot("chart-trigger", [["whole", "spark", of("trigger"), true], ["ours", "ours", of("own"), true]], seconds, STEPS);
    plot("chart-state", [["bytes", "ours", of("stateBytes"), true]], bytes);
    plot("chart-lag", [["behind", "out", of("lag")]], seconds, STEPS);
  }

  const fromZero = {range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1]};

  // The style sheet gives each chart its place; below the curve is the legend.
  const size = (id) => ({width: $(id).clientWidth, height: Math.max(120, $(id).clientHeight - ($(id).querySelector(".u-legend")?.offsetHeight ?? 40))});

  function plot(id, series, words, incrs) {
    const data = [samples.map((each) => each.number), ...series.map((each) => each[2])];
    if (charts[id]) {
      const wanted = size(id);
      if (charts[id].width !== wanted.width || charts[id].height !== wanted.height) charts[id].setSize(wanted);
      charts[id].setData(data);
      return latestInLegend(charts[id]);
    }
    const axis = {stroke: colour("soft"), grid: {stroke: colour("line"), width: 1}, ticks: {stroke: colour("line")}};
    const tall = {...axis, size: 72, values: (_, ticks) => ticks.map(words), ...(incrs ? {incrs} : {})};
    const path = uPlot.paths.stepped({align: 1});
    charts[id] = new uPlot({...size(id), cursor: {drag: {x: true, y: false}}, padding: [null, series.some((each) => each[4]) ? null : 30, null, null], plugins: [{hooks: {drawAxes: [marks], setLegend: [latestInLegend]}}],
      series: [{label: "time", value: (_, time) => none(time) ? "" : clock(time)}, ...series.map(([label, tint, , fill, side]) => ({label, scale: side || "y", stroke: colour(tint), width: 1.5,
        fill: fill ? colour(tint) + "40" : undefined, paths: path, points: {show: (chart) => chart.data[0].length < 2}, value: (_, value) => none(value) ? "" : words(value)}))],
      axes: [{...axis, space: 90, size: 34, values: (_, ticks) => ticks.map(clock)}, {...tall, stroke: colour(series.length > 1 && series[1][4] ? series[0][1] : "soft")},
        ...series.filter((each) => each[4]).map((each) => ({...tall, scale: each[4], side: 1, grid: {show: false}, stroke: colour(each[1])}))],
      scales: {y: fromZero, right: fromZero}}, data, $(id));
    latestInLegend(charts[id]);
  }

  // Without a cursor the legend has the latest values.
  function latestInLegend(chart) {
    const idx = chart.data[0].length - 1;
    if (!(chart.cursor.left >= 0) && idx >= 0 && chart.legend.idx !== idx) chart.setLegend({idx});
  }

  // Changes of the plan and moves, as dashed lines.
  function marks(chart) {
    const context = chart.ctx;
    context.save();
    context.strokeStyle = colour("bad");
    context.setLineDash([4, 4]);
    for (const record of records) {
      if (record.phase !== "began" && record.kind !== "move") continue;
      const sample = samples.find((each) => each.first <= record.batch && record.batch <= each.batch);
      if (!sample) continue;
      const x = chart.valToPos(sample.number, "x", true);
      context.beginPath();
      context.moveTo(x, chart.bbox.top);
      context.lineTo(x, chart.bbox.top + chart.bbox.height);
      context.stroke();
    }
    context.restore();
  }

  // --- the plan -----------------------------------------------------------------------------------------------------

  async function showPlan() {
    if (!figures) {
      $("picture").replaceChildren(el("p", {class: "none"}, run.hasPicture ? "Waiting for the first batch …" : "A stored run has the texts of its plans only."));
      return;
    }
    const name = $("query").value, chosen = run, wanted = `${run.id} ${figures.batch} ${name}`;
    $("plan-text").textContent = (figures.queries.find((each) => each.query === name) || figures).plan;
    if (drawn === wanted) return;
    drawn = wanted;
    const picture = await fetch(`api/runs/${encodeURIComponent(chosen.id)}/plan.svg?query=${encodeURIComponent(name)}`);
    if (picture.ok && drawn === wanted) $("picture").innerHTML = await picture.text();
  }

  // "0-7, 12" as a list of numbers; null if it is none.
  function numbers(text) {
    const found = [];
    for (const part of text.split(",").map((each) => each.trim()).filter(Boolean)) {
      const range = /^(\d{1,5})(?:\s*-\s*(\d{1,5}))?$/.exec(part);
      if (!range) return null;
      for (let each = Number(range[1]); each <= Number(range[2] ?? range[1]); each += 1) found.push(each);
    }
    return found.length ? found : null;
  }
  const whole = (id) => /^\d{1,5}$/.test($(id).value.trim()) ? Number($(id).value) : null;

  // What an action sends, or the words that say what is missing. A key's value goes as text: its type is the key's.
  const requests = {
    migrate: () => $("new-plan").value.trim() ? {plan: $("new-plan").value.trim()} : "write a plan, such as ((a b) c)",
    scale: () => whole("slot-count") ? {slots: whole("slot-count")} : "write a number of slots",
    move: () => {
      const groups = numbers($("move-groups").value), to = whole("move-to");
      return groups === null ? "write partition groups, such as 0-7, 12" : to === null ? "write the slot that they move to" : {groups, to};
    },
    split: () => $("key-value").value.trim() ? {value: $("key-value").value.trim(), key: $("key-name").value.trim()} : "write a value of a key",
  };
  requests.unite = requests.split;

  async function act(action) {
    const say = (words, kind) => { $("answer").textContent = words; $("answer").className = kind; };
    const wanted = (requests[action] || (() => ({})))();
    if (typeof wanted === "string") return say(wanted, "bad");
    say("asking …", "");
    try {
      const answer = await fetch(`api/runs/${encodeURIComponent(run.id)}/${action}`, {method: "POST",
        headers: {Authorization: "Bearer " + $("token").value, "Content-Type": "application/json"}, body: JSON.stringify({query: $("query").value, ...wanted})});
      const value = await answer.json();
      say(answer.ok ? "asked for; the next batch takes it up" : value.error, answer.ok ? "good" : "bad");
    } catch {
      say("no answer from the console", "bad");
    }
  }

  // --- why ----------------------------------------------------------------------------------------------------------

  function headline(record) {
    switch (record.kind) {
      case "start": return `started with ${record.plan}: ${record.reason}`;
      case "decision": return record.action === "migrate" ? `change to ${record.proposed}: ${record.reason}` : `keep ${record.plan}: ${record.reason}`;
      case "migration": return record.phase === "began" ? `${record.from} → ${record.to} ` + (record.strategy === "none" ? "without moving state" : `by ${record.strategy}`)
          + (record.recomputedRows ? `, ${count(record.recomputedRows)} rows computed` : "") + `, ${seconds(record.seconds)} of pause`
        : `change ${record.phase}: the plan is ${record.plan}` + (record.reason ? ` (${record.reason})` : "");
      case "move": if (!record.moves.length && (record.split || record.united)) return `a key was ${record.split ? "split over slots" : "united"} by ${record.by}`;
        return `${record.moves.reduce((n, move) => n + move.groups.length, 0)} partition groups moved by ${record.by}, ${count(record.rows)} rows taken over`;
      case "balance": return (record.action === "move" ? "move groups" : "leave the groups") + `: ${record.reason}`;
      default: return record.reason || JSON.stringify(record);
    }
  }

  function around(batch) {
    const known = samples.filter((each) => each.batches);
    const before = known.filter((each) => each.batch < batch).slice(-5), after = known.filter((each) => each.first > batch).slice(0, 5);
    if (!before.length && !after.length) return null;
    const total = (several, read) => several.reduce((found, each) => found + each.batches * read(each), 0);
    const line = (words, several) => {
      const batches = total(several, () => 1), mean = (read, unit) => batches ? unit(total(several, read) / batches) : "–";
      return [words, batches, mean((each) => each.trigger, seconds), mean((each) => each.cpu, seconds), mean((each) => each.stateBytes, bytes), mean((each) => each.skew, short)];
    };
    return el("div", {class: "scroll"}, table("", ["batches", "count", "trigger", "CPU of slots", "state", "skew"], [line("before", before), line("after", after)]));
  }

  function details(record) {
    const parts = [];
    const cost = (which, plan, value) => [which, plan, number(value.cpu), none(value.memory) ? "–" : bytes(value.memory), number(value.rate)];
    const costs = (...rows) => el("div", {class: "scroll"}, table("", ["", "plan", "cores", "memory", "results/s"], [...rows, ...(record.considered || []).map((each) => cost(each.reason, each.plan, each.cost))], [0, 1]));
    if (record.kind === "start") parts.push(el("p", {class: "note"}, "Costs as estimated before the first batch."), costs(cost("taken", record.plan, record.cost)));
    if (record.kind === "decision") {
      parts.push(el("p", {class: "note"}, `Looked because ${record.trigger} (policy ${record.policy}, proposed by the ${record.origin}).`));
      parts.push(costs(cost("in force", record.plan, record.cost), cost("proposed", record.proposed, record.proposedCost)));
      if (record.migrationCost) parts.push(el("p", {class: "note"}, "Migration as estimated: " + Object.entries(record.migrationCost).map(([key, value]) => `${key} ${typeof value === "number" ? number(value) : value}`).join(", ")));
      parts.push(el("details", {}, el("summary", {}, "Statistics it rested on"), el("pre", {}, JSON.stringify(record.statistics, null, 1))));
    }
    if ((record.bestWhile || []).length) parts.push(el("p", {class: "note"}, "The plan stays the best while"), el("ul", {class: "note"}, ...record.bestWhile.map((each) => el("li", {}, each))));
    const nearby = record.kind === "start" || record.action === "keep" ? null : around(record.batch);
    if (nearby) parts.push(nearby);
    parts.push(el("details", {}, el("summary", {}, "The record"), el("pre", {}, JSON.stringify(record, null, 1))));
    return parts;
  }

  let listed = "";
  function showWhy() {
    const all = $("keeps").checked;
    const wanted = records.filter((record) => all || record.action !== "keep");
    const shown = [...wanted.slice(0, -300).filter((record) => record.kind === "start"), ...wanted.slice(-300)].reverse();
    const key = run.id + shown.length + all + JSON.stringify(shown[0] || "");
    if (key === listed) return;
    listed = key;
    $("records").replaceChildren(...(shown.length ? shown.map((record) => {
      const node = el("details", {class: `record ${record.kind} ${record.action || ""} ${record.phase || ""}`},
        el("summary", {}, el("span", {}, `batch ${record.batch}`), el("span", {}, (record.query ? record.query + ": " : "") + headline(record))));
      node.addEventListener("toggle", () => { if (node.open && node.children.length === 1) node.append(...details(record)); });
      return node;
    }) : [el("p", {class: "none"}, "Nothing was recorded yet.")]));
  }

  // --- views --------------------------------------------------------------------------------------------------------

  const views = {now: showNow, plan: () => showPlan().catch(() => { drawn = ""; silence(); }), why: showWhy};
  function show() { if (run) views[view](); }
  function open(name) {
    view = name;
    for (const each of Object.keys(views)) { $(each).hidden = each !== name; $("tab-" + each).setAttribute("aria-selected", String(each === name)); }
    show();
  }
  for (const name of Object.keys(views)) $("tab-" + name).addEventListener("click", () => open(name));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
    const name = Object.keys(views)[Number(event.key) - 1];
    if (name) open(name);
  });
  $("run").addEventListener("change", () => { follow(runs.find((each) => each.id === $("run").value)); show(); });
  $("query").addEventListener("change", show);
  $("token").addEventListener("input", showControls);
  $("picture").addEventListener("click", () => $("picture").classList.toggle("full"));
  $("keeps").addEventListener("change", show);
  for (const button of document.querySelectorAll("[data-action]")) button.addEventListener("click", () => act(button.dataset.action));
  new ResizeObserver(() => { if (view === "now") show(); }).observe(document.querySelector(".charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const chart of Object.values(charts)) chart.destroy(); charts = {}; show(); });
  const keepLooking = () => loadRuns().catch(silence);
  keepLooking();
  setInterval(keepLooking, 5000);
})();
