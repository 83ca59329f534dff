"use strict";
// Everything that comes from the daemon is set as text (textContent), never as HTML. The page asks again every few seconds while it is
// looked at, and says how old it is when the daemon does not answer.
const PERIOD_MS = 3000, LATE_MS = 10000;
const STATES = ["assigned", "reserved", "cooling", "quarantined", "lost", "free"];
const CELLS_MAX = 64, MANY = 1000000;
const byId = (id) => document.getElementById(id);
let state = null, answeredMs = 0, problem = "";

function make(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;  // a screen reader is told of changes only
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
  byId("verdict").className = "verdict " + (!status.ready || status.cut_off_count ? "bad" : status.lacks.length ? "warn" : "good");
  byId("lacks").replaceChildren(...status.conditions.map((one) => {
    const made = make("li", one.text);
    made.append(make("small", (one.since ? "since " + clock(one.since) + "; " : "") + one.next + "; see " + one.page));
    return made;
  }));
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
  const rows = [["target", targets || "none"], ["auto", pool.auto], ["now", pool.last_cycle], ["excess kept", pool.kept],
    ["EC2", status.cloud.detail], ["runtime", status.runtime.detail]];
  const branches = status.branches;
  if (branches && branches.mode) {
    const trunk = branches.trunk ? " on trunk " + branches.trunk : ", no trunk ENI is attached";
    rows.push(["branches", branches.mode + ": " + branches.count + (branches.branch_count < 0 ? "" : " of " + branches.branch_count) + trunk
      + (branches.waiting_count ? "; " + plural(branches.waiting_count, "ADD") + " waiting" : "")]);
  }
  for (const one of status.freezings) rows.push(["frozen", one.cause + ": " + one.reason]);
  for (const one of status.subnets) {
    rows.push(["subnet", one.subnet_id + ": " + plural(Number(one.free_count), "free address") + (one.why_not ? ", not used: " + one.why_not : "")]);
  }
  for (const one of status.busy) rows.push(["busy", one.operation + " of " + one.container_id + " for " + one.age_s.toFixed(1) + " s"]);
  if (status.spooled_count) rows.push(["spooled", plural(status.spooled_count, "DEL")]);
  const last = status.last_error;
  if (last) rows.push(["last error", (last.resolved_at ? "resolved at " + clock(last.resolved_at) + ": " : "") + last.at + " " + last.what + ": " + last.message]);
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
  for (const why of [eni.frozen && "gives no address: " + eni.frozen, eni.excluded && "gets no new pod: " + eni.excluded]) {
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
  const age = Date.now() - answeredMs, late = problem || age > LATE_MS;
  const seen = answeredMs ? "last answer at " + clock(state.at) : "no answer yet";
  setText("fresh", late ? seen + (problem ? ": " + problem : "") : "as of " + state.at.slice(0, 19).replace("T", " ") + "Z");
  byId("fresh").className = late ? "late" : "";
}

async function refresh() {
  try {
    const answer = await fetch("state.json", { cache: "no-store", credentials: "same-origin" });
    if (!answer.ok) throw new Error("the daemon answered " + answer.status);
    state = await answer.json();
    answeredMs = Date.now();
    problem = "";
    showVerdict(state.status);
    showPool(state.status);
    byId("enis").replaceChildren(...state.enis.map(showEni));
    showAttachments();
    showEvents(state.events);
  } catch (error) {
    problem = error.message;
  }
  showAge();
}

async function run() {
  showLegend();
  byId("filter").addEventListener("input", () => state && showAttachments());
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  await refresh();
  setInterval(() => document.hidden || refresh(), PERIOD_MS);
}

run();
