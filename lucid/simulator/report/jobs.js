"use strict";
// The list of jobs and their stories. Data lies packed in the page; `lucidJobs` is what the timeline shares.
const lucidJobs = {};
(() => {
  const at = (id) => document.getElementById(id);
  const packed = at("jobs-facts");
  if (!packed) return;
  const say = (text) => { at("jobs-state").textContent = text; };
  const unpacked = async (element) => {
    const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const made = (name, text, className) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const UNITS = [["s", 1, 100], ["min", 60, 100], ["h", 3600, 240], ["d", 86400, Infinity]];
  const duration = (seconds) => {
    if (seconds < 0) return "–";
    const [name, size] = UNITS.find(([, size, most]) => seconds < most * size);
    const value = seconds / size;
    return value.toFixed(name === "s" || value >= 100 ? 0 : value >= 10 ? 1 : 2) + " " + name;
  };
  const later = (seconds) => (seconds > 0 ? "+" : seconds < 0 ? "−" : "") + duration(Math.abs(seconds));
  const moment = (seconds) => {
    const day = Math.floor(seconds / 86400), clock = new Date((seconds - day * 86400) * 1000).toISOString().slice(11, 16);
    return "day " + day + " " + clock;
  };

  const STEP = 25;
  let facts, shown = STEP, order = [], sorted = { key: "change", down: true }, chosen = -1;
  const stories = new Map();
  const policy = () => facts.policies[Number(at("jobs-policy").value)];
  const against = () => at("jobs-against") ? facts.policies[Number(at("jobs-against").value)] : null;
  const change = (i) => against() && policy().jct[i] >= 0 && against().jct[i] >= 0 ? policy().jct[i] - against().jct[i] : 0;
  const word = (i) => facts.words[i];
  const numeric = (title, value, show) => ({ title, value, show: (i) => show(value(i)) });
  const columns = () => {
    const own = policy(), other = against();
    const found = {
      id: { title: "job", value: (i) => facts.id[i], show: (i) => facts.id[i] },
      user: { title: "user", value: (i) => word(facts.user[i]), show: (i) => word(facts.user[i]) },
      vc: { title: "VC", value: (i) => word(facts.vc[i]), show: (i) => word(facts.vc[i]) },
      name: { title: "name", value: (i) => word(facts.name[i]), show: (i) => word(facts.name[i]) },
      gpus: numeric("GPUs", (i) => facts.gpus[i], String),
      submit: numeric("submitted", (i) => facts.submit[i], moment),
      wait: numeric("waits, " + own.name, (i) => own.wait[i], duration),
      jct: numeric("JCT, " + own.name, (i) => own.jct[i], duration),
    };
    if (other && other !== own) {
      found.was = numeric("JCT, " + other.name, (i) => other.jct[i], duration);
      found.change = numeric("later by", change, later);
    }
    return found;
  };

  // -- the list ------------------------------------------------------------------------------------------
  const matching = () => {
    const asked = at("jobs-find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = asked.map((term) => {
      const compared = /^gpus([<>=]+)(\d+)$/.exec(term);
      if (!compared) return (i, text) => text.includes(term);
      const least = Number(compared[2]);
      return (i) => compared[1] === ">" ? facts.gpus[i] > least : compared[1] === "<" ? facts.gpus[i] < least :
        compared[1] === ">=" ? facts.gpus[i] >= least : compared[1] === "<=" ? facts.gpus[i] <= least : facts.gpus[i] === least;
    });
    const found = [];
    for (let i = 0; i < facts.id.length; i++) {
      const text = (facts.id[i] + " " + word(facts.user[i]) + " " + word(facts.vc[i]) + " " + word(facts.name[i])).toLowerCase();
      if (tests.every((test) => test(i, text))) found.push(i);
    }
    return found;
  };
  const list = () => {
    const shape = columns();
    if (!(sorted.key in shape)) sorted = { key: "wait", down: true };
    const value = shape[sorted.key].value, sign = sorted.down ? -1 : 1;
    order = matching().sort((a, b) => {
      const x = value(a), y = value(b);
      return sign * (typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true })) || a - b;
    });
    shown = STEP;
    const row = document.querySelector("#jobs-table thead tr");
    row.replaceChildren(...Object.entries(shape).map(([key, column]) => {
      const head = made("th"), button = made("button", column.title, "sort");
      head.scope = "col";
      button.type = "button";
      if (key === sorted.key) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      button.addEventListener("click", () => {
        sorted = { key, down: key === sorted.key ? !sorted.down : !["id", "user", "vc", "name", "submit"].includes(key) };
        list();
        document.querySelector("#jobs-table th[aria-sort] button").focus();
      });
      head.append(button);
      return head;
    }));
    rows();
  };
  const rows = () => {
    const shape = Object.values(columns());
    at("jobs-count").textContent = order.length.toLocaleString("en") + " of " + facts.id.length.toLocaleString("en") + " jobs.";
    document.querySelector("#jobs-table tbody").replaceChildren(...order.slice(0, shown).map((i) => {
      const row = made("tr", undefined, i === chosen ? "chosen" : "");
      shape.forEach((column, n) => {
        const cell = made(n ? "td" : "th");
        if (n) cell.textContent = column.show(i);
        else {
          const link = made("a", column.show(i));
          link.href = "#job=" + encodeURIComponent(facts.id[i]);
          cell.scope = "row";
          cell.append(link);
        }
        if (column.title === "later by") cell.className = change(i) > 60 ? "lost" : change(i) < -60 ? "won" : "";
        row.append(cell);
      });
      return row;
    }));
    at("jobs-more").hidden = shown >= order.length;
  };

  // -- a story -------------------------------------------------------------------------------------------
  const told = async (name) => {
    if (!stories.has(name)) {
      const element = [...document.querySelectorAll(".jobs-stories")].find((e) => e.dataset.policyOf === name);
      stories.set(name, element ? await unpacked(element) : null);
    }
    return stories.get(name);
  };
  const choose = async (i, names) => {
    chosen = i;
    rows();
    const box = at("story"), about = names || [policy(), against()].filter((p, n, all) => p && all.indexOf(p) === n).map((p) => p.name);
    box.replaceChildren(made("h3", "Job " + facts.id[i]));
    const columns = made("div", undefined, "grid");
    for (const name of about) {
      const part = made("div"), found = await told(name);
      part.append(made("h4", name));
      if (found && found[i]) part.append(story(found[i]));
      else part.append(made("p", "No story of this policy is in this file. lucidctl explain --run FOLDER --policy " + name + " " + facts.id[i] + " tells it, where the run was kept.", "small"));
      columns.append(part);
    }
    box.append(columns);
    box.hidden = false;
    if (lucidJobs.chosen) lucidJobs.chosen(i);
  };
  const story = (text) => {
    const whole = made("div", undefined, "told");
    for (const line of text.split("\n")) {
      const reason = /^ +- /.test(line), dated = /^(day \d+ \d\d:\d\d:\d\d|\d{4}-\S+ \S+) +(.*)$/.exec(line);
      if (reason) whole.append(made("p", line.trim().slice(2), "reason"));
      else if (dated) {
        const row = made("p");
        row.append(made("time", dated[1]), " ", made("b", dated[2]));
        whole.append(row);
      } else whole.append(made("p", line));
    }
    return whole;
  };
  const follow = () => {
    const asked = /^#job=(.+)$/.exec(location.hash);
    if (!asked) return;
    const i = facts.id.indexOf(decodeURIComponent(asked[1]));
    if (i < 0) { say("There is no job " + decodeURIComponent(asked[1]) + " in this file."); return; }
    choose(i).then(() => { at("story").scrollIntoView({ block: "start" }); at("story").focus({ preventScroll: true }); });
  };

  unpacked(packed).then((found) => {
    facts = found;
    Object.assign(lucidJobs, { facts, duration, moment, word, policies: () => [...new Set([against(), policy()].filter(Boolean))],
      open: (i) => { location.hash = "job=" + encodeURIComponent(facts.id[i]); } });
    at("jobs-tools").hidden = false;
    say("");
    list();
    at("jobs-find").addEventListener("input", list);
    for (const id of ["jobs-policy", "jobs-against"]) if (at(id)) at(id).addEventListener("change", () => {
      list();
      if (chosen >= 0) choose(chosen);
      if (lucidJobs.redraw) lucidJobs.redraw();
    });
    at("jobs-more").addEventListener("click", () => { shown += 4 * STEP; rows(); });
    if (lucidJobs.begin) lucidJobs.begin();
    addEventListener("hashchange", follow);
    follow();
  }, () => say("This browser cannot unpack the jobs in this page; jobs.csv beside it has them."));
})();
