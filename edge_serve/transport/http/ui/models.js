/** Models as rows of the first page, and how one model is called, coloured, and measured. */

import { $, chart, header, keep, make, row, say } from "./draw.js";
import { LATENCY_WINDOW, RATE_WINDOW, clientErrors, keyOf, sum } from "./history.js";
import { NONE, age, bytes, capital, duration, plural, rate, short, span, time } from "./text.js";

const perSecond = value => rate(value) + "/s";

export const requestChart = small =>
  chart("Requests per second", [{ field: "requests" }], { format: perSecond, small });
export const latencyChart = () =>
  chart(
    "Latency",
    [
      { field: "p50", name: "median" },
      { field: "p99", name: "99 %", className: "second" },
    ],
    { format: duration },
  );
export const failureChart = () =>
  chart(
    "Failed requests and client errors per second",
    [
      { field: "failures", name: "failed", className: "fail" },
      { field: "clientErrors", name: "client errors", className: "warm" },
    ],
    { format: perSecond },
  );

/** Draw the three tiles of requests, of the server or of one model. `past` = its figures over both windows. */
export function drawRequestTiles(tiles, past, counted, failed, points) {
  const { now, recent } = past,
    [fast, unit] = time(recent.p50),
    slow = recent.p99 == null ? "no requests" : `99 %: ${duration(recent.p99)}`;
  tiles.requests.show(rate(now.requests), "per second", counted, points);
  tiles.latency.show(fast, unit && unit + " median", slow, points);
  const [failures, errors] = failed;
  const remark = `${short(failures)} in all, ${plural(errors, "client error")}`;
  tiles.failures.show(rate(now.failures), "per second", remark, points);
}

/** How much the processes of workers take, shared memory divided among those who share it. */
export const memoryOf = worker => worker.pss_bytes ?? worker.rss_bytes;

/** A batch runs for longer than it should: the model may hang. */
export const isLong = model => model.condition === "busy";

const PILLS = {
  ready: "good",
  busy: "bad",
  loading: "busy",
  restarting: "busy",
  unready: "busy",
  unloading: "busy",
  failed: "bad",
  unloaded: "",
};
const ORDER = ["failed", "busy", "unready", "restarting", "loading", "unloading", "ready", "unloaded"];

/** The state of a version as a coloured word. */
export function pillOf(model) {
  if (isLong(model)) return [`Busy for ${age(model.oldest_batch_seconds)}`, "pill bad"];
  return [capital(model.condition), "pill " + PILLS[model.condition]];
}

/** The workers of a version, by their processes. */
export function workersOf(doc, model) {
  const pids = new Set(model.workers || []);
  return doc.workers.filter(worker => pids.has(worker.pid));
}

/** [memory, remark, gpu]: a version's share of its processes, whose they are besides, and memory of GPUs. */
export function memoryText(doc, model) {
  const workers = workersOf(doc, model);
  if (!workers.length) return [model.totals ? NONE : "", "", ""];
  const known = workers.filter(worker => memoryOf(worker) != null),
    add = size => bytes(known.length ? known.reduce((n, worker) => n + size(worker), 0) : null),
    share = add(worker => memoryOf(worker) / Math.max(1, worker.models.length)),
    gpu = model.gpu_memory_bytes ? `${bytes(model.gpu_memory_bytes)} of GPU memory` : "";
  const names = new Set(workers.flatMap(worker => worker.models));
  const others = plural(names.size - 1, "model"),
    shared = names.size > 1 ? `its share of the ${add(memoryOf)} of a worker with ${others} more` : "";
  return [share, shared, gpu];
}

export const address = model =>
  "#" + ["model", model.name, ...(model.version ? [model.version] : [])].map(encodeURIComponent).join("/");

