// A stroke on the image: drawn at once here, and sent as a whole when the pointer is lifted.
window.pfPaint = (event, send) => {
  const stack = event.currentTarget;
  if (!stack.classList.contains("pf-paint") || event.button > 0) return;
  event.preventDefault();
  const box = stack.getBoundingClientRect();
  const at = (e) => [(e.clientX - box.left) / box.width, (e.clientY - box.top) / box.height];
  const points = [at(event)];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const set = (name, value) => line.setAttribute(name, value);
  set("fill", "none");
  set("stroke", stack.dataset.color || "#000");
  set("stroke-width", Math.max(1, 2 * Number(stack.dataset.radius || 0.01) * box.width));
  set("stroke-linecap", "round");
  set("stroke-linejoin", "round");
  svg.append(line);
  stack.append(svg);
  const draw = () => set("points",
    [...points, points[points.length - 1]].map(([x, y]) => `${x * box.width},${y * box.height}`).join(" "));
  draw();
  stack.setPointerCapture(event.pointerId);
  const move = (e) => { points.push(at(e)); draw(); };
  const end = () => {
    stack.removeEventListener("pointermove", move);
    stack.removeEventListener("pointerup", end);
    stack.removeEventListener("pointercancel", end);
    send(points);
    setTimeout(() => svg.remove(), 1500);
  };
  stack.addEventListener("pointermove", move);
  stack.addEventListener("pointerup", end);
  stack.addEventListener("pointercancel", end);
};
window.pfOpacity = (value) => document.documentElement.style.setProperty("--pf-opacity", value);
