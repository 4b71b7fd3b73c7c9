/** The page of one model: its signature, configuration, versions, processes, latency by stage, errors, and "try it". */

import { button, choice, copy, forgetChildren, keep, make, say, tile } from "./draw.js";
import { LATENCY_WINDOW, RATE_WINDOW, STAGES, clientErrors, keyOf, sum } from "./history.js";
import { LoadButtons, mayInfer } from "./manage.js";
import {
  address,
  drawRequestTiles,
  failureChart,
  isLong,
  latencyChart,
  memoryText,
  pillOf,
  requestChart,
  workersOf,
} from "./models.js";
import { drawEvents, drawWorkers } from "./overview.js";
import { failure, modelPath, read } from "./server.js";
import { capital, duration, plural, shapeText, short, span } from "./text.js";
import { TryIt } from "./try.js";

const STAGE_NAMES = ["queue", "compute input", "compute infer", "compute output"];

/** The rows of the document that are versions of a model, the highest version first. */
const versionsOf = (doc, name) =>
  doc.models.filter(model => model.name === name).sort((a, b) => Number(b.version) - Number(a.version));

/** What `reshape` in config.pbtxt means: clients see the shape of the table, and the model another one. */
const reshapeText = (kind, shape) => {
  const itself = shape.length ? shapeText(shape) : "[], a single value";
  return `reshape: the model itself ${kind === "Input" ? "receives" : "returns"} ${itself}`;
};

export class ModelPage {
  /** `past` is the history, `place` = {name, version}; version "" = the highest that serves. */
  constructor(past, place) {
    this.past = past;
    this.place = place;
    this.seen = null;
    this.build();
  }

  build() {
    const { name } = this.place;
    this.pill = make("span", "pill");
    this.note = make("p", "note");
    this.why = make("div", "banner", "");
    this.versions = make("div", "rows card versions");
    const back = make("a", "back", "← All models"),
      title = make("h1", "", name);
    back.href = "#";
    title.tabIndex = -1;
    this.title = title;
    this.tiles = {
      requests: tile("Requests", requestChart()),
      latency: tile("Latency", latencyChart(), "latency"),
      failures: tile("Failed requests", failureChart()),
      busy: tile("In flight"),
      memory: tile("Memory"),
    };
    this.stages = make("div", "card stages");
    this.signature = make("div", "card scroll");
    this.trial = make("div");
    this.workers = make("section", "card rows workers");
    this.config = make("pre", "");
    this.config.tabIndex = 0;
    this.events = make("section", "card rows");
    this.load = new LoadButtons(name);
    const part = (text, ...nodes) => make("section", "", make("h2", "", text), ...nodes);
    this.live = [
      make("section", "tiles", ...Object.values(this.tiles).map(({ node }) => node)),
      part("Try it", this.trial),
      part("Inputs and outputs", this.signature),
      part("Latency by stage", this.stages),
      part("Instances and their processes", this.workers),
      part("Configuration", this.configNode()),
    ];
    this.tiles.busy.node.classList.add("plain");
    this.tiles.memory.node.classList.add("plain");
    const top = make("div", "top", title, this.pill);
    this.node = make(
      "div",
      "model",
      back,
      top,
      this.note,
      this.why,
      this.load.node,
      ...this.live.slice(0, 2),
      part("Versions", this.versions),
      part("Last problems of this model", this.events),
      ...this.live.slice(2),
    );
  }

  configNode() {
    this.whole = false;
    const kinds = choice(
      "Members",
      [
        ["set", "Without empty members"],
        ["all", "Everything"],
      ],
      value => {
        this.whole = value === "all";
        this.showConfig();
      },
    );
    const copied = make("span", "note");
    copied.setAttribute("role", "status");
    const act = button("Copy", "", async () =>
      say(copied, (await copy(this.config.textContent, this.config)) ? "Copied. " : "Press Ctrl+C. "),
    );
    this.configBox = make("div", "card", make("div", "line", kinds.node, make("span", "", copied, act)), this.config);
    return this.configBox;
  }

