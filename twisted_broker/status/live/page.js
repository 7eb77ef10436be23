"use strict";
// The page of a cluster, drawn from what each moment was. Text only: names come from clients.
const at = (id) => document.getElementById(id);
const FEW = 40, MOMENTS = 1200, TOLD = 300, EVERY = 2000;
const moments = []; // {when, state, said}: what is there is shared between them
let last = { partitions: new Map() }, place = { of: "", version: 0 }, follows = true;
const opened = new Set();

const made = (name, more, ...children) => {
  const found = Object.assign(document.createElement(name), more);
  found.append(...children);
  return found;
};
const key = (each) => `${each.topic}-${each.partition}`;
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const byName = (one, other) => one.localeCompare(other, "en", { numeric: true });

// what comes

function take(found) {
  const before = last;
  const partitions = new Map(found.whole ? [] : before.partitions);
  for (const each of found.partitions) {
    const old = before.partitions.get(key(each));
    partitions.set(key(each), { ...each, replicas: each.replicas.map((one) => withStruck(one, old)) });
  }
  for (const [topic, partition] of found.gone) partitions.delete(`${topic}-${partition}`);
  last = { ...(found.whole ? {} : before), ...found, partitions };
  place = { of: found.of, version: found.version };
  add(before.now_ms ? [...sentences(before, last)] : ["the first look"]);
}

// What a replica took back stays, struck through, until as much was written again.
function withStruck(one, old) {
  const was = old?.replicas.find((other) => other.broker === one.broker);
  if (was && one.end < was.end) return { ...one, struck: [one.end, was.struck ? Math.max(was.end, was.struck[1]) : was.end] };
  return was?.struck && one.end < was.struck[1] ? { ...one, struck: [Math.max(one.end, was.struck[0]), was.struck[1]] } : one;
}

function add(said) {
  moments.push({ when: last.now_ms, state: last, said });
  if (moments.length > MOMENTS) moments.splice(0, moments.length - MOMENTS);
  draw();
}

function* sentences(before, after) {
  for (const [part, of, what] of [["machines", "name", "state"], ["brokers", "node", "state"], ["groups", "name", "state"], ["transactions", "id", "state"]]) {
    const known = new Map((before[part] || []).map((each) => [each[of], each]));
    const title = { brokers: "broker ", groups: "group ", transactions: "transactional id " }[part] || "";
    for (const each of after[part] || []) {
      const old = known.get(each[of]);
      known.delete(each[of]);
      if (!old) yield `${title}${each[of]}: ${each[what]}`;
      else if (old[what] !== each[what]) yield `${title}${each[of]}: ${old[what]} -> ${each[what]}`;
      else if (part === "groups" && !same(old.members, each.members)) yield `${title}${each[of]}: members ${old.members.join(", ") || "none"} -> ${each.members.join(", ") || "none"}`;
    }
    for (const gone of known.keys()) yield `${title}${gone} is gone`;
  }
  const links = (state) => new Set((state.links || []).map((each) => `${each.from} to ${each.to}: ${linkText(each)}`));
  for (const each of links(after)) if (!links(before).has(each)) yield each;
  for (const each of links(before)) if (!links(after).has(each)) yield `${each.split(":")[0]}: healed`;
  const topics = new Set();
  for (const [name, each] of after.partitions) {
    const old = before.partitions.get(name);
    if (old === each) continue;
    if (!old) { topics.add(each.topic); continue; }
    if (old.leader !== each.leader || old.epoch !== each.epoch) yield `${name}: leader ${who(old.leader)} -> ${who(each.leader)}, epoch ${old.epoch} -> ${each.epoch}`;
    if (!same(old.isr, each.isr)) yield `${name}: ISR ${old.isr.join(" ") || "empty"} -> ${each.isr.join(" ") || "empty"}`;
    for (const one of each.replicas) {
      const was = old.replicas.find((other) => other.broker === one.broker);
      if (was && one.end < was.end) yield `${name}: broker ${one.broker} truncates, ${was.end} -> ${one.end}`;
      if (was && one.start > was.start) yield `${name}: broker ${one.broker} starts at ${one.start}, before at ${was.start}`;
    }
  }
  for (const each of topics) yield `topic ${each} is there`;
  for (const name of before.partitions.keys()) if (!after.partitions.has(name)) yield `${name} is gone`;
}

