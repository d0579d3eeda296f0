"use strict";
// The readout: the points nearest to the pointer, or to where the arrow keys have gone.
const digits = (value) => {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e7) return value.toExponential(3);
  return size >= 1000 ? String(Math.round(value * 10) / 10) : value.toPrecision(5).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
};
const bytes = (value) => {
  let power = 0;
  while (Math.abs(value) >= 1000 && power < 5) { value /= 1000; power += 1; }
  return value.toFixed(power ? 1 : 0) + " " + ["B", "kB", "MB", "GB", "TB", "PB"][power];
};
const units = {
  plain: digits, bytes, percent: (value) => value.toFixed(1) + "%", count: (value) => Math.round(value).toLocaleString("en"),
};

/** The point of a sorted list whose step is nearest. */
const nearest = (points, step) => {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= step) low = middle; else high = middle;
  }
  return Math.abs(points[low][0] - step) <= Math.abs(points[high][0] - step) ? low : high;
};

for (const chart of document.querySelectorAll(".chart")) {
  const { steps: [first, last], unit, lines } = JSON.parse(chart.querySelector("script").textContent);
  const longest = lines.reduce((one, other) => (other.points.length > one.points.length ? other : one));
  for (const plot of chart.querySelectorAll(".plot")) {
    const area = plot.querySelector(".area");
    const isLog = plot.classList.contains("log");
    const low = Number(plot.dataset.low), high = Number(plot.dataset.high);
    const place = (value) => isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    let shown = [], at = null;
    const make = (name, className) => {
      const made = document.createElement(name);
      made.className = className;
      shown.push(made);
      area.append(made);
      return made;
    };
    const hide = () => { shown.forEach((part) => part.remove()); shown = []; at = null; };
    const show = (index) => {
      hide();
      at = index;
      const step = longest.points[index][0];
      const left = (step - first) / (last - first);
      make("div", "cross").style.left = left * 100 + "%";
      const readout = make("div", "readout");
      readout.setAttribute("role", "status");
      const head = document.createElement("b");
      head.textContent = "step " + step.toLocaleString("en");
      readout.append(head);
      for (const line of lines) {
        const point = line.points[nearest(line.points, step)];
        const row = document.createElement("div");
        const where = point[0] === step ? "" : " at " + point[0].toLocaleString("en");
        row.textContent = line.name + ": " + units[unit](point[1]) + where;
        readout.append(row);
        const height = place(point[1]);
        if (line.look !== "faint" && height >= 0 && height <= 1) {
          const spot = make("div", "spot");
          spot.style.left = ((point[0] - first) / (last - first)) * 100 + "%";
          spot.style.top = (1 - height) * 100 + "%";
          spot.style.background = "var(--" + line.look + ")";
        }
      }
      // Beside the line, on the side where it has room.
      const room = area.clientWidth - readout.offsetWidth, pointer = left * area.clientWidth;
      const beside = pointer + 12 <= room ? pointer + 12 : pointer - readout.offsetWidth - 12;
      readout.style.left = Math.max(0, Math.min(room, beside)) + "px";
    };
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      show(nearest(longest.points, first + ((event.clientX - box.left) / box.width) * (last - first)));
    });
    area.addEventListener("pointerleave", hide);
    area.addEventListener("blur", hide);
    area.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") hide();
      if (by === undefined) return;
      event.preventDefault();
      const end = longest.points.length - 1;
      show(Math.min(end, Math.max(0, at === null ? (by > 0 ? 0 : end) : at + by)));
    });
  }
}
