"use strict";
// Everything that comes from the daemon is set as text (textContent), never as HTML. The page asks again every few seconds while it is
// looked at, and says how old it is when the daemon does not answer.
const PERIOD_MS = 3000, LATE_MS = 10000, SLOW_MS = 2000;
const STATES = ["assigned", "reserved", "cooling", "quarantined", "lost", "free"];
const CELLS_MAX = 64, MANY = 1000000;
const byId = (id) => document.getElementById(id);
const TITLE = document.title;
const shownParts = new Map();
let state = null, answeredMs = 0, askedMs = 0, problem = "";

function make(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;  // a screen reader is told of changes only
}

// A part that did not change stays as it is, and so does one in which somebody has selected text: the next refresh shows it.
function showPart(id, part, show) {
  const text = JSON.stringify(part);
  const selection = document.getSelection();
  const isSelected = selection && !selection.isCollapsed && selection.containsNode(byId(id), true);
  if (shownParts.get(id) === text || isSelected) return;
  show();
  shownParts.set(id, text);
}

function clock(at) {  // UTC, as in the log and in ipamctl; without the day if it is today's
  const [day, time] = at.split("T");
  return time ? (day === state.at.split("T")[0] ? "" : day + " ") + time.slice(0, 8) + "Z" : at;
}

function plural(count, noun) { return count + " " + noun + (count === 1 ? "" : /[sx]$/.test(noun) ? "es" : "s"); }

// What counts for the rest of a /80 is no number for people, and its bar hides no other.
function usable(count) { return count < MANY ? count : "a /80"; }

function showVerdict(status) {
  setText("node", status.instance_id + ", version " + status.version + ", " + status.phase);
  setText("verdict", status.verdict);
  byId("verdict").hidden = false;
  document.title = (status.ready && !status.cut_off_count ? "" : "! ") + TITLE;
  byId("verdict").className = "verdict " + (!status.ready || status.cut_off_count ? "bad" : status.degraded.length ? "warn" : "good");
}

function showConditions(conditions) {
  byId("lacks").replaceChildren(...conditions.map((one) => {
    const made = make("li", one.text), small = make("small", (one.since ? "since " + clock(one.since) + "; " : "") + one.next + "; see ");
    small.append(pageLink(one.page));
    made.append(small);
    return made;
  }));
}

function pageLink(page) {  // a link only if it is known where the pages are
  if (!state.docs_url) return page;
  const made = make("a", page);
  made.href = state.docs_url + "/" + page;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}

function tile(value, name) {
  const made = make("div", undefined, "tile");
  made.append(make("b", value), make("span", name));
  return made;
}

function showPool(status) {
  const pool = status.pool;
  byId("counts").replaceChildren(
    tile(usable(pool.assignable_count), "can be given"), tile(pool.assigned_count, "assigned"), tile(pool.cooling_count, "cooling"),
    tile(usable(pool.total_count), "addresses"), tile(pool.excess_count, "in excess"),
    tile(pool.eni_count > pool.eni_limit ? pool.eni_count : pool.eni_count + " of " + pool.eni_limit, "ENIs"));
  const targets = pool.targets.filter((one) => one.defined).map((one) => one.name + "=" + one.value).join(", ");
  const rows = [["target", targets || "none"], ["auto", pool.auto], ["now", pool.last_cycle], ["excess kept", pool.excess_kept_reason],
    ["EC2", status.cloud.detail], ["runtime", status.runtime.detail]];
  const branches = status.branches;
  if (branches && branches.mode) {
    const trunk = branches.trunk ? " on trunk " + branches.trunk : ", no trunk ENI is attached";
    rows.push(["branches", branches.mode + ": " + branches.count + (branches.branch_limit < 0 ? "" : " of " + branches.branch_limit) + trunk
      + (branches.waiting_count ? "; " + plural(branches.waiting_count, "ADD") + " waiting" : "")]);
  }
  for (const one of status.freezes) rows.push(["frozen", one.cause + ": " + one.reason]);
  for (const one of status.subnets) {
    rows.push(["subnet", one.subnet_id + ": " + plural(Number(one.free_count), "free address") + (one.unusable_reason ? ", not used: " + one.unusable_reason : "")]);
  }
  for (const one of status.busy) rows.push(["busy", one.operation + " of " + one.container_id + " for " + one.age_s.toFixed(1) + " s"]);
  if (status.spooled_delete_count) rows.push(["spooled", plural(status.spooled_delete_count, "DEL")]);
  const last = status.last_error;
  if (last) rows.push(["last error", (last.resolved_at ? "resolved at " + clock(last.resolved_at) + ": " : "") + last.at + " " + last.subject + ": " + last.message]);
  byId("pool").replaceChildren(...rows.filter((row) => row[1]).flatMap((row) => [make("dt", row[0]), make("dd", row[1])]));
}

function showLegend() {
  byId("legend").replaceChildren(...[...STATES, "vacant"].map((name) => {
    const made = make("span");
    made.append(make("i", undefined, name), name === "vacant" ? "vacant slot" : name);
    return made;
  }));
}