const who = (node) => (node < 0 ? "nobody" : `broker ${node}`);
const linkText = (each) => (each.cut ? "cut" : [each.delay_seconds && `${each.delay_seconds} s later`, each.bytes_per_second && `${each.bytes_per_second} bytes a second`].filter(Boolean).join(", "));

// what is shown

function table(id, titles, rows) {
  const found = at(id);
  while (found.rows.length) found.deleteRow(0);
  found.hidden = !rows.length;
  if (!rows.length) return;
  found.insertRow().append(...titles.map((title) => made("th", { textContent: title, scope: "col" })));
  for (const fill of rows) {
    const row = found.insertRow();
    for (const each of fill) {
      const { className = "", content = each } = each?.content === undefined ? {} : each;
      const cell = row.insertCell();
      cell.append(content ?? "");
      cell.className = className;
    }
  }
}

function age(since, now) {
  if (since === null || since < 0) return "";
  const seconds = Math.round(Math.abs(now - since) / 100) / 10;
  return seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function trouble(each) {
  if (each.leader < 0) return ["✗", "bad", "no leader"];
  return each.isr.length < each.assigned.length ? ["△", "odd", "out of sync"] : ["✓", "", "in sync"];
}

function bar(one, low, high, out) {
  const axis = made("span", { className: "axis" });
  const share = (offset) => (100 * (Math.min(Math.max(offset, low), high) - low)) / Math.max(1, high - low);
  const parts = [[one.start, one.high_watermark, ""], [one.high_watermark, one.end, "after"], ...one.epochs.slice(1).map(([, start]) => [start, null, "epoch"])];
  if (one.struck) parts.push([...one.struck, "struck"]);
  for (const [from, to, className] of parts) {
    if (to !== null && to <= from) continue;
    const part = made("i", { className });
    part.style.left = `${share(from)}%`;
    if (to !== null) part.style.width = `${share(to) - share(from)}%`;
    axis.append(part);
  }
  axis.setAttribute("aria-hidden", "true");
  return made("div", { className: out ? "out" : "" }, axis);
}

function offsets(one) {
  const found = made("span", { textContent: `${one.start} to ${one.end}` });
  if (one.struck) found.append(", ", made("s", { textContent: `${one.struck[0]} to ${one.struck[1]}`, title: "truncated" }));
  return found;
}

function replicas(each) {
  const low = Math.min(...each.replicas.map((one) => one.start)), high = Math.max(...each.replicas.map((one) => one.struck?.[1] ?? one.end));
  const [sign, className, text] = trouble(each);
  const head = [{ content: `${key(each)} ${sign}`, className }, `${who(each.leader)} leads at ${each.epoch}, ${text}`];
  const seen = new Map(each.replicas.map((one) => [one.broker, one]));
  return [...each.replicas, ...each.assigned.filter((node) => !seen.has(node)).map((broker) => ({ broker }))].map((one, index) => {
    const out = !each.isr.includes(one.broker);
    if (!seen.has(one.broker)) return [...(index ? ["", ""] : head), { content: `broker ${one.broker}${out ? ", out of the ISR" : ""}`, className: out ? "bad" : "" }, "", "not seen here", "", ""];
    const role = `broker ${one.broker}${one.leads ? ", leads" : ""}${out ? ", out of the ISR" : ""}`;
    return [...(index ? ["", ""] : head), { content: role, className: out ? "bad" : "" }, one.epoch, offsets(one), `${one.high_watermark}, ${one.stable}`, bar(one, low, high, out)];
  });
}

function grid(shown) {
  const topics = new Map();
  for (const each of shown) topics.set(each.topic, [...(topics.get(each.topic) || []), each]);
  table("grid", ["topic", "partitions"], [...topics].map(([topic, all]) => [topic, cells(all)]));
  const first = at("grid").querySelector(`[data-key="${CSS.escape(at("grid").dataset.at || "")}"]`) || at("grid").querySelector(".cell");
  if (first) first.tabIndex = 0;
}

function cells(all) {
  const found = document.createDocumentFragment();
  for (const each of all) {
    const [sign, className, text] = trouble(each);
    const cell = made("button", { type: "button", tabIndex: -1, className: `cell ${className}`, textContent: `${each.partition} ${sign}`, title: `${key(each)}: ${text}, ${who(each.leader)} leads` });
    cell.dataset.key = key(each);
    cell.setAttribute("aria-pressed", opened.has(key(each)));
    found.append(cell, " ");
  }
  return found;
}

const drawing = (svg) => (name, more, text) => {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(more)) found.setAttribute(attribute, value);
  if (text) found.textContent = text;
  svg.append(found);
};

