"use strict";
(() => {
  const readouts = JSON.parse(document.getElementById("readouts").textContent);
  const tip = document.getElementById("tip");
  const hidden = new Set();

  // -- words ---------------------------------------------------------------------------------------------
  const UNITS = [["s", 1, 100], ["min", 60, 100], ["h", 3600, 240], ["d", 86400, Infinity]];
  const duration = (seconds) => {
    const [name, size] = UNITS.find(([, size, most]) => seconds < most * size);
    const value = seconds / size;
    return value.toFixed(name === "s" || value >= 100 ? 0 : value >= 10 ? 1 : 2) + " " + name;
  };
  const moment = (seconds) => {
    const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    return days ? days + " d " + hours % 24 + " h" : hours ? hours + " h " + minutes % 60 + " min" : minutes + " min";
  };
  const heading = { within: (s) => "within " + duration(s), at: (s) => "after " + moment(s) };
  const shown = { percent: (v) => v.toFixed(1) + " %", jobs: (v) => v.toFixed(v < 10 ? 1 : 0) };

  // -- the box beside the pointer ------------------------------------------------------------------------
  const place = (x, y) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, Math.min(y + 12, innerHeight - box.height - 4)) + "px";
  };
  const element = (name, text, className) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  // -- line charts ---------------------------------------------------------------------------------------
  const nearest = (places, x) => {
    let low = 0, high = places.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (places[middle] < x) low = middle; else high = middle;
    }
    return x - places[low] < places[high] - x ? low : high;
  };
  const drawn = (name, attributes) => {
    const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return made;
  };

  const refits = [];
  document.querySelectorAll("svg[data-chart]").forEach((svg) => {
    const data = readouts[svg.dataset.chart];
    const [low, full, bottom, top] = data.y;
    let high = full;
    const overlay = svg.appendChild(drawn("g", {}));
    let index = -1;

    const height = (value) => bottom + (value - low) / (high - low) * (top - bottom);

    // Hide the policy with the longest queue, and the others get the room.
    if (data.fit) refits.push(() => {
      const labels = svg.querySelectorAll("text.y");
      const seen = data.series.filter((series) => !hidden.has(series.p));
      const least = Math.max(0, ...seen.flatMap((series) => series.v)) / (labels.length - 1) || 1;
      const power = 10 ** Math.floor(Math.log10(least));
      const step = Math.ceil([1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((n) => n * power >= least * (1 - 1e-9)) * power);
      high = step * (labels.length - 1);
      labels.forEach((label, i) => { label.textContent = (i * step).toLocaleString("en"); });
      for (const series of seen) {
        const path = series.v.map((value, i) => data.px[i] + "," + height(value).toFixed(1)).join("L");
        svg.querySelector(`[data-p="${series.p}"] > .line`).setAttribute("d", path && "M" + path);
      }
    });

    const clear = () => { overlay.replaceChildren(); tip.hidden = true; index = -1; };
    const show = (at, clientX, clientY) => {
      index = Math.max(0, Math.min(at, data.px.length - 1));
      const x = data.px[index];
      overlay.replaceChildren(drawn("line", { class: "cursor", x1: x, x2: x, y1: top, y2: bottom }));
      tip.replaceChildren(element("b", heading[data.kind](data.x[index])));
      for (const series of data.series) {
        if (hidden.has(series.p)) continue;
        const value = series.v[index];
        const row = document.createElement("div");
        row.append(element("span", series.name, "of p" + series.p));
        row.append(element("span", value === undefined ? "over" : shown[data.unit](value)));
        tip.append(row);
        if (value === undefined) continue;
        overlay.append(drawn("circle", { class: "dot p" + series.p, cx: x, cy: height(value), r: 4 }));
      }
      const box = svg.getBoundingClientRect();
      const scale = box.width / svg.viewBox.baseVal.width;
      place(clientX ?? box.left + x * scale, clientY ?? box.top + top * scale);
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      show(nearest(data.px, x), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", clear);
    svg.addEventListener("blur", clear);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
      if (event.key === "Escape") clear();
      if (step === undefined) return;
      event.preventDefault();
      show(index < 0 ? 0 : index + step);
    });
  });

  // -- bars ----------------------------------------------------------------------------------------------
  document.querySelectorAll("svg:has([data-tip])").forEach((svg) => {
    svg.addEventListener("pointermove", (event) => {
      const bar = event.target.closest("[data-tip]");
      if (!bar) { tip.hidden = true; return; }
      tip.replaceChildren(element("span", bar.dataset.tip));
      place(event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  });

  // -- legends -------------------------------------------------------------------------------------------
  document.querySelectorAll("[data-key-of]").forEach((key) => {
    key.addEventListener("click", () => {
      const policy = Number(key.dataset.keyOf);
      const off = !hidden.delete(policy) && Boolean(hidden.add(policy));
      document.querySelectorAll(`[data-p="${policy}"]`).forEach((part) => part.classList.toggle("off", off));
      document.querySelectorAll(`[data-key-of="${policy}"]`).forEach((k) => k.setAttribute("aria-pressed", String(!off)));
      refits.forEach((refit) => refit());
    });
  });

  // A title element would pop up over our own box; the same words as a label do not.
  document.querySelectorAll("svg.chart").forEach((svg) => {
    const title = svg.querySelector("title");
    const description = svg.querySelector("desc");
    svg.setAttribute("aria-label", title.textContent + ". " + description.textContent);
    svg.removeAttribute("aria-labelledby");
    title.remove();
  });
})();