  /** Draw what the newest document says. */
  draw(doc) {
    const { name } = this.place,
      models = versionsOf(doc, name),
      { past } = this;
    const model = models.find(one => one.version === this.place.version) || models.find(one => one.totals) || models[0];
    this.load.show(doc, models);
    if (!model) return this.gone();
    const live = !!model.totals;
    for (const node of this.live) node.hidden = !live;
    say(this.pill, ...pillOf(model));
    say(
      this.note,
      [
        model.version && `Version ${model.version}`,
        model.backend,
        live && model.instances > 0 && plural(model.instances, "instance"),
        live && model.max_batch_size > 0 && `batches of up to ${model.max_batch_size}`,
        model.decoupled && "decoupled",
        model.load_seconds > 0 && `loaded in ${duration(model.load_seconds)}`,
      ]
        .filter(Boolean)
        .join(" · "),
    );
    const advice = isLong(model)
      ? ". The model hangs, or is slow. Its parameter execution_timeout_ms, or --hang-timeout-secs, restarts a model that hangs."
      : "";
    say(
      this.why,
      capital(model.reason) + advice,
      model.condition === "failed" || advice ? "banner bad" : "banner busy",
    );
    this.why.hidden = !this.why.textContent;
    this.drawVersions(models, model);
    drawEvents(
      this.events,
      doc,
      doc.errors.filter(event => event.model === name),
      "No problems since the server started.",
    );
    if (live) this.drawLive(doc, model);
    return undefined;
  }

  gone() {
    say(this.pill, "Not here", "pill");
    say(this.note, "");
    say(
      this.why,
      "This server has no such model: its directory is gone from the repository, or it was never there.",
      "banner busy",
    );
    this.why.hidden = false;
    for (const node of this.live) node.hidden = true;
    keep(this.versions, ["empty"], () => ({ node: make("div", "empty", "No versions.") }));
  }

  drawVersions(models, shown) {
    const rows = keep(
      this.versions,
      models.map(model => model.version || "none"),
      () => {
        const link = make("a", "title"),
          pill = make("span"),
          why = make("span", "note");
        const node = make(
          "div",
          "row",
          make("div", "name", link),
          make("div", "state", pill),
          make("div", "wide", why),
        );
        return {
          node,
          show(model) {
            say(link, model.version ? `Version ${model.version}` : "No version");
            link.href = address(model);
            link.setAttribute("aria-current", String(model === shown));
            say(pill, ...pillOf(model));
            say(
              why,
              (model !== shown && model.reason) ||
                (model.totals ? `${short(model.totals.requests)} requests answered` : ""),
            );
            node.classList.toggle("current", model === shown && models.length > 1);
          },
        };
      },
    );
    models.forEach((model, i) => rows[i].show(model));
  }

  drawLive(doc, model) {
    const { past, tiles } = this,
      key = keyOf(model),
      points = past.points(key),
      now = past.figures(key, RATE_WINDOW) || {},
      recent = past.figures(key, LATENCY_WINDOW) || {};
    const failed = [sum(model.totals.failures), clientErrors(model)],
      [memory, remark, gpu] = memoryText(doc, model),
      queued = model.pending ? `, ${short(model.pending)} queued` : "";
    drawRequestTiles(tiles, { now, recent }, `${short(model.totals.requests)} in all${queued}`, failed, points);
    const oldest = model.oldest_batch_seconds;
    tiles.busy.show(
      short(model.in_flight || 0),
      model.in_flight === 1 ? "request" : "requests",
      oldest ? `the oldest batch runs for ${span(oldest)}` : "",
    );
    tiles.busy.node.classList.toggle("alarm", isLong(model));
    const whose = remark || (model.workers?.length ? "of its own processes" : "");
    tiles.memory.show(memory, "", [whose, gpu].filter(Boolean).join(", "));
    this.drawStages(model);
    drawWorkers(this.workers, workersOf(doc, model));
    if (!model.workers?.length) this.ensemble();
    const identity = [keyOf(model), model.revision].join(" ");
    if (this.seen !== identity) {
      this.seen = identity;
      this.describe(doc, model);
    }
    this.showTrial(doc);
  }

  ensemble() {
    forgetChildren(this.workers);
    keep(this.workers, ["none"], () => ({
      node: make("div", "empty", "An ensemble has no process of its own: its steps run in those of their models."),
    }));
  }

