// Charts are drawn already: this shows and hides curves, and tells values at the pointer.
const charts = JSON.parse(document.getElementById("charts").textContent);
const tip = document.getElementById("tip");
const off = {};
function parts(chart, k) {
  return document.getElementById(chart.id).querySelectorAll(`[data-curve="${k}"]`);
}
function show(group) {
  for (const chart of charts.filter(c => c.group === group))
    chart.curves.forEach((curve, k) => {
      for (const part of parts(chart, k))
        part.style.display = off[group].has(curve.name) ? "none" : "";
    });
}
for (const legend of document.querySelectorAll(".legend")) {
  const group = legend.dataset.group, buttons = [...legend.querySelectorAll("button")];
  const set = off[group] = new Set();
  const update = () => { show(group);
    for (const b of buttons) b.setAttribute("aria-pressed", String(!set.has(b.dataset.rule))); };
  for (const b of buttons) {
    b.addEventListener("click", () => {
      set.has(b.dataset.rule) ? set.delete(b.dataset.rule) : set.add(b.dataset.rule);
      update();
    });
    b.addEventListener("dblclick", () => {
      const alone = buttons.every(o => (o === b) !== set.has(o.dataset.rule));
      set.clear();
      if (!alone) for (const o of buttons) if (o !== b) set.add(o.dataset.rule);
      update();
    });
  }
  legend.classList.add("ready");
}
function nearest(chart, x, y, reach) {
  let best = null;
  chart.curves.forEach((curve, k) => {
    if (off[chart.group] && off[chart.group].has(curve.name)) return;
    for (let i = 0; i < curve.x.length; i++) {
      const d = Math.hypot(curve.x[i] - x, curve.y[i] - y);
      if (d < reach) { reach = d; best = [curve, i]; }
    }
  });
  return best;
}
const shown = v => (Number.isInteger(v) ? v.toLocaleString("en")
  : Math.abs(v) >= 100 ? v.toFixed(2) : String(Number(v.toPrecision(5)))).replace("-", "−");
for (const chart of charts) {
  const place = document.getElementById(chart.id), svg = place.querySelector("svg");
  const box = svg.viewBox.baseVal;
  place.addEventListener("pointermove", e => {
    const r = svg.getBoundingClientRect(), scale = box.width / r.width;
    const found = nearest(chart, (e.clientX - r.left) * scale, (e.clientY - r.top) * scale, 24);
    tip.hidden = !found;
    if (!found) return;
    const [curve, i] = found;
    tip.textContent = [curve.name,
      ...chart.fields.map((f, k) => `${f}: ${shown(curve.values[k][i])}`)].join("\n");
    const left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${e.clientY + 16 + scrollY}px`;
  });
  place.addEventListener("pointerleave", () => { tip.hidden = true; });
}
document.documentElement.dataset.drawn = String(charts.length);
