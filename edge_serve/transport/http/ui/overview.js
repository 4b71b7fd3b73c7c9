/** The first page: tiles of the whole server, models, workers, the last events, and what the server is. */

import { $, chart, forgetChildren, header, keep, make, meter, row, say, tile } from "./draw.js";
import { LATENCY_WINDOW, RATE_WINDOW, countersOf } from "./history.js";
import { drawModels, drawRequestTiles, failureChart, latencyChart, memoryOf, requestChart } from "./models.js";
import { drawSystem } from "./system.js";
import { drawUpdates } from "./updates.js";
import { NONE, bytes, clock, number, part, percent, plural, short, span } from "./text.js";

const BRIEF = 12;

const TILES = {
  requests: () => tile("Requests", requestChart()),
  latency: () => tile("Latency", latencyChart(), "latency"),
  failures: () => tile("Failed requests", failureChart()),
  cpu: () => tile("CPU", chart("CPU load", [{ field: "cpu" }], { floor: 1, format: percent })),
  heat: () =>
    tile(
      "Temperature",
      chart("Temperature", [{ field: "heat", className: "warm" }], {
        floor: 100,
        format: value => (value == null ? NONE : number(value) + " °C"),
      }),
    ),
  memory: () => meter("Memory"),
  gpu: (name, i) => tile(name, chart(name + " load", [{ field: "gpu" + i }], { floor: 1, format: percent })),
  gpumemory: name => meter(name + " memory"),
};

/** The names of the tiles of one of `count` GPUs: kind, number, and what it is called. */
const gpuTiles = (gpu, i, count) =>
  [(gpu.utilization != null || gpu.problem) && `gpu ${i}`, gpu.memory_total && `gpumemory ${i}`]
    .filter(Boolean)
    .map(name => `${name} ${count > 1 ? "GPU " + i : "GPU"}`);

function makeTile(key) {
  const [kind, i, ...name] = key.split(" ");
  return TILES[kind](name.join(" "), i);
}

function drawGpu(gpu, tile, memory, points) {
  const more = [
    gpu.temperature != null && `${number(gpu.temperature)} °C`,
    gpu.power_usage != null && `${number(gpu.power_usage, 1)} W`,
    gpu.throttling?.length && `clocks lowered (${gpu.throttling.join(", ")})`,
    gpu.problem,
  ];
  tile?.show(percent(gpu.utilization), "", more.filter(Boolean).join(", "), points);
  memory?.show(...part(gpu.memory_used, gpu.memory_total), "");
  memory?.level(gpu.memory_used / gpu.memory_total);
}

function drawTiles(doc, past) {
  const { device } = doc,
    gpus = device.gpus,
    heat = device.temperatures[0],
    points = past.points("");
  const names = [
    "requests",
    "latency",
    "failures",
    "cpu",
    ...(heat ? ["heat"] : []),
    "memory",
    ...gpus.flatMap((gpu, i) => gpuTiles(gpu, i, gpus.length)),
  ];
  $("tiles").style.setProperty("--columns", names.length > 6 ? Math.ceil(names.length / 2) : names.length);
  const tiles = Object.fromEntries(
    keep($("tiles"), names, makeTile).map((entry, i) => [names[i].split(" ").slice(0, 2).join(" "), entry]),
  );
  const now = past.figures("", RATE_WINDOW) || {},
    recent = past.figures("", LATENCY_WINDOW) || {},
    all = countersOf(doc, "");
  const live = doc.models.filter(model => model.totals),
    of = name => live.reduce((n, model) => n + (model[name] || 0), 0);
  const pending = of("pending"),
    busy = of("in_flight");
  const more = [
    `${short(all.requests)} in all`,
    busy && `${short(busy)} in flight`,
    pending && `${short(pending)} queued`,
  ];
  drawRequestTiles(tiles, { now, recent }, more.filter(Boolean).join(", "), [all.failures, all.clientErrors], points);
  tiles.cpu.show(
    percent(device.cpu_utilization),
    "",
    `${plural(device.cores, "core")}, load ${device.load.length ? number(device.load[0], 2) : NONE}`,
    points,
  );
  if (heat) tiles.heat.show(number(heat.celsius), "°C", heat.name, points);
  const { memory_used_bytes: used, memory_total_bytes: total } = device;
  tiles.memory.show(
    ...part(used, total),
    `workers ${bytes(doc.workers.reduce((n, worker) => n + (memoryOf(worker) || 0), 0))}`,
  );
  tiles.memory.level(total ? used / total : 0);
  gpus.forEach((gpu, i) => drawGpu(gpu, tiles[`gpu ${i}`], tiles[`gpumemory ${i}`], points));
}

// ---- workers and events ---------------------------------------------------------------------------------------------

