// Runs the script of a report.html against a document that draws nothing, and moves the mouse over it.
"use strict";
const fs = require("fs");
const vm = require("vm");

const page = fs.readFileSync(process.argv[2], "utf8");
const data = /id="data">([\s\S]*?)<\/script>/.exec(page)[1];
const script = /<script>([\s\S]*)<\/script>/.exec(page)[1];

const context = new Proxy({}, {
  get: (known, name) => name in known ? known[name] : name === "measureText" ? () => ({ width: 20 }) : () => {},
});
function element() {
  const kids = [];
  return {
    kids, style: {}, textContent: "", clientWidth: 900, offsetWidth: 50, offsetHeight: 20,
    classList: { add() {}, remove() {}, toggle() {} },
    append(...more) { kids.push(...more); },
    replaceChildren(...more) { kids.splice(0, kids.length, ...more); },
    setAttribute() {}, addEventListener() {}, querySelectorAll: () => [],
    getContext: () => context, getBoundingClientRect: () => ({ left: 0, top: 0 }),
  };
}
const found = new Map([["data", Object.assign(element(), { textContent: data })]]);
function byId(id) {
  if (!page.includes(`id="${id}"`)) throw new Error(`there is no element ${id}`);
  if (!found.has(id)) found.set(id, element());
  return found.get(id);
}
let frames = [];
function drain() {
  for (let round = 0; frames.length && round < 10; round++) { const now = frames; frames = []; now.forEach(f => f && f()); }
}
vm.runInNewContext(script, {
  document: { documentElement: element(), getElementById: byId, createElement: element, createElementNS: element, createDocumentFragment: element },
  getComputedStyle: () => ({ getPropertyValue: () => "#123456" }),
  matchMedia: () => ({ matches: false, addEventListener() {} }),
  devicePixelRatio: 1, innerWidth: 1000, innerHeight: 800, addEventListener() {}, atob, setTimeout, clearTimeout,
  requestAnimationFrame: f => frames.push(f), cancelAnimationFrame: n => { frames[n - 1] = null; },
});

const rows = () => byId("body").kids[0].kids.length;
const before = rows();
const tips = [];
function hover(target) {
  for (let x = 60; x < 890; x += 10) {
    target.onmousemove({ clientX: x, clientY: target === byId("gantt") ? 20 : 180 });
    drain();
    tips.push(byId("tip").textContent);
  }
  target.onmouseleave({ clientX: 0, clientY: 0 });
  drain();
}
[byId("curves"), byId("gantt"), ...[byId("front")].filter(kid => kid.onmousemove), ...byId("scatter").kids.filter(kid => kid.onmousemove)].forEach(hover);
byId("metric").onchange({ target: { value: JSON.parse(data).metrics[1] } });
byId("log").onchange({ target: { checked: true } });
byId("head").kids[0].kids.forEach(cell => cell.kids[0].onclick());
byId("more").onclick();
byId("by").onchange({ target: { value: "shard" } });
["in", "out", "reset"].forEach(id => byId(id).onclick());
drain();
const legend = byId("legend").kids.map(row => row.textContent || row.kids.map(kid => kid.textContent).join(" ").trim());
console.log(JSON.stringify({ rows: before, rows_after_more: rows(), tips: [...new Set(tips)], legend, is_front_shown: byId("objectives").hidden === false }));
