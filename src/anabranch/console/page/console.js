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
  const count = (value) => value >= 1e9 ? (value / 1e9).toPrecision(3) + " G" : value >= 1e6 ? (value / 1e6).toPrecision(3) + " M"
    : value >= 1e4 ? (value / 1e3).toPrecision(3) + " k" : value >= 10 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toPrecision(2);
  const bytes = (value) => value >= 1e9 ? (value / 1e9).toFixed(2) + " GB" : value >= 1e6 ? (value / 1e6).toFixed(1) + " MB"
    : value >= 1e3 ? (value / 1e3).toFixed(1) + " kB" : value + " B";
  const seconds = (value) => value >= 172800 ? (value / 86400).toFixed(1) + " days" : value >= 7200 ? (value / 3600).toFixed(1) + " h"
    : value >= 120 ? (value / 60).toFixed(1) + " min" : value >= 1 ? value.toFixed(2) + " s" : (value * 1000).toFixed(0) + " ms";
  const number = (value) => value === null || value === undefined ? "–" : Math.abs(value) >= 1e4 || value === 0 ? count(value) : Number(value).toPrecision(3);

  let runs = [], run = null, points = [], records = [], events = null, canAct = false, view = "now", charts = {}, drawn = -1;

  // --- runs and news ------------------------------------------------------------------------------------------------

  async function loadRuns() {
    const found = await (await fetch("api/runs")).json();
    canAct = found.canAct;
    const ids = found.runs.map((each) => each.id).join();
    const known = runs.map((each) => each.id).join();
    runs = found.runs;
    if (ids === known) return;
    $("run").replaceChildren(...runs.map((each) => el("option", {value: each.id}, each.title)));
    if (!run || !runs.some((each) => each.id === run.id)) follow(runs[runs.length - 1]);
    else $("run").value = run.id;
  }

  function follow(chosen) {
    if (events) events.close();
    run = chosen; points = []; records = []; drawn = -1;
    if (!run) return;
    $("run").value = run.id;
    $("text").textContent = run.text;
    $("query").replaceChildren(...(run.queries.length ? run.queries : [""]).map((name) => el("option", {value: name}, name || "the query")));
    $("query").parentElement.hidden = run.queries.length < 2;
    $("act").hidden = !canAct; $("read-only").hidden = canAct;
    for (const chart of Object.values(charts)) chart.destroy();
    charts = {};
    for (const each of document.querySelectorAll(".charts figure")) each.hidden = !run.hasPicture;
    events = new EventSource(`api/runs/${encodeURIComponent(run.id)}/events`);
    events.onmessage = (event) => take(JSON.parse(event.data));
    events.onerror = () => status("the console does not answer", "failed");
  }

  function take(news) {
    const last = points.length ? points[points.length - 1].batch : -1;
    points = points.concat(news.points.filter((point) => point.batch > last)).slice(-1000);
    const seen = new Set(records.map((record) => JSON.stringify(record)));
    records = records.concat(news.records.filter((record) => !seen.has(JSON.stringify(record))));
    const kind = news.status.split(":")[0];
    const batch = points.length ? `, batch ${points[points.length - 1].batch}` : "";
    status(news.status + (kind === "running" ? batch : ""), kind);
    show();
  }

  function status(words, kind) {
    $("status").textContent = words.split("\n")[0];
    $("status").className = "status " + kind;
  }

  // --- now ----------------------------------------------------------------------------------------------------------

  const tile = (value, words, extra = null, kind = "") => el("div", {class: "tile " + kind}, el("b", {}, value), extra, el("span", {}, words));

  function showNow() {
    const facts = run.facts || {};
    if (!points.length) {
      const stored = Object.keys(facts).length;
      $("tiles").replaceChildren(...(stored ? [
        tile(String(facts.batch), "last committed batch"), tile(count(facts.rows), "rows kept"), tile(String(facts.files), "row files"),
        tile(String(Object.keys(facts.slots).length), "slots"),
        ...Object.entries(facts.plans).map(([name, plan]) => el("div", {class: "tile"}, el("code", {}, plan), el("span", {}, " plan of " + (name || "the query")))),
      ] : [el("p", {class: "none"}, "Waiting for the first batch …")]));
      return;
    }
    const recent = points.slice(-10), latest = points[points.length - 1];
    const spent = recent.reduce((total, point) => total + point.trigger, 0) || 1;
    const rate = (read) => recent.reduce((total, point) => total + read(point), 0) / spent;
    const split = el("div", {class: "split", title: "ours, and Spark's"}, el("i", {style: `width:${Math.min(100, 100 * latest.own / (latest.trigger || 1))}%`}));
    const late = points.reduce((total, point) => total + sum(point.late), 0);
    $("tiles").replaceChildren(
      tile(count(rate((point) => sum(point.in))), "rows/s in, while busy"),
      tile(count(rate((point) => point.out)), "rows/s out, while busy"),
      tile(seconds(latest.trigger), `trigger: ours ${seconds(latest.own)}, Spark ${seconds(Math.max(0, latest.trigger - latest.own))}`, split),
      tile(latest.watermark === null ? "–" : seconds(Math.max(0, latest.at - latest.watermark)), "watermark behind"),
      tile(bytes(latest.stateBytes), `state, ${count(latest.stateRows)} rows`),
      tile(count(late), "late rows", null, late ? "warn" : ""),
      tile(latest.backlog === null ? "–" : count(latest.backlog), latest.backlog === null ? "backlog: the sources do not say" : "backlog of the sources"),
      tile(latest.skew.toFixed(2), `skew over ${latest.slots.filter((slot) => slot.groups).length} slots`),
    );
    if (latest.idle.length) $("tiles").append(tile(String(latest.idle.length), "idle: " + latest.idle.join(", "), null, "warn"));
    const names = Object.keys(latest.queries);
    $("queries").replaceChildren(...(names.length ? [el("h2", {}, "Queries"), el("div", {class: "scroll"}, table(["query", "results", "plan"],
      names.map((name) => [name, count(points.reduce((total, point) => total + ((point.queries[name] || {}).out || 0), 0)), latest.queries[name].plan]), [2]))] : []));
    draw();
  }

  function table(heads, rows, left = []) {
    const cell = (tag, value, place) => el(tag, left.includes(place) ? {class: "left"} : {}, value instanceof Node ? value : String(value));
    return el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head, i) => cell("th", head, i)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value, i) => cell("td", value, i))))));
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  function draw() {
    const times = points.map((point) => point.at);
    // Several batches may begin within a clock tick.
    for (let i = 1; i < times.length; i++) if (times[i] <= times[i - 1]) times[i] = times[i - 1] + 0.001;
    const busy = (read) => points.map((point) => read(point) / (point.trigger || 0.001));
    plot("chart-rows", times, [["in", "in", busy((point) => sum(point.in))], ["out", "out", busy((point) => point.out), false, "right"]], count);
    plot("chart-trigger", times, [["whole", "spark", points.map((point) => point.trigger), true], ["ours", "ours", points.map((point) => point.own), true]], seconds);
    plot("chart-state", times, [["bytes", "ours", points.map((point) => point.stateBytes), true]], bytes);
    plot("chart-lag", times, [["behind", "out", points.map((point) => point.watermark === null ? null : Math.max(0, point.at - point.watermark))]], seconds);
  }

  const fromZero = {range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1]};

  function plot(id, times, series, words) {
    const data = [times, ...series.map((each) => each[2])];
    const width = Math.max(240, $(id).parentElement.clientWidth - 26);
    if (charts[id]) {
      if (charts[id].width !== width) charts[id].setSize({width, height: 170});
      charts[id].setData(data);
      return;
    }
    const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");
    const axis = {stroke: colour("soft"), grid: {stroke: colour("line"), width: 1}, ticks: {stroke: colour("line")}};
    const marks = {hooks: {drawAxes: [(chart) => {
      const context = chart.ctx;
      context.save(); context.strokeStyle = colour("bad"); context.setLineDash([4, 4]);
      for (const record of records) {
        if (record.phase !== "began" && record.kind !== "move" && record.action !== "moved") continue;
        const point = points.find((each) => each.batch === record.batch);
        if (!point) continue;
        const x = chart.valToPos(point.at, "x", true);
        context.beginPath(); context.moveTo(x, chart.bbox.top); context.lineTo(x, chart.bbox.top + chart.bbox.height); context.stroke();
      }
      context.restore();
    }]}};
    charts[id] = new uPlot({width, height: 170, plugins: [marks], cursor: {drag: {x: true, y: false}},
      series: [{label: "time", value: (_, time) => time === null ? "–" : clock(time)}, ...series.map(([label, tint, , fill, side]) => ({label, scale: side || "y", stroke: colour(tint), width: 1.5, fill: fill ? colour(tint) + "40" : undefined,
        points: {show: false}, value: (_, value) => value === null ? "–" : words(value)}))],
      axes: [{...axis, space: 90, values: (_, ticks) => ticks.map(clock)}, {...axis, size: 88, values: (_, ticks) => ticks.map((tick) => words(tick)), stroke: colour(series.length > 1 && series[1][4] ? series[0][1] : "soft")},
        ...series.filter((each) => each[4]).map((each) => ({...axis, scale: each[4], side: 1, size: 88, grid: {show: false}, stroke: colour(each[1]), values: (_, ticks) => ticks.map((tick) => words(tick))}))],
      scales: {y: fromZero, right: fromZero}}, data, $(id));
  }

  // --- the plan -----------------------------------------------------------------------------------------------------

  async function showPlan() {
    if (!points.length) {
      $("picture").replaceChildren(el("p", {class: "none"}, run.hasPicture ? "Waiting for the first batch …" : "A stored run has the texts of its plans only."));
      $("slots").replaceChildren(table(["slot", "groups"], Object.entries((run.facts || {}).slots || {})));
      return;
    }
    const latest = points[points.length - 1], name = $("query").value, chosen = run;
    $("plan-text").textContent = (latest.queries[name] || latest).plan;
    const total = sum(latest.slots.map((slot) => slot.cpu)) || 1, most = Math.max(...latest.slots.map((slot) => slot.cpu), 1e-9);
    const warm = (cpu) => el("span", {style: `background:rgba(var(--hot),${(0.75 * cpu / most).toFixed(2)});padding:.1rem .4rem;border-radius:4px`}, seconds(cpu));
    $("slots").replaceChildren(table(["slot", "CPU", "share", "rows in", "results", "state", "groups", "hot state"], latest.slots.map((slot) => [
      slot.slot, warm(slot.cpu), (100 * slot.cpu / total).toFixed(0) + " %", count(slot.in), count(slot.out), bytes(slot.bytes), slot.groups,
      slot.groups ? (slot.hot ? "yes" : "rebuilt") : "–"])));
    if (drawn === latest.batch + name) return;
    drawn = latest.batch + name;
    const answer = await fetch(`api/runs/${encodeURIComponent(chosen.id)}/plan.svg?query=${encodeURIComponent(name)}`);
    if (answer.ok && chosen === run) $("picture").innerHTML = await answer.text();
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
      say("the console does not answer", "bad");
    }
  }

  // --- why ----------------------------------------------------------------------------------------------------------

  function headline(record) {
    switch (record.kind) {
      case "decision": return record.action === "migrate" ? `change to ${record.proposed}: ${record.reason}` : `keep ${record.plan}: ${record.reason}`;
      case "migration": return record.phase === "began" ? `${record.from} → ${record.to} by ${record.strategy}, ${count(record.recomputedRows)} rows computed in ${seconds(record.seconds)}`
        : `${record.phase}: the plan is ${record.plan}` + (record.reason ? ` (${record.reason})` : "");
      case "move": if (!record.moves.length && (record.split || record.united)) return `a key was ${record.split ? "split over slots" : "united"} by ${record.by}`;
        return `${record.moves.reduce((n, move) => n + move.groups.length, 0)} partition groups moved by ${record.by}, ${count(record.rows)} rows taken over`;
      case "balance": return (record.action === "move" ? "move groups" : "leave the groups") + `: ${record.reason}`;
      default: return record.reason || JSON.stringify(record);
    }
  }

  function around(batch) {
    const before = points.filter((point) => point.batch < batch).slice(-5), after = points.filter((point) => point.batch > batch).slice(0, 5);
    if (!before.length && !after.length) return null;
    const mean = (several, read) => several.length ? several.reduce((total, point) => total + read(point), 0) / several.length : null;
    const line = (words, several) => [words, several.length, several.length ? seconds(mean(several, (point) => point.trigger)) : "–",
      several.length ? seconds(mean(several, (point) => sum(point.slots.map((slot) => slot.cpu)))) : "–",
      several.length ? bytes(mean(several, (point) => point.stateBytes) | 0) : "–", several.length ? mean(several, (point) => point.skew).toFixed(2) : "–"];
    return el("div", {class: "scroll"}, table(["batches", "count", "trigger", "CPU of slots", "state", "skew"], [line("before", before), line("after", after)]));
  }

  function details(record) {
    const parts = [];
    if (record.kind === "decision") {
      const cost = (which, plan, value) => [which, plan, number(value.cpu), value.memory === null ? "–" : bytes(Math.round(value.memory)), number(value.rate)];
      parts.push(el("p", {class: "note"}, `Looked because ${record.trigger} (policy ${record.policy}, proposed by the ${record.origin}).`));
      parts.push(el("div", {class: "scroll"}, table(["", "plan", "cores", "memory", "results/s"], [cost("in force", record.plan, record.cost), cost("proposed", record.proposed, record.proposedCost),
        ...(record.considered || []).map((each) => cost(each.reason, each.plan, each.cost))], [0, 1])));
      if (record.migrationCost) parts.push(el("p", {class: "note"}, "Migration as estimated: " + Object.entries(record.migrationCost).map(([key, value]) => `${key} ${typeof value === "number" ? number(value) : value}`).join(", ")));
      parts.push(el("details", {}, el("summary", {}, "Statistics it rested on"), el("pre", {}, JSON.stringify(record.statistics, null, 1))));
    }
    const nearby = record.kind === "decision" && record.action === "keep" ? null : around(record.batch);
    if (nearby) parts.push(nearby);
    parts.push(el("details", {}, el("summary", {}, "The record"), el("pre", {}, JSON.stringify(record, null, 1))));
    return parts;
  }

  let listed = "";
  function showWhy() {
    const all = $("keeps").checked;
    const shown = records.filter((record) => all || record.action !== "keep").slice(-300).reverse();
    const key = run.id + shown.length + all + JSON.stringify(shown[0] || "");
    if (key === listed) return;
    listed = key;
    $("records").replaceChildren(...(shown.length ? shown.map((record) => {
      const node = el("details", {class: `record ${record.kind} ${record.action || ""} ${record.phase || ""}`},
        el("summary", {}, el("span", {}, `batch ${record.batch}`), el("span", {}, (record.query ? record.query + ": " : "") + headline(record))));
      node.addEventListener("toggle", () => { if (node.open && node.children.length === 1) node.append(...details(record)); });
      return node;
    }) : [el("p", {class: "none"}, "Nothing was decided yet.")]));
  }

  // --- views --------------------------------------------------------------------------------------------------------

  const views = {now: showNow, plan: showPlan, why: showWhy};
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
  $("query").addEventListener("change", () => { drawn = -1; show(); });
  $("keeps").addEventListener("change", show);
  for (const button of document.querySelectorAll("[data-action]")) button.addEventListener("click", () => act(button.dataset.action));
  window.addEventListener("resize", () => { if (view === "now") show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const chart of Object.values(charts)) chart.destroy(); charts = {}; show(); });
  const keepLooking = () => loadRuns().catch(() => status("the console does not answer", "failed"));
  keepLooking();
  setInterval(keepLooking, 5000);
})();
