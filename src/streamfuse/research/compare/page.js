"use strict";
// Shows the panels of the chosen data set, device and method, and plays the answer. Without it all panels are shown.
const one = (selector) => document.querySelector(selector);
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const choices = ["data", "device", "method"].map((name) => one("#" + name));

function show() {
  const [data, device, method] = choices.map((choice) => choice.value);
  const chosen = { panelData: data, panelDevice: device, panelMethod: method };
  for (const panel of all(".panel")) {
    panel.hidden = Object.entries(panel.dataset).some(([name, value]) => name in chosen && chosen[name] !== value);
  }
  for (const row of all("[data-pick]")) row.classList.toggle("picked", row.dataset.pick === method);
  const absent = one(".absent");
  if (absent) absent.hidden = all("[data-panel-method]").some((panel) => !panel.hidden);
}

function pick(event) {
  const row = event.target.closest("[data-pick]");
  const options = [...choices[2].options].map((option) => option.value);
  if (!row || !options.includes(row.dataset.pick)) return;
  choices[2].value = row.dataset.pick;
  show();
}

function sort(header) {
  const body = header.closest("table").tBodies[0];
  const down = header.getAttribute("aria-sort") !== "descending";
  all("th", header.parentNode).forEach((other) => other.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => row.cells[header.cellIndex].textContent;
  const figure = (text) => parseFloat(text.replace(/,/g, ""));
  const order = (a, b) => {
    const [left, right] = [figure(key(a)), figure(key(b))];
    if (isNaN(left) && isNaN(right)) return key(a).localeCompare(key(b));
    if (isNaN(left) || isNaN(right)) return isNaN(left) ? 1 : -1;
    return down ? right - left : left - right;
  };
  body.append(...[...body.rows].sort(order));
}

function seek(ms) {
  const time = one("#time");
  time.value = ms;
  one("#clock").textContent = Math.round(ms) + " ms";
  for (const part of all("#sample [data-source][data-ms], #sample .tok")) {
    part.classList.toggle("future", parseFloat(part.dataset.ms) > ms + 0.05);
  }
  for (const head of all("#sample .head")) {
    head.style.left = Math.min(100, (100 * ms) / head.closest(".lanes").dataset.end) + "%";
  }
}

function play() {
  const button = one("#play");
  const [time, end] = [one("#time"), parseFloat(one("#time").max)];
  if (button.textContent === "stop") return void (button.textContent = "play");
  button.textContent = "stop";
  let at = parseFloat(time.value) >= end - 0.1 ? 0 : parseFloat(time.value);
  let before = performance.now();
  const step = (now) => {
    if (button.textContent !== "stop") return;
    at = Math.min(end, at + (now - before) / one("#slow").value);
    before = now;
    seek(at);
    if (at < end) requestAnimationFrame(step);
    else button.textContent = "play";
  };
  requestAnimationFrame(step);
}

choices.forEach((choice) => choice.addEventListener("change", show));
document.addEventListener("click", pick);
all("[data-sortable] th").forEach((header) => header.addEventListener("click", () => sort(header)));
one(".controls").hidden = false;
if (one("#time")) {
  one(".player").hidden = false;
  one("#play").addEventListener("click", play);
  one("#time").addEventListener("input", (event) => seek(parseFloat(event.target.value)));
}
const sampled = one("[data-panel-method]");
if (sampled) choices[2].value = sampled.dataset.panelMethod;
show();
document.body.dataset.ready = "true";
