"use strict";
// Nodes over time, one canvas a policy, all showing the same stretch of time.
(() => {
  const holder = document.getElementById("timelines");
  if (!holder) return;
  const tip = document.getElementById("tip"), find = document.getElementById("nodes-find");
  const LEFT = 110, AXIS = 20, MOST_HEIGHT = 900;
  let facts, span, view, chosen = -1, panels = [], drag = null;

  const colours = () => {
    const style = getComputedStyle(document.documentElement), of = (name) => style.getPropertyValue(name).trim();
    return { ink: of("--ink"), soft: of("--soft"), rule: of("--rule"), panel: of("--panel"), stay: [of("--c0"), of("--c2"), of("--c3")], chosen: of("--c6") };
  };
  const nodes = () => {
    const asked = find.value.toLowerCase();
    return facts.nodes.map((name, n) => [name, n]).filter(([name]) => name.toLowerCase().includes(asked))
      .sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }));
  };
  const bits = (mask) => { let n = 0; for (let m = mask; m >= 1; m = Math.floor(m / 2)) n++; return n; };

  const build = () => {
    const rows = nodes(), gpus = Math.max(1, ...facts.policies.flatMap((p) => p.stays[2].length ? [p.stays[2].reduce((a, m) => Math.max(a, bits(m)), 1)] : []));
    const tall = Math.max(3, Math.min(2 * gpus + 4, Math.floor(MOST_HEIGHT / Math.max(rows.length, 1)), 24));
    panels = lucidJobs.policies().map((policy) => {
      const box = document.createElement("div"), name = document.createElement("h4"), canvas = document.createElement("canvas");
      name.textContent = policy.name;
      canvas.tabIndex = 0;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", "Which jobs held which GPUs of which nodes over time under " + policy.name + ". The list of jobs above has the same in words.");
      canvas.height = 1;
      box.className = "nodes";
      box.append(name, canvas);
      const place = new Map(rows.map(([, n], row) => [n, row]));
      return { policy, box, canvas, rows, place, gpus, tall };
    });
    holder.replaceChildren(...panels.map((panel) => panel.box));
    panels.forEach(listen);
    draw();
  };

  const x = (panel, s) => LEFT + (s - view[0]) / (view[1] - view[0]) * (panel.width - LEFT);
  const time = (panel, px) => view[0] + Math.max(0, px - LEFT) / (panel.width - LEFT) * (view[1] - view[0]);
  const draw = () => {
    const ink = colours();
    for (const panel of panels) {
      const { canvas, rows, place, gpus, tall, policy } = panel;
      const width = panel.width = Math.max(240, Math.floor(panel.box.clientWidth)), height = rows.length * tall + AXIS, scale = devicePixelRatio || 1;
      canvas.width = width * scale; canvas.height = height * scale;
      canvas.style.width = width + "px"; canvas.style.height = height + "px";
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      pen.font = "11px system-ui, sans-serif";
      pen.fillStyle = ink.panel;
      rows.forEach((_, row) => pen.fillRect(LEFT, row * tall + 0.5, width - LEFT, tall - 1));
      pen.fillStyle = ink.soft;
      const every = Math.ceil(13 / tall);
      rows.forEach(([name], row) => { if (row % every === 0) pen.fillText(name.length > 16 ? name.slice(0, 15) + "…" : name, 0, row * tall + Math.min(tall, 12) - 1); });
      const [job, node, mask, start, length, kind] = policy.stays, strip = (tall - 1) / gpus;
      const paint = (s, colour) => {
        const row = place.get(node[s]);
        if (row === undefined || start[s] > view[1] || start[s] + length[s] < view[0]) return;
        const from = Math.max(LEFT, x(panel, start[s])), to = Math.max(from + 0.6, x(panel, start[s] + length[s]) - 0.3);
        pen.fillStyle = colour;
        for (let gpu = 0, m = mask[s]; m >= 1; gpu++, m = Math.floor(m / 2)) if (m % 2) {
          const half = kind[s] === 2 ? strip / 2 : 0;
          pen.fillRect(from, row * tall + 0.5 + gpu * strip + half, to - from, Math.max(strip - half - (strip > 2 ? 0.4 : 0), 0.5));
        }
      };
      for (const layer of [0, 1, 2]) for (let s = 0; s < job.length; s++) if (kind[s] === layer) paint(s, ink.stay[[0, 1, 2][layer]]);
      for (let s = 0; s < job.length; s++) if (job[s] === chosen) paint(s, ink.chosen);
      const bottom = rows.length * tall, most = Math.max(2, Math.floor((width - LEFT) / 90)), stretch = view[1] - view[0];
      const step = [60, 300, 900, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 1209600, 2419200, 4838400, 9676800, 31536000].find((n) => stretch / n <= most) || stretch;
      for (let s = Math.ceil(view[0] / step) * step; s <= view[1]; s += step) {
        pen.fillStyle = ink.rule;
        pen.fillRect(x(panel, s), 0, 1, bottom + 4);
        pen.fillStyle = ink.soft;
        const words = step >= 86400 ? "day " + Math.round(s / 86400) : lucidJobs.moment(s);
        if (x(panel, s) + pen.measureText(words).width < width) pen.fillText(words, x(panel, s), bottom + 15);
      }
      if (drag && drag.panel === panel) {
        pen.globalAlpha = 0.2;
        pen.fillStyle = ink.ink;
        pen.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), bottom);
        pen.globalAlpha = 1;
      }
    }
  };

  const under = (panel, event) => {
    const box = panel.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const row = Math.floor(py / panel.tall), wanted = panel.rows[row];
    if (!wanted || px < LEFT) return [];
    const at = time(panel, px), gpu = Math.min(panel.gpus - 1, Math.max(0, Math.floor((py - row * panel.tall) / ((panel.tall - 1) / panel.gpus))));
    const slack = (view[1] - view[0]) / panel.width, [job, node, mask, start, length] = panel.policy.stays, found = [];
    for (let s = 0; s < job.length; s++) {
      if (node[s] === wanted[1] && Math.floor(mask[s] / 2 ** gpu) % 2 && start[s] - slack <= at && at <= start[s] + length[s] + slack) found.push(s);
    }
    return found;
  };
  const show = (panel, event) => {
    const found = under(panel, event);
    tip.hidden = !found.length;
    if (!found.length) return;
    tip.replaceChildren(...found.slice(0, 6).map((s) => {
      const line = document.createElement("p"), [job, node, , start, length, kind] = panel.policy.stays, i = job[s];
      line.textContent = facts.id[i] + " (" + lucidJobs.word(facts.user[i]) + ", " + facts.gpus[i] + (facts.gpus[i] === 1 ? " GPU" : " GPUs") + ") on " + facts.nodes[node[s]] + ", " + lucidJobs.moment(start[s]) + ", " +
        lucidJobs.duration(length[s]) + [", alone", ", profiling run", ", beside another job"][kind[s]];
      return line;
    }));
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 16, innerWidth - box.width - 4)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 12, innerHeight - box.height - 4)) + "px";
  };
  const look = (from, to) => {
    const least = 60, wide = Math.min(span[1] - span[0], Math.max(least, to - from)), middle = (from + to) / 2;
    const low = Math.max(span[0], Math.min(middle - wide / 2, span[1] - wide));
    view = [low, low + wide];
    draw();
  };
  const zoom = (what) => {
    const wide = view[1] - view[0], middle = (view[0] + view[1]) / 2;
    if (what === "all") look(...span);
    if (what === "in") look(middle - wide / 4, middle + wide / 4);
    if (what === "out") look(middle - wide, middle + wide);
    if (what === "back") look(view[0] - wide / 2, view[1] - wide / 2);
    if (what === "on") look(view[0] + wide / 2, view[1] + wide / 2);
  };
  const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "back", ArrowRight: "on", 0: "all" };
  const listen = (panel) => {
    const { canvas } = panel, at = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") return;
      drag = { panel, from: Math.max(LEFT, at(event)), to: Math.max(LEFT, at(event)) };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) { show(panel, event); return; }
      drag.to = Math.max(LEFT, at(event));
      tip.hidden = true;
      draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const done = drag;
      drag = null;
      if (done && Math.abs(done.to - done.from) > 5) { look(...[time(panel, done.from), time(panel, done.to)].sort((a, b) => a - b)); return; }
      draw();
      const found = under(panel, event);
      if (found.length) lucidJobs.open(panel.policy.stays[0][found[0]]);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; draw(); });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("keydown", (event) => {
      if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      zoom(KEYS[event.key]);
    });
  };

  lucidJobs.begin = () => {
    facts = lucidJobs.facts;
    let last = Math.max(1, facts.submit.reduce((a, s) => Math.max(a, s), 0));
    if (facts.whole) for (const policy of facts.policies) policy.stays[3].forEach((s, n) => { last = Math.max(last, s + policy.stays[4][n]); });
    span = [facts.submit.reduce((a, s) => Math.min(a, s), last), last];
    if (span[1] <= span[0]) span[1] = span[0] + 60;
    view = [...span];
    build();
    document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => zoom(button.dataset.zoom)));
    find.addEventListener("input", build);
    addEventListener("resize", draw);
    addEventListener("beforeprint", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  };
  lucidJobs.redraw = build;
  lucidJobs.chosen = (i) => {
    chosen = i;
    let from = Infinity, to = -Infinity;
    for (const policy of lucidJobs.policies()) policy.stays[0].forEach((job, s) => {
      if (job === i) { from = Math.min(from, policy.stays[3][s]); to = Math.max(to, policy.stays[3][s] + policy.stays[4][s]); }
    });
    from = Math.min(from, facts.submit[i]);
    const wide = Math.max(4 * (to - from), 3600);
    if (to > from) look((from + to) / 2 - wide / 2, (from + to) / 2 + wide / 2); else draw();
  };
})();
