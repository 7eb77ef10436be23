"use strict";
const at = (id) => document.getElementById(id);
let state;

// Text only: names come from clients.
function cell(row, content, title) {
  const made = row.insertCell();
  if (content instanceof Node) made.append(content);
  else made.textContent = content;
  if (title) made.title = title;
  return made;
}

function table(id, titles, rows) {
  const found = at(id);
  while (found.rows.length) found.deleteRow(0);
  found.hidden = !rows.length;
  const head = found.insertRow();
  for (const title of titles) head.append(Object.assign(document.createElement("th"), { textContent: title, scope: "col" }));
  for (const fill of rows) fill(found.insertRow());
}

async function verb(name, body) {
  const answer = await fetch(`/v1/${name}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  const found = await answer.json();
  const told = answer.ok ? (Array.isArray(found) && found.join("; ")) || "done" : found.error;
  at("said").textContent = `${name} ${JSON.stringify(body)}: ${told}`;
}

function button(name, body) {
  const made = Object.assign(document.createElement("button"), { textContent: name.replace("_", " ") });
  made.dataset.key = name + JSON.stringify(body);
  made.onclick = () => verb(name, body);
  return made;
}

function buttons(...made) {
  const found = document.createDocumentFragment();
  for (const each of made) found.append(each, " ");
  return found;
}

const DOES = { runs: ["kill", "freeze", "stop"], frozen: ["thaw", "kill"], off: ["restart"] };

function bar(replica, low, high, out) {
  const axis = Object.assign(document.createElement("span"), { className: "axis" });
  const share = (offset) => (100 * (offset - low)) / Math.max(1, high - low);
  for (const [from, to, name] of [[replica.start, replica.high_watermark, ""], [replica.high_watermark, replica.end, "after"]]) {
    const part = Object.assign(document.createElement("i"), { className: name });
    part.style.left = `${share(from)}%`;
    part.style.width = `${share(Math.max(from, to)) - share(from)}%`;
    if (to > from) axis.append(part);
  }
  axis.setAttribute("aria-hidden", "true");
  const whole = document.createElement("div");
  if (out) whole.className = "out";
  whole.append(axis);
  return whole;
}

function partition(each) {
  const low = Math.min(...each.replicas.map((one) => one.start));
  const high = Math.max(...each.replicas.map((one) => one.end));
  return each.replicas.map((one, index) => (row) => {
    const out = !(each.isr || []).includes(one.broker);
    cell(row, index ? "" : `${each.topic}-${each.partition}`);
    cell(row, `broker ${one.broker}${one.leads ? ", leads" : ""}${out ? ", out of the ISR" : ""}`).className = out ? "bad" : "";
    cell(row, one.epoch);
    cell(row, `${one.start} to ${one.end}`);
    cell(row, one.high_watermark);
    cell(row, one.stable);
    cell(row, bar(one, low, high, out));
  });
}

function draw() {
  const focused = document.activeElement?.dataset?.key;
  const nodes = Object.fromEntries(state.machines.map((each) => [each.name, each.node]));
  table("machines", ["machine", "state", "clients", ""], state.machines.map((each) => (row) => {
    cell(row, `${each.name} (${each.node})`);
    cell(row, each.state).className = each.state === "runs" ? "" : "bad";
    cell(row, each.clients);
    const others = state.machines.filter((one) => one !== each && each.node < one.node);
    cell(row, buttons(
      ...DOES[each.state].map((name) => button(name, { node: each.node })),
      button("cut_link", { one: "client", other: each.node }),
      ...others.map((one) => button("cut_link", { one: each.node, other: one.node })),
    ));
    for (const made of row.querySelectorAll("button")) {
      const { other, one } = JSON.parse(made.dataset.key.replace(/^[a-z_]*/, ""));
      if (other !== undefined) made.textContent = one === "client" ? "cut clients" : `cut from ${other}`;
    }
  }));
  table("links", ["from", "to", "", ""], state.links.map((each) => (row) => {
    cell(row, each.from);
    cell(row, each.to);
    const slow = [each.delay_seconds && `${each.delay_seconds} s later`, each.bytes_per_second && `${each.bytes_per_second} bytes a second`];
    cell(row, each.cut ? "cut" : slow.filter(Boolean).join(", ")).className = "bad";
    cell(row, button("heal_link", { one: nodes[each.from] ?? each.from, other: nodes[each.to] ?? each.to }));
  }));
  const shown = state.partitions.filter((each) => at("internal").checked || !each.topic.startsWith("__"));
  table("partitions", ["partition", "replica", "epoch", "offsets", "high watermark", "last stable", ""], shown.flatMap(partition));
  table("groups", ["group", "state", "members", "coordinator"], state.groups.map((each) => (row) => {
    for (const one of [each.name, each.state, each.members.join(", "), each.coordinator]) cell(row, one);
  }));
  table("transactions", ["id", "state", "producer", "coordinator"], state.transactions.map((each) => (row) => {
    for (const one of [each.id, each.state, each.producer, each.coordinator]) cell(row, one);
  }));
  table("waiting", ["broker", "Produce", "Fetch", "DeleteRecords"], state.waiting.map((each) => (row) => {
    for (const one of [each.broker, each.produce, each.fetch, each.delete_records]) cell(row, one);
  }));
  if (focused) [...document.querySelectorAll("button")].find((each) => each.dataset.key === focused)?.focus();
}

at("internal").onchange = () => state && draw();
at("time").onsubmit = (event) => {
  event.preventDefault();
  verb("advance", { by: at("time").by.value });
};
const events = new EventSource("/v1/events");
events.onmessage = (event) => {
  if (!state) at("said").textContent = "";
  state = JSON.parse(event.data);
  draw();
};
events.onerror = () => { at("said").textContent = "the cluster does not answer"; };
