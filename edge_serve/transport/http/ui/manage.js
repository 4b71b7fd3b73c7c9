/** What only an administrator may: loading, unloading, settings of the log and of traces, leaving safe mode. */

import { button, confirmed, field, make, say, select } from "./draw.js";
import { failure, post, read } from "./server.js";

/** Whether this client may administrate, as the server says. */
export const mayManage = doc => doc.client?.role === "admin";
export const mayInfer = doc => !doc.client || ["infer", "admin"].includes(doc.client.role);

/** Ask, act, and say how it went in `result`. */
async function carryOut(question, text, yes, act, result, done) {
  if (!(await confirmed(question, text, yes))) return;
  say(result, "Working …", "result-line");
  try {
    await act();
    say(result, done, "result-line good");
  } catch (error) {
    say(result, failure(error), "result-line bad");
  }
}

/** Buttons to load and unload one model. */
export class LoadButtons {
  constructor(name) {
    this.result = make("p", "result-line");
    this.result.setAttribute("role", "status");
    const path = verb => `v2/repository/models/${encodeURIComponent(name)}/${verb}`;
    this.load = button("Load", "", () =>
      carryOut(
        `${this.load.textContent} ${name}?`,
        this.serves
          ? "Its files are read again. Requests are answered by the version that serves until the new one is ready."
          : "Its files are read, and it serves once it is ready.",
        this.load.textContent,
        () => post(path("load"), {}),
        this.result,
        `${name} was loaded.`,
      ),
    );
    this.unload = button("Unload", "danger", () =>
      carryOut(
        `Unload ${name}?`,
        "Requests for it fail until it is loaded again. Accepted requests are answered first.",
        "Unload",
        () => post(path("unload"), {}),
        this.result,
        `${name} is being unloaded.`,
      ),
    );
    this.note = make("p", "note");
    this.node = make("div", "manage", make("div", "buttons", this.load, this.unload), this.note, this.result);
  }

  show(doc, models) {
    const explicit = doc.server.explicit === true,
      may = mayManage(doc);
    this.serves = models.some(model => model.totals);
    this.node.hidden = !may && !this.result.textContent;
    this.load.hidden = this.unload.hidden = !may || !explicit;
    say(this.load, this.serves ? "Load again" : "Load");
    this.unload.disabled = !this.serves;
    say(
      this.note,
      may && !explicit && !this.serves
        ? "Start the server with --model-control-mode=explicit to load and unload models here."
        : "",
    );
  }
}

const number = least => () => {
  const input = make("input");
  input.type = "number";
  input.min = String(least);
  input.step = "1";
  return input;
};
const tick = () => {
  const input = make("input");
  input.type = "checkbox";
  return input;
};

/** Settings: [member, label, control, value of the control, value for the control]. */
const value = [
  input => input.value,
  (input, text) => {
    input.value = text;
  },
];
const checked = [
  input => input.checked,
  (input, on) => {
    input.checked = on;
  },
];
const LOG = [
  ["log_verbose_level", "Verbose level (0: off)", number(0), input => Number(input.value), value[1]],
  ["log_info", "Information", tick, ...checked],
  ["log_warning", "Warnings", tick, ...checked],
  ["log_error", "Errors", tick, ...checked],
  [
    "log_format",
    "Format",
    () =>
      select([
        ["default", "default"],
        ["ISO8601", "ISO8601"],
        ["json", "json"],
      ]),
    ...value,
  ],
];
const TRACE = [
  [
    "trace_level",
    "Trace",
    () =>
      select([
        ["OFF", "off"],
        ["TIMESTAMPS", "timestamps"],
        ["TENSORS", "tensors"],
        ["TIMESTAMPS TENSORS", "timestamps and tensors"],
      ]),
    input => input.value.split(" "),
    (input, levels) => {
      input.value = levels.join(" ");
    },
  ],
  ["trace_rate", "One request of", number(1), ...value],
  ["trace_count", "Traces to make (−1: no end)", number(-1), ...value],
  ["log_frequency", "Traces in one file (0: all)", number(0), ...value],
];

/** A form for settings that GET and POST of `path` have. */
class SettingsForm {
  constructor(title, path, members) {
    this.path = path;
    this.result = make("p", "result-line");
    this.result.setAttribute("role", "status");
    this.controls = members.map(([name, label, control, get, set]) => ({ name, label, get, set, node: control() }));
    const apply = make("button", "primary", "Apply"),
      file = (this.file = make("p", "note"));
    this.node = make(
      "form",
      "settings",
      make("h3", "", title),
      make(
        "div",
        "options",
        ...this.controls.map(({ label, node }) => field(label, node, node.type === "checkbox" ? "tick" : "field")),
      ),
      file,
      make("div", "buttons", apply),
      this.result,
    );
    this.node.noValidate = true;
    this.node.addEventListener("submit", event => {
      event.preventDefault();
      this.apply(title);
    });
  }

  async load() {
    try {
      this.show(await read(this.path));
    } catch (error) {
      say(this.result, failure(error), "result-line bad");
    }
  }

  show(settings) {
    this.settings = settings;
    for (const { name, node, set } of this.controls) set(node, settings[name]);
    say(
      this.file,
      "trace_file" in settings
        ? `Traces go to ${settings.trace_file || "no file: --trace-config triton,file=... names one"}.`
        : "",
    );
  }

  async apply(title) {
    const changes = Object.fromEntries(
      this.controls
        .map(({ name, node, get }) => [name, get(node)])
        .filter(([name, wanted]) => JSON.stringify(wanted) !== JSON.stringify(this.settings?.[name])),
    );
    const list = Object.entries(changes).map(
      ([name, wanted]) => `${name}: ${JSON.stringify(this.settings?.[name])} → ${JSON.stringify(wanted)}`,
    );
    if (!list.length) return say(this.result, "Nothing is other than before.", "result-line");
    return carryOut(
      `Change the settings of ${title.toLowerCase()}?`,
      list.join(", "),
      "Change",
      async () => this.show(await (await post(this.path, changes)).json()),
      this.result,
      "Changed.",
    );
  }
}

/** The section of settings, made and read when it is first shown. */
export class Settings {
  constructor(node) {
    this.node = node;
  }

  show(doc) {
    const may = mayManage(doc);
    this.node.hidden = this.node.previousElementSibling.hidden = !may;
    if (!may || this.forms) return;
    this.forms = [
      new SettingsForm("The log", "v2/logging", LOG),
      new SettingsForm("Traces", "v2/trace/setting", TRACE),
    ];
    for (const form of this.forms) {
      this.node.append(form.node);
      form.load();
    }
  }
}

/** The way out of safe mode, for the banner. */
export function safeModeButton() {
  const result = make("span", "result-line");
  result.setAttribute("role", "status");
  const act = button("Load the models that were left out", "", () =>
    carryOut(
      "Leave safe mode?",
      "The models that were left out after crashes are loaded again. If one of them crashes the server, it starts in safe mode again.",
      "Load them",
      () => post("edge-serve/safe-mode/leave", {}),
      result,
      "They are being loaded.",
    ),
  );
  return make("div", "buttons", act, result);
}
