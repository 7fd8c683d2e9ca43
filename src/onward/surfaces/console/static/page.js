// What goes on, read every two seconds while somebody looks. Values are set as text, never as markup.
"use strict";

const SHAPES = { succeeded: "✓", failed: "✗", dead: "✗", canceled: "–", running: "▶", queued: "…" };

function cell(text, className) {
  const td = document.createElement("td");
  td.textContent = text;
  if (className) td.className = className;
  return td;
}

function fill(id, heads, rows, empty) {
  const table = document.getElementById(id);
  const head = document.createElement("tr");
  for (const name of heads) {
    const th = document.createElement("th");
    th.textContent = name;
    head.append(th);
  }
  const lines = rows.map((cells) => {
    const tr = document.createElement("tr");
    tr.append(...cells);
    return tr;
  });
  if (!rows.length) {
    const tr = document.createElement("tr");
    const td = cell(empty, "empty");
    td.colSpan = heads.length;
    tr.append(td);
    lines.push(tr);
  }
  table.replaceChildren(head, ...lines);
}

async function read(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return (await response.json()).items;
}

function ago(at) {
  const seconds = Math.max(0, (Date.now() - at) / 1000);
  return seconds < 60 ? `${seconds.toFixed(0)} s ago` : `${(seconds / 60).toFixed(0)} min ago`;
}

function took(task) {
  if (!task.started_at) return "";
  const ms = (task.finished_at ?? Date.now()) - task.started_at;
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function phase(task) {
  const share = task.progress == null ? "" : ` ${Math.round(task.progress * 100)} %`;
  return cell(`${SHAPES[task.state] ?? "·"} ${task.phase}${share}`, task.phase);
}

async function look() {
  const pulse = document.getElementById("pulse");
  try {
    const [queues, workers, tasks] = await Promise.all([
      read("/api/v2/queues"), read("/api/v2/workers"), read("/api/v2/tasks?limit=25"),
    ]);
    const states = ["queued", "running", "scheduled", "succeeded", "failed", "dead"];
    fill("queues", ["queue", ...states, "workers"],
      queues.map((q) => [cell(q.name), ...states.map((s) => cell(q.states[s] ?? 0)), cell(q.workers)]),
      "nothing was submitted yet");
    fill("workers", ["worker", "by", "slots", "serves"],
      workers.map((w) => [cell(w.id, "id"), cell(w.transport), cell(w.slots), cell(w.queues.join(", "))]),
      "no worker is connected: onward worker module:attr");
    fill("tasks", ["task", "type", "state", "attempt", "took", "created"],
      tasks.map((t) => [
        cell(t.id, "id"), cell(t.type), phase(t), cell(t.attempt), cell(took(t)), cell(ago(t.created_at)),
      ]),
      "try: onward submit echo '{\"hello\": \"world\"}' --wait");
    pulse.textContent = `live · ${workers.length} worker(s)`;
    pulse.className = "";
  } catch (error) {
    pulse.textContent = `the server does not answer (${error.message})`;
    pulse.className = "gone";
  }
}

document.getElementById("submit").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  const pulse = document.getElementById("pulse");
  try {
    const payload = form.get("payload").trim();
    const body = { type: form.get("type"), payload: payload ? JSON.parse(payload) : null };
    const response = await fetch("/api/v2/tasks", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error((await response.json()).detail);
    await look();
  } catch (error) {
    pulse.textContent = error.message;
    pulse.className = "gone";
  }
});

look();
setInterval(() => { if (!document.hidden) look(); }, 2000);
