"use strict";
(() => {
  const body = document.body;
  const tip = document.getElementById("tip");

  // -- the box beside the pointer ------------------------------------------------------------------------
  const place = (x, y) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16) + "px";
    tip.style.top = Math.max(4, Math.min(y + 12, innerHeight - box.height - 4)) + "px";
  };
  addEventListener("pointermove", (event) => {
    const over = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (!over || event.pointerType === "touch") { tip.hidden = true; return; }
    tip.textContent = over.dataset.tip;
    place(event.clientX, event.clientY);
  });
  addEventListener("click", (event) => {
    const bar = event.target instanceof Element ? event.target.closest("[data-job]") : null;
    if (bar && !dragged) location.href = bar.dataset.job;
  });

  // -- the chart of who stood where: zoom and move -------------------------------------------------------
  let dragged = false;
  const views = {};  // kept when the chart is drawn anew
  const hm = (seconds, long) => {
    const date = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
    return two(date.getHours()) + ":" + two(date.getMinutes()) + (long ? ":" + two(date.getSeconds()) : "");
  };
  const charts = () => document.querySelectorAll("[data-gantt]").forEach((chart) => {
    const plot = chart.querySelector(".gantt-plot"), bars = chart.querySelector(".gantt-bars");
    const labels = [...chart.querySelectorAll(".gantt-axis text")], said = chart.querySelector("output");
    const width = Number(chart.dataset.width), since = Number(chart.dataset.since);
    const height = bars.viewBox.baseVal.height;
    const view = views.gantt || (views.gantt = { from: 0, share: 1 });  // shares of the whole
    const draw = () => {
      view.share = Math.min(1, Math.max(view.share, 60 / width));
      view.from = Math.min(Math.max(view.from, 0), 1 - view.share);
      bars.setAttribute("viewBox", `${view.from * width} 0 ${view.share * width} ${height}`);
      labels.forEach((label, i) => { label.textContent = hm(since + width * (view.from + view.share * i / 4), view.share * width < 1200); });
      said.textContent = view.share < 1 ? `${hm(since + width * view.from)} to ${hm(since + width * (view.from + view.share))}` : "";
      chart.dataset.zoom = String(Math.round(1 / view.share * 100) / 100);
    };
    const zoom = (by, at = 0.5) => { const share = view.share / by; view.from += (view.share - share) * at; view.share = share; draw(); };
    const does = {
      in: () => zoom(2), out: () => zoom(0.5), left: () => { view.from -= view.share / 4; draw(); },
      right: () => { view.from += view.share / 4; draw(); }, all: () => { view.from = 0; view.share = 1; draw(); },
    };
    chart.querySelector(".gantt-tools").hidden = false;
    chart.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", does[button.dataset.zoom]));
    plot.addEventListener("keydown", (event) => {
      const what = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" }[event.key];
      if (what) { event.preventDefault(); event.stopPropagation(); does[what](); }
    });
    plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = plot.getBoundingClientRect();
      zoom(event.deltaY < 0 ? 1.5 : 1 / 1.5, (event.clientX - box.left) / box.width);
    }, { passive: false });
    let at = null;
    plot.addEventListener("pointerdown", (event) => { at = event.clientX; dragged = false; });
    plot.addEventListener("pointermove", (event) => {
      if (at === null || !(event.buttons & 1)) { at = null; return; }
      const moved = event.clientX - at;
      if (Math.abs(moved) < 3) return;
      dragged = true; at = event.clientX;
      view.from -= moved / plot.getBoundingClientRect().width * view.share; draw();
    });
    draw();
  });
  charts();

  // -- what changed since somebody last looked -----------------------------------------------------------
  const news = document.querySelector("[data-changes]");
  if (news) {
    let before = null;
    try { before = Number(localStorage.getItem("lucid.queue")) || null; localStorage.setItem("lucid.queue", news.dataset.at); } catch { /* no storage: an hour */ }
    const at = Number(news.dataset.at);
    if (before && at - before > 60) {
      const address = news.dataset.changes + "?since=" + Math.round(before);
      const link = document.createElement("a");
      link.href = address;
      link.textContent = "What changed since you last looked, " + new Date(before * 1000).toLocaleString();
      news.replaceChildren(link);
    }
  }

  // -- news: the page is asked for again, and what has changed on it is replaced -------------------------
  let stopped = false, due = 0, timer = 0;
  const busy = (part) => part.contains(document.activeElement) && document.activeElement !== body && document.activeElement.matches("input, select, textarea, [data-gantt] *");
  const again = async () => {
    if (stopped || document.hidden) return;
    due = Date.now() + 5000;
    let answer;
    const address = new URL(location.href);
    address.searchParams.delete("ask");  // what the form asked is not planned again with each picture
    try { answer = await fetch(address, { headers: { Accept: "text/html" } }); } catch { return; }
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!other || busy(part) || part.outerHTML === other.outerHTML) continue;
      const open = [...part.querySelectorAll("details")].map((one) => one.open);
      const focus = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const scrolls = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      part.replaceWith(other);
      if (open.length) [...other.querySelectorAll("details")].forEach((one, i) => { one.open = Boolean(open[i]); });
      [...other.querySelectorAll(".scroll")].forEach((one, i) => { one.scrollLeft = scrolls[i] || 0; });
      if (focus) [...other.querySelectorAll("a")].find((one) => one.getAttribute("href") === focus)?.focus({ preventScroll: true });
      if (other.matches("[data-gantt]")) charts();
    }
    body.dataset.version = fresh.body.dataset.version;
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(again, Math.max(0, due - Date.now())); };
  if (body.dataset.events && "EventSource" in window) {
    const stream = new EventSource(body.dataset.events);
    stream.addEventListener("news", (event) => {
      if (String(JSON.parse(event.data).version) !== body.dataset.version) soon();
    });
    addEventListener("pagehide", () => stream.close());
    document.addEventListener("visibilitychange", soon);
  }

  // -- keys ----------------------------------------------------------------------------------------------
  const keys = document.getElementById("keys"), pages = [...document.querySelectorAll("header nav a")];
  let opener = null;
  const show = (open) => {
    if (open) { opener = document.activeElement; keys.hidden = false; document.getElementById("keys-close").focus(); }
    else if (!keys.hidden) { keys.hidden = true; opener?.focus(); }
  };
  document.getElementById("keys-close").addEventListener("click", () => show(false));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") { show(false); tip.hidden = true; return; }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    const page = pages[Number(event.key) - 1];
    if (page) { location.href = page.href; return; }
    if (event.key === "/") { event.preventDefault(); document.getElementById("find").focus(); }
    if (event.key === "f") { event.preventDefault(); document.querySelector(".filter input, .filter select")?.focus(); }
    if (event.key === "p") { stopped = !stopped; body.classList.toggle("stopped", stopped); if (!stopped) soon(); }
    if (event.key === "?") show(keys.hidden);
  });
})();