// Members on the left, partitions on the right, a line for each assignment.
function assignments(groups) {
  const svg = at("assigned"), members = [], partitions = new Map(), lines = [];
  for (const group of groups) for (const [client, names] of group.assigned || []) {
    members.push(`${group.name}: ${client}`);
    for (const name of names) {
      if (!partitions.has(name)) partitions.set(name, 0);
      lines.push([members.length - 1, name]);
    }
  }
  [...partitions.keys()].sort(byName).forEach((name, index) => partitions.set(name, index));
  svg.replaceChildren();
  svg.style.display = lines.length && partitions.size <= FEW && members.length <= FEW ? "" : "none";
  const height = 18 * Math.max(members.length, partitions.size) + 8, draws = drawing(svg);
  svg.setAttribute("viewBox", `0 0 400 ${height}`);
  svg.style.height = `${height}px`;
  const y = (index, count) => (height * (index + 0.5)) / count;
  members.forEach((name, index) => draws("text", { x: 175, y: y(index, members.length) + 4, "text-anchor": "end" }, name));
  for (const [name, index] of partitions) draws("text", { x: 275, y: y(index, partitions.size) + 4 }, name);
  for (const [member, name] of lines) draws("line", { x1: 182, y1: y(member, members.length), x2: 268, y2: y(partitions.get(name), partitions.size), class: "has" });
}

function ring(state) {
  const svg = at("ring"), all = state.machines || [], draws = drawing(svg);
  svg.replaceChildren();
  svg.style.display = all.length > 1 ? "" : "none";
  const where = new Map([["client", [0, 0]]]);
  all.forEach((each, index) => {
    const angle = (2 * Math.PI * index) / all.length - Math.PI / 2;
    where.set(each.name, [80 * Math.cos(angle), 48 * Math.sin(angle)]);
  });
  const struck = new Map((state.links || []).map((each) => [`${each.from}>${each.to}`, each.cut ? "cut" : "slow"]));
  const names = [...where.keys()];
  names.forEach((one, index) => names.slice(index + 1).forEach((other) => {
    const kind = struck.get(`${one}>${other}`) || struck.get(`${other}>${one}`) || "";
    if (!kind && one === "client") return;
    const [[x1, y1], [x2, y2]] = [where.get(one), where.get(other)];
    draws("line", { x1, y1, x2, y2, class: kind });
  }));
  for (const each of all) {
    const [x, y] = where.get(each.name);
    draws("circle", { cx: x, cy: y, r: 12, class: each.state === "runs" ? "" : "off" });
    draws("text", { x: x - 10, y: y + 4 }, String(each.node));
    for (let dot = 0; dot < Math.min(each.clients, 8); dot++) draws("circle", { cx: x + 18 + 5 * dot, cy: y, r: 2, class: "dot" });
  }
}

const DOES = { runs: ["kill", "freeze", "stop"], frozen: ["thaw", "kill"], off: ["restart"] };

function button(name, body) {
  const found = made("button", { type: "button", textContent: name.replaceAll("_", " ") });
  found.dataset.key = name + JSON.stringify(body);
  found.onclick = () => verb(name, body);
  return found;
}

