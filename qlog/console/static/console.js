// What pages do beside being read: the live part follows the cluster, charts are drawn, keys work.
// A page is whole without this file, but for charts.
"use strict";

const live = document.getElementById("live");
const state = document.getElementById("state");
const plots = new Map();

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colors() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return dark
    ? ["#7fd6a2", "#8ab4f8", "#f2c169", "#ff9d94", "#c9a7f5", "#7fdce6"]
    : ["#14653a", "#0b57d0", "#9a5b00", "#a31515", "#6b2fb5", "#00707d"];
}

function clocks(times) {
  const length = times.length && times[times.length - 1] - times[0] < 600 ? 8 : 5;
  return times.map((time) => new Date(time * 1000).toTimeString().slice(0, length));
}

function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return +(value / size).toFixed(2) + unit;
  }
  return String(+value.toFixed(2));
}

// Lines go on over steps of other lines (undefined), and end at a gap (null).
function lined([times, ...rows]) {
  return [times, ...rows.map((row) => row.map((value) => value === "gap" ? null : value ?? undefined))];
}

function draw(box) {
  const text = box.dataset.chart;
  const known = plots.get(box);
  const chart = JSON.parse(text);
  if (known && known.labels === chart.labels.join("\n")) {
    if (known.text !== text) known.plot.setData(lined(chart.data));
    known.text = text;
    return;
  }
  if (known) known.plot.destroy();
  const lines = colors();
  const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  const plot = new uPlot({
    width: Math.max(200, box.clientWidth),
    height: Math.max(120, box.clientHeight - (chart.labels.length > 1 ? 40 : 0)),
    padding: [null, 32, null, null],
    cursor: { points: { size: 6 } },
    // Of one sample uPlot makes a day.
    scales: { x: { range: (_, lo, hi) => [lo, hi - lo > 7200 ? lo + 60 : hi] }, y: { range: (_, lo, hi) => [0, hi > 0 ? hi * 1.1 : 1] } },
    axes: [{ ...axis, space: 85, values: (_, times) => clocks(times) }, { ...axis, size: 60, values: (_, values) => values.map(short) }],
    legend: { live: false, show: chart.labels.length > 1 },
    series: [{}, ...chart.labels.map((label, i) => ({ label, stroke: lines[i % lines.length], width: 2 }))],
  }, lined(chart.data), box);
  plots.set(box, { plot, text, labels: chart.labels.join("\n") });
}

function drawAll() {
  for (const box of document.querySelectorAll(".chart")) draw(box);
  for (const [box, { plot }] of plots) {
    if (!box.isConnected) { plot.destroy(); plots.delete(box); }
  }
}

// Change a tree into another one, node by node, so that focus, selection and open parts stay.
function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  if (from.classList.contains("chart")) return;
  morphChildren(from, to);
}

function morphChildren(from, to) {
  const news = [...to.childNodes];
  const olds = [...from.childNodes];
  news.forEach((node, i) => {
    if (olds[i]) morph(olds[i], node);
    else from.append(node);
  });
  for (const node of olds.slice(news.length)) node.remove();
}

function follow() {
  const source = new EventSource("/stream" + document.body.dataset.path + location.search);
  const say = (text, isBad) => {
    if (state.textContent !== text) state.textContent = text;
    state.classList.toggle("lost", isBad);
  };
  // What is shown is of `heard`; the console says every 2 s that it still holds.
  let heard = new Date();
  let isLost = false;
  const since = () => ` since ${heard.toTimeString().slice(0, 8)}`;
  const hear = () => { heard = new Date(); isLost = false; say("live", false); };
  const lose = (text) => { isLost = true; say(`${text}; stopped${since()}`, true); };
  setInterval(() => {
    if (!isLost && new Date() - heard > 3000) say("no news" + since(), true);
  }, 500);
  source.addEventListener("live", (event) => {
    const next = document.createElement("div");
    next.innerHTML = JSON.parse(event.data);
    morphChildren(live, next);
    drawAll();
    hear();
  });
  source.addEventListener("same", hear);
  source.addEventListener("trouble", (event) => lose(JSON.parse(event.data)));
  source.addEventListener("error", () => lose("the console does not answer"));
  addEventListener("pagehide", () => source.close());
}

const pages = { o: "/", t: "/topics", c: "/groups", n: "/nodes", e: "/events", m: "/microscope" };
let isGoing = false;
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName)) return;
  if (event.key === "/") {
    const box = document.querySelector("[data-search]");
    if (box) { event.preventDefault(); box.focus(); }
  } else if (isGoing && pages[event.key]) {
    location.href = pages[event.key];
  }
  isGoing = event.key === "g";
});

addEventListener("resize", () => {
  for (const [box, { plot }] of plots) plot.setSize({ width: Math.max(200, box.clientWidth), height: plot.height });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [box, { plot }] of plots) { plot.destroy(); plots.delete(box); }
  drawAll();
});

document.querySelector("footer").hidden = false;
document.getElementById("slash").hidden = !document.querySelector("[data-search]");
drawAll();
if (live && live.childElementCount) follow();