function strip(eni) {
  // One cell for each address, and for each slot that nothing is in; many of them become bars, as wide as they are many.
  const counts = STATES.map((name) => [name, eni[name + "_count"]]);
  const addresses = counts.reduce((sum, one) => sum + one[1], 0);
  const singles = Math.max(addresses - 16 * eni.prefixes.length, 0);
  const vacant = eni.state === "unmanaged" || addresses >= MANY ? 0 : Math.max(eni.slot_count - eni.prefixes.length - singles, 0);
  counts.push(["vacant", vacant * (eni.prefixes.length ? 16 : 1)]);
  const many = counts.reduce((sum, one) => sum + one[1], 0) > CELLS_MAX;
  const made = make("div", undefined, "strip");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", counts.filter((one) => one[1]).map((one) => usable(one[1]) + " " + one[0]).join(", "));
  for (const [name, count] of counts) {
    for (let cell = 0; cell < (many ? Math.min(count, 1) : count); cell += 1) {
      const part = make("i", undefined, name);
      part.title = many ? usable(count) + " " + name : name;
      if (many) part.style.flexGrow = count < MANY ? count : CELLS_MAX;
      made.append(part);
    }
  }
  return made;
}

function showEni(eni) {
  const made = make("div", undefined, "eni"), counts = STATES.filter((name) => eni[name + "_count"]);
  made.append(make("strong", eni.eni_id + (eni.primary ? " (primary)" : "")), strip(eni));
  const place = "device " + eni.device_index + (eni.network_card ? " of card " + eni.network_card : "");
  const words = [eni.state, place, eni.primary_address, eni.subnet_id];
  if (eni.free_count < MANY) words.push(plural(eni.slot_count, "slot"));
  if (eni.prefixes.length) words.push(plural(eni.prefixes.length, "prefix"));
  if (!eni.host_ready) words.push("host routing not ready");
  made.append(make("p", [...words, ...counts.map((name) => usable(eni[name + "_count"]) + " " + name)].join(", ")));
  for (const why of [eni.frozen_reason && "gives no address: " + eni.frozen_reason, eni.excluded_reason && "gets no new pod: " + eni.excluded_reason]) {
    if (why) made.append(make("p", why, "why"));
  }
  return made;
}

function showAttachments() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const found = state.attachments.filter((one) =>
    !wanted || [one.sandbox_name, one.address, one.container_id, one.eni_id].some((text) => text.toLowerCase().includes(wanted)));
  const rows = found.map((one) => {
    const row = make("tr");
    const cells = [["Pod", one.sandbox_name || "-"], ["Address", one.address + (one.lost_since ? " (lost)" : "")], ["ENI", one.eni_id],
      ["Since", clock(one.created_at)], ["Container", one.container_id.slice(0, 13) + "/" + one.ifname]];
    for (const [name, text] of cells) {
      const cell = make("td", text, name === "Address" || name === "Container" ? "mono" : "");
      cell.dataset.name = name;
      row.append(cell);
    }
    return row;
  });
  byId("attachments").tBodies[0].replaceChildren(...rows);
  byId("attachments").hidden = !rows.length;  // a screen reader announces a table that has headers only
  const more = state.attachment_count - state.attachments.length;
  setText("shown", found.length + " of " + state.attachment_count + (more > 0 ? "; the oldest " + more + " are not shown" : ""));
}

function showEvents(events) {
  byId("events").replaceChildren(...events.map((one) => {
    const made = make("li"), when = make("time", clock(one.at));
    when.dateTime = one.at;
    const about = [one.address, one.container_id && one.container_id.slice(0, 13) + "/" + one.ifname, one.eni_id].filter(Boolean);
    const words = [one.pod, one.detail].filter(Boolean).join(" ");
    made.append(when, make("b", one.event), make("code", about.join(" ")), about.length && words ? " " : "", words);
    return made;
  }));
}

function showAge() {
  const now = Date.now(), waitedMs = askedMs ? now - askedMs : 0;
  const slow = waitedMs > SLOW_MS ? "the daemon has not answered for " + Math.floor(waitedMs / 1000) + " s" : "";
  const late = problem || slow || (answeredMs && now - answeredMs > LATE_MS ? "no answer for a while" : "");
  const seen = answeredMs ? "last answer at " + clock(state.at) : "no answer yet";
  setText("fresh", late ? seen : answeredMs ? "as of " + state.at.slice(0, 19).replace("T", " ") + "Z" : "loading");
  byId("fresh").className = late ? "late" : "";
  // The words of the alert do not change with each second: a screen reader reads it once.
  setText("problem", problem || (slow || late ? "the daemon does not answer" : ""));
  byId("problem").hidden = !late;
  if (late) document.title = "! " + TITLE;
}

async function fetchState() {
  const answer = await fetch("state.json", { cache: "no-store", credentials: "same-origin" });
  if (!answer.ok) throw new Error((await answer.text()).trim() || "the daemon answered " + answer.status);
  return answer.json();
}

async function refresh() {
  if (askedMs) return;  // the last question has no answer yet
  askedMs = Date.now();
  try {
    state = await fetchState();
    answeredMs = Date.now();
    problem = "";
    showVerdict(state.status);
    showPart("lacks", [state.status.conditions, state.docs_url], () => showConditions(state.status.conditions));
    showPart("pool", poolOf(state.status), () => showPool(state.status));
    showPart("enis", state.enis, () => byId("enis").replaceChildren(...state.enis.map(showEni)));
    showPart("attachments", state.attachments, showAttachments);
    showPart("events", state.events, () => showEvents(state.events));
  } catch (error) {
    problem = error.message;
  }
  askedMs = 0;
  showAge();
}

// What the part about the pool shows: all of the status but what has a part of its own or changes with each answer.
function poolOf(status) { return { ...status, conditions: [], verdict: "", uptime_s: 0, runtime: status.runtime.detail, stages: [] }; }

async function run() {
  showLegend();
  byId("filter").addEventListener("input", () => state && showAttachments());
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  refresh();
  setInterval(() => document.hidden || refresh(), PERIOD_MS);
  setInterval(() => document.hidden || showAge(), SLOW_MS);
}

run();