function draw() {
  if (!moments.length) return;
  const mark = at("mark"), index = follows ? moments.length - 1 : Math.min(+mark.value, moments.length - 1);
  mark.max = moments.length - 1;
  mark.value = index;
  const { state, when } = moments[index], focused = document.activeElement?.dataset?.key;
  const can = Boolean(state.machines) && follows;
  at("moment").textContent = `${new Date(when).toISOString().slice(11, 23)}${follows ? ", now" : `, ${age(when, last.now_ms)} before now`}`;
  ring(state);
  const nodes = Object.fromEntries((state.machines || []).map((each) => [each.name, each.node]));
  table("machines", ["machine", "state", "clients", ""], (state.machines || []).map((each) => [
    `${each.name} (${each.node})`, { content: each.state, className: each.state === "runs" ? "" : "bad" }, each.clients,
    made("span", {}, ...(can ? DOES[each.state] : []).flatMap((name) => [button(name, { node: each.node }), " "])),
  ]));
  table("brokers", ["broker", "state"], (state.brokers || []).map((each) => [each.node, { content: each.state, className: each.state === "running" ? "" : "bad" }]));
  table("links", ["from", "to", "", ""], (state.links || []).map((each) => [
    each.from, each.to, { content: linkText(each), className: "bad" },
    can ? button("heal_link", { one: nodes[each.from] ?? each.from, other: nodes[each.to] ?? each.to }) : "",
  ]));
  const filter = at("filter").value, shown = [...state.partitions.keys()].filter((name) => (at("internal").checked || !name.startsWith("__")) && name.includes(filter)).sort(byName).map((name) => state.partitions.get(name));
  const many = shown.length > FEW;
  grid(many ? shown : []);
  const rows = shown.filter((each) => !many || opened.has(key(each)));
  table("partitions", ["partition", "", "replica", "epoch", "offsets", "high watermark, last stable", ""], rows.flatMap(replicas));
  at("left").textContent = [state.left_out && `${state.left_out} more are not shown`, !shown.length && "none"].filter(Boolean).join("; ");
  const groups = (state.groups || []).filter((each) => each.name.includes(filter));
  table("groups", ["group", "state", "for at least", "members", "lag", "coordinator"], groups.map((each) => [
    each.name, each.state, age(each.since_ms, when), each.assigned.map(([client, names]) => `${client}${names.length ? ` (${names.join(" ")})` : ""}`).join(", "), each.lag, each.coordinator,
  ]));
  assignments(groups);
  table("transactions", ["id", "state", "for", "producer", "partitions", "coordinator"], (state.transactions || []).map((each) => [
    each.id, each.state, age(each.since_ms, when), `${each.producer}, epoch ${each.epoch}`, each.partitions, each.coordinator,
  ]));
  table("waiting", ["broker", "request", "at", "waits for", "its time is up in"], (state.waiting || []).filter((each) => at("internal").checked || !each.at.startsWith("__")).map((each) => [each.broker, each.api, each.at, each.why, each.until_ms === null ? "" : age(when, each.until_ms)]));
  told(index, filter);
  at("time").hidden = at("strike").hidden = !state.machines;
  choices(state);
  if (focused) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function told(index, filter) {
  const found = [];
  for (let each = moments.length - 1; each >= 0 && found.length < TOLD; each--) {
    for (const text of [...moments[each].said].reverse()) {
      if (!text.includes(filter)) continue;
      const go = made("button", { type: "button", textContent: `${new Date(moments[each].when).toISOString().slice(11, 23)} ${text}` });
      go.dataset.key = `told${moments[each].when}${text}`;
      go.onclick = () => moveTo(each);
      if (each === index) go.setAttribute("aria-current", "true");
      found.push(made("li", { className: each > index ? "odd" : "" }, go));
    }
  }
  at("told").replaceChildren(...found);
}

function moveTo(index) {
  follows = index >= moments.length - 1;
  at("mark").value = Math.max(0, index);
  draw();
}

// what it does; in a cluster of a test only

const STRIKES = {
  kill: ["node"], crash: ["node"], freeze: ["node"], thaw: ["node"], stop: ["node"], restart: ["node"],
  cut_link: ["one", "other"], delay_link: ["one", "other"], narrow_link: ["one", "other"], drop_connections: ["one", "other"], heal_link: ["one", "other"],
  fill_disk: ["node"], fail_disk: ["node"], slow_disk: ["node"], stall_disk: ["node"], heal_disk: ["node"],
};
const MORE = { delay_link: { by: "200ms" }, narrow_link: { bytes_per_second: 10000 }, slow_disk: { by: "200ms" }, fail_disk: { operation: "write" } };

function choices(state) {
  const form = at("strike"), all = (state.machines || []).map((each) => [String(each.node), `${each.name} (${each.node})`]);
  for (const [name, wanted] of [["verb", Object.keys(STRIKES).map((each) => [each, [each.replaceAll("_", " "), ...Object.values(MORE[each] || {})].join(" ")])], ["node", all], ["other", [["client", "all clients"], ...all]]]) {
    const select = form.elements[name];
    if (select.length !== wanted.length) select.replaceChildren(...wanted.map(([value, text]) => made("option", { value, textContent: text })));
  }
  form.elements.other.disabled = STRIKES[form.elements.verb.value]?.length !== 2;
}

async function verb(name, body) {
  const answer = await fetch(`/v1/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const found = await answer.json();
  const text = answer.ok ? (Array.isArray(found) && found.join("; ")) || "done" : found.error;
  at("said").textContent = `${name} ${JSON.stringify(body)}: ${text}`;
}

at("strike").onchange = () => draw();
at("strike").onsubmit = (event) => {
  event.preventDefault();
  const { verb: chosen, node, other } = event.target.elements, end = (value) => (value === "client" ? value : +value);
  const ends = STRIKES[chosen.value].length === 2 ? { one: end(other.value), other: +node.value } : { node: +node.value };
  verb(chosen.value, { ...ends, ...MORE[chosen.value] });
};
at("time").onsubmit = (event) => {
  event.preventDefault();
  verb("advance", { by: event.target.elements.by.value });
};
at("internal").onchange = at("filter").oninput = () => draw();
at("mark").oninput = () => moveTo(+at("mark").value);
at("back").onclick = () => moveTo(+at("mark").value - 1);
at("on").onclick = () => moveTo(+at("mark").value + 1);
at("now").onclick = () => moveTo(moments.length - 1);
at("grid").onclick = (event) => {
  const name = event.target.closest(".cell")?.dataset.key;
  if (!name) return;
  at("grid").dataset.at = name;
  if (!opened.delete(name)) opened.add(name);
  draw();
};
at("grid").onkeydown = (event) => {
  const all = [...at("grid").querySelectorAll(".cell")], index = all.indexOf(event.target);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 8, ArrowUp: -8, Home: -all.length, End: all.length }[event.key];
  if (index < 0 || !step) return;
  event.preventDefault();
  const next = all[Math.min(all.length - 1, Math.max(0, index + step))];
  all[index].tabIndex = -1;
  next.tabIndex = 0;
  at("grid").dataset.at = next.dataset.key;
  next.focus();
};

// A cluster of a test tells what changes; a broker is asked again and again.
const silent = () => { at("said").textContent = "nobody answers"; };
function heard(found) {
  if (!moments.length || at("said").textContent === "nobody answers") at("said").textContent = "";
  take(found);
}
if (location.pathname.endsWith("/live/")) {
  const ask = async () => {
    try {
      const found = await (await fetch(`state?since=${place.version}&of=${encodeURIComponent(place.of)}`)).json();
      const { of, version, whole, now_ms, partitions, gone, ...sections } = found;
      if (whole || partitions.length || gone.length || Object.keys(sections).length) heard(found);
    } catch {
      silent();
    }
    setTimeout(ask, EVERY);
  };
  ask();
} else {
  const events = new EventSource("/v1/events");
  events.onmessage = (event) => heard(JSON.parse(event.data));
  events.addEventListener("said", (event) => moments.length && add([JSON.parse(event.data)]));
  events.onerror = silent;
}