function modelRow() {
  const cell = () => make("span"),
    name = make("a", "title"),
    note = make("span"),
    pill = make("span", "pill"),
    why = make("div", "why");
  const [requests, p50, p99, busy, queue, failed, refused, memory, shared] = Array.from({ length: 9 }, cell);
  const quiet = make("span", "narrow", " · no requests yet");
  const plot = requestChart(true);
  const node = row([
    ["name", make("div", "", name, make("div", "note", note, quiet))],
    ["state", pill],
    ["right rate", requests, "req/s"],
    ["plots", plot.node],
    ["right", p50, "median"],
    ["right", p99, "99 %"],
    ["right", busy, "in flight"],
    ["right", queue, "queue"],
    ["right", failed, "failed"],
    ["right", refused, "client errors"],
    ["right", make("div", "", memory, shared), "memory"],
  ]);
  node.append(why);
  return {
    node,
    show(doc, past, model) {
      const key = keyOf(model),
        live = !!model.totals,
        now = (live && past.figures(key, RATE_WINDOW)) || {},
        recent = (live && past.figures(key, LATENCY_WINDOW)) || {};
      const failures = live ? sum(model.totals.failures) : 0,
        [size, remark, gpu] = memoryText(doc, model),
        long = isLong(model);
      const idle = live && !model.totals.requests && !failures && !clientErrors(model) && !model.in_flight;
      node.className = `row is-${model.condition}${live ? " live" : ""}${idle ? " idle" : ""}`;
      quiet.hidden = !idle;
      say(name, model.name);
      name.href = address(model);
      say(
        note,
        [
          model.version && "version " + model.version,
          model.backend,
          live && model.instances > 1 && `${model.instances} instances`,
        ]
          .filter(Boolean)
          .join(" · "),
      );
      say(pill, ...pillOf(model));
      // without the traceback of a model; how long a busy one is busy stands above
      say(why, isLong(model) ? "" : model.reason.split("\n\nAt:\n")[0].replaceAll(/\n\s*/g, "\n"));
      why.hidden = !why.textContent;
      say(requests, live ? rate(now.requests) : "", now.requests ? "" : "zero");
      say(p50, live ? duration(recent.p50) : "", recent.p50 == null ? "zero" : "");
      say(p99, live ? duration(recent.p99) : "", recent.p99 == null ? "zero" : "");
      say(busy, live ? short(model.in_flight || 0) : "", long ? "warn" : model.in_flight ? "" : "zero");
      busy.title = model.oldest_batch_seconds ? `the oldest batch has run for ${span(model.oldest_batch_seconds)}` : "";
      say(queue, live ? short(model.pending) : "", live && model.pending ? "" : "zero");
      say(failed, live ? short(failures) : "", failures ? "warn" : "zero");
      failed.title = failures
        ? Object.entries(model.totals.failures)
            .filter(([, n]) => n)
            .map(([reason, n]) => `${reason} ${n}`)
            .join(", ")
        : "";
      say(
        refused,
        live || clientErrors(model) ? short(clientErrors(model)) : "",
        clientErrors(model) ? "caution" : "zero",
      );
      say(memory, size, remark ? "zero" : "");
      say(shared, remark ? "its share" : "", "tiny");
      memory.parentNode.title = [remark, gpu].filter(Boolean).join("; ");
      plot.node.hidden = !live;
      plot.draw(live ? past.points(key) : []);
    },
  };
}

const MODEL_HEAD = header([
  ["", "Model"],
  ["", "State"],
  ["right", "Req/s"],
  ["", "last 60 s"],
  ["right", "Median"],
  ["right", "99 %"],
  ["right", "In flight"],
  ["right", "Queue"],
  ["right", "Failed"],
  ["right", "Client errors"],
  ["right", "Memory"],
]);

export function drawModels(doc, past) {
  const models = [...doc.models].sort((a, b) => ORDER.indexOf(a.condition) - ORDER.indexOf(b.condition));
  const of = condition => models.filter(model => model.condition === condition).length;
  const words = [
    of("failed") && `${of("failed")} failed`,
    of("busy") && `${of("busy")} busy for more than 10 s`,
    models.length && `${of("ready") + of("busy")} of ${models.length - of("unloaded")} ready`,
  ];
  $("models-title").replaceChildren(
    "Models",
    make(
      "span",
      "",
      words
        .filter(Boolean)
        .map(word => " · " + word)
        .join(""),
    ),
  );
  const keys = models.length ? ["head", ...models.map(model => "= " + keyOf(model))] : ["empty"];
  const rows = keep($("models"), keys, key =>
    key === "head"
      ? { node: MODEL_HEAD }
      : key === "empty"
        ? {
            node: make(
              "div",
              "empty",
              "No models. Put one into the model repository and restart or reload, or load one over the API.",
            ),
          }
        : modelRow(),
  );
  models.forEach((model, i) => rows[i + 1].show(doc, past, model));
}