function workerRow() {
  const cell = () => make("span"),
    name = make("div", "title"),
    models = make("div", "note");
  const [pid, memory, up, restarts] = [cell(), cell(), cell(), cell()];
  const node = row([
    ["name", name],
    ["right", pid, "process"],
    ["names", models],
    ["right", memory, "memory"],
    ["right", up, "up"],
    ["right", restarts, "restarts"],
  ]);
  return {
    node,
    show(worker) {
      say(name, worker.label);
      say(pid, String(worker.pid));
      say(models, worker.models.join(", "));
      say(memory, bytes(memoryOf(worker)));
      say(up, worker.lost ? "down" : span(worker.uptime_seconds), worker.lost ? "warn" : "");
      say(restarts, String(worker.restarts), worker.restarts ? "warn" : "zero");
    },
  };
}

export function drawWorkers(node, workers) {
  const rows = keep(node, ["head", ...workers.map(worker => worker.pid)], key =>
    key === "head"
      ? {
          node: header([
            ["", "Worker"],
            ["right", "Process"],
            ["", "Models"],
            ["right", "Memory"],
            ["right", "Up"],
            ["right", "Restarts"],
          ]),
        }
      : workerRow(),
  );
  workers.forEach((worker, i) => rows[i + 1].show(worker));
}

const HIDDEN = "The log's lines are shown to clients with a token, and on the device itself if the URL has its address or host name.";

/** Lines of the log, the newest first; `empty` stands there when there are none. */
export function drawEvents(node, doc, all, empty) {
  const events = all.slice(0, node.whole ? all.length : BRIEF);
  const keys = events.length
    ? events.map((event, i) => [event.time_ms, event.source, event.text, all.length - i].join(" "))
    : ["empty"];
  if (events.length < all.length) keys.push("more");
  const rows = keep(node, keys, key => {
    if (key === "more") {
      const more = make("button", "more");
      more.addEventListener("click", () => {
        node.whole = true;
        node.again?.();
      });
      return { node: more };
    }
    if (!events.length) return { node: make("div", "empty") };
    const when = make("time"),
      mark = make("span", "mark"),
      text = make("span"),
      count = make("span", "count");
    return {
      node: make("div", "", when, make("p", "", mark, text, count)),
      show(event) {
        this.node.className = "event " + event.level;
        say(when, clock(event.time_ms));
        when.dateTime = when.title = new Date(event.time_ms).toISOString();
        say(mark, { error: "Error", warning: "Warning" }[event.level] || "");
        mark.hidden = event.level === "info";
        say(text, event.text);
        say(count, event.count > 1 ? `× ${event.count}` : "");
      },
    };
  });
  node.again = () => drawEvents(node, doc, all, empty);
  if (events.length < all.length) say(rows[events.length].node, `Show all ${all.length}`);
  if (events.length) events.forEach((event, i) => rows[i].show(event));
  else say(rows[0].node, doc.log_hidden ? HIDDEN : empty);
}

const chosen = () => $("choice").querySelector("[aria-pressed=true]").value;

function drawAllEvents(doc) {
  drawEvents(
    $("events"),
    doc,
    doc[chosen()],
    chosen() === "errors" ? "No problems since the server started." : "Nothing has happened yet.",
  );
}

/** Let the buttons above the events choose between all and problems. `newest` gives the document. */
export function watchChoice(newest) {
  $("choice").addEventListener("click", event => {
    if (!event.target.value) return;
    for (const one of $("choice").children) one.setAttribute("aria-pressed", String(one === event.target));
    forgetChildren($("events"));
    if (newest()) drawAllEvents(newest());
  });
}

function drawAbout(doc) {
  const { server, versions } = doc,
    list = [];
  for (const [name, text] of [
    ["Running for", span(server.uptime_seconds)],
    [
      "Versions",
      Object.entries(versions)
        .map(pair => pair.join(" "))
        .join(", "),
    ],
    ["Protocol", `Triton ${server.protocol}, as “${server.name}”`],
    [
      "Listens on",
      Object.entries(server.doors)
        .map(([name, addresses]) => `${name} ${addresses.join(", ")}`)
        .join(" · "),
    ],
    ["Device key", doc.system?.fingerprint || ""],
    ["Connections", `${number(doc.http.connections)} open`],
    ["Tensor memory", `${bytes(doc.tensor_memory.used_bytes)} of ${bytes(doc.tensor_memory.limit_bytes)}`],
    [
      "Your role",
      doc.client
        ? doc.client.role + (doc.client.admin_refusal && `; to administrate: ${doc.client.admin_refusal}`)
        : "",
    ],
    ["Sensors", doc.device.temperatures.map(one => `${one.name} ${number(one.celsius)} °C`).join(", ")],
  ])
    if (text) list.push([name, text]);
  define($("about"), list);
}

/** A list of terms and their values. */
export function define(node, list) {
  keep(
    node,
    list.flatMap(([name]) => [name, name + " value"]),
    key => ({ node: make(key.endsWith(" value") ? "dd" : "dt") }),
  ).forEach((entry, i) => say(entry.node, list[i >> 1][i & 1]));
}

export function drawOverview(doc, past) {
  drawTiles(doc, past);
  drawSystem(doc);
  drawModels(doc, past);
  drawWorkers($("workers"), [
    { ...doc.server, label: "front end", restarts: 0, models: ["sockets, queues, statistics"] },
    ...doc.workers,
  ]);
  drawUpdates(doc);
  drawAllEvents(doc);
  drawAbout(doc);
}