  drawStages(model) {
    const minute = this.past.stages(keyOf(model)),
      { totals } = model;
    const stages = minute || (totals.requests ? STAGES.map(name => totals[name] / totals.requests / 1e9) : null);
    const total = stages ? stages.reduce((a, b) => a + b, 0) : 0;
    const [bar, list, note] = keep(this.stages, ["bar", "list", "note"], kind => ({
      node: make(
        kind === "list" ? "dl" : kind === "note" ? "p" : "div",
        kind === "bar" ? "stack" : kind === "note" ? "note" : "",
      ),
    }));
    bar.node.hidden = list.node.hidden = !stages;
    say(
      note.node,
      !stages
        ? "No requests yet."
        : minute
          ? "Average of a request over the last 60 s."
          : "Average of a request since the version was loaded.",
    );
    if (!stages) return;
    keep(bar.node, STAGE_NAMES, name => ({ node: make("div", "stage-" + STAGE_NAMES.indexOf(name)) })).forEach(
      ({ node }, i) => {
        node.style.width = `${total ? (stages[i] / total) * 100 : 0}%`;
      },
    );
    keep(
      list.node,
      STAGE_NAMES.flatMap(name => [name, name + "="]),
      key => ({ node: key.endsWith("=") ? make("dd") : make("dt", "stage-" + STAGE_NAMES.indexOf(key), key) }),
    ).forEach(({ node }, i) => {
      if (i % 2) say(node, `${duration(stages[i >> 1])} (${Math.round(total ? (stages[i >> 1] / total) * 100 : 0)} %)`);
    });
  }

  /** Ask for what a document does not have; once for each load of a version. */
  async describe(doc, model) {
    const path = modelPath(model.name, model.version),
      { seen } = this;
    let answers;
    try {
      answers = await Promise.all([read(path), read(path + "/config")]);
    } catch (error) {
      if (this.seen !== seen) return;
      for (const node of [this.signature, this.trial])
        node.replaceChildren(make("p", "empty", `The server does not describe this version: ${failure(error)}`));
      setTimeout(() => {
        if (this.seen === seen) this.seen = null;
      }, 5000);
      return;
    }
    if (this.seen !== seen) return;
    const [metadata, config] = answers;
    this.described = { name: model.name, version: model.version, metadata, config };
    this.grpcPort = /:(\d+)$/.exec(doc.server.doors.gRPC?.[0] || "")?.[1] ?? null;
    this.trier = null;
    this.showSignature(metadata, config);
    this.showConfig();
    this.showTrial(doc);
  }

  showTrial(doc) {
    if (!this.described) return;
    const may = mayInfer(doc);
    if (may && !this.trier) {
      this.trier = new TryIt(this.described, this.grpcPort);
      this.trial.replaceChildren(this.trier.node);
    } else if (!may) {
      this.trier = null;
      this.trial.replaceChildren(
        make("p", "card empty", "To send requests from here, use a token with the role infer."),
      );
    }
  }

  showSignature(metadata, config) {
    const table = make("table", "signature"),
      body = make("tbody");
    const known = new Map([...(config.input || []), ...(config.output || [])].map(one => [one.name, one]));
    for (const [kind, tensors] of [
      ["Input", metadata.inputs],
      ["Output", metadata.outputs],
    ]) {
      for (const { name, datatype, shape } of tensors) {
        const own = known.get(name) || {};
        const remarks = [
          own.optional && "optional",
          own.label_filename && `labels in ${own.label_filename}`,
          own.format && own.format !== "FORMAT_NONE" && own.format,
          own.reshape && reshapeText(kind, own.reshape.shape || []),
        ];
        body.append(
          make(
            "tr",
            "",
            make("td", "note", kind),
            make("th", "", name, make("div", "note", remarks.filter(Boolean).join(", "))),
            make("td", "", datatype),
            make("td", "", shapeText(shape)),
          ),
        );
      }
    }
    table.append(
      make("thead", "", make("tr", "", ...["", "Name", "Type", "Shape"].map(text => make("th", "", text)))),
      body,
    );
    const batch =
      config.max_batch_size > 0 ? `The first dimension is the batch, of up to ${config.max_batch_size}. ` : "";
    this.signature.replaceChildren(table, make("p", "note", `${batch}−1 stands for any number.`));
  }

  showConfig() {
    if (this.described) say(this.config, pretty(this.whole ? this.described.config : compact(this.described.config)));
  }
}

/** A value without members that are empty, zero, or false. */
function compact(value) {
  if (Array.isArray(value)) return value.map(compact);
  if (value === null || typeof value !== "object") return value;
  const members = Object.entries(value).map(([key, one]) => [key, compact(one)]);
  return Object.fromEntries(members.filter(([, one]) => one && (typeof one !== "object" || Object.keys(one).length)));
}

/** Indented JSON, with lists of plain values in one line. */
const pretty = value =>
  JSON.stringify(value, null, 2).replaceAll(/\[\n[^[\]{}]*?\n\s*\]/g, list => list.replaceAll(/\n\s*/g, " "));
