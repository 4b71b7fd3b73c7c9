/** "Try it": a form for one request of a model, its answer, and the same request as a program. */

import { button, choice, copy, field, make, save, say } from "./draw.js";
import { infer, stream, streamBody } from "./infer.js";
import { InputControl } from "./inputs.js";
import { outputNode } from "./outputs.js";
import { Refused, failure } from "./server.js";
import { curl, javascript, madeFiles, pythonProgram, tensorFile } from "./snippets.js";
import { duration, plural } from "./text.js";

const SHOWN_EVENTS = 200;
const TOP = 5;

/** What an HTTP status of an inference means, in words. */
function plainly(status) {
  return (
    {
      400: "The server did not accept the request",
      401: "The request needs a token",
      403: "This client may not infer",
      404: "The model is not there",
      413: "The request is too large",
      503: "The server cannot take the request now",
    }[status] || (status >= 500 ? "The model or the server failed" : `The server answered with status ${status}`)
  );
}

export class TryIt {
  /** `model` has name, version, metadata, config; `grpcPort` is null where gRPC is off. */
  constructor(model, grpcPort) {
    this.model = model;
    this.grpcPort = grpcPort;
    const { metadata, config } = model,
      batched = config.max_batch_size > 0;
    this.decoupled = config.model_transaction_policy?.decoupled === true;
    const known = new Map((config.input || []).map(input => [input.name, input]));
    this.controls = metadata.inputs.map(
      input =>
        new InputControl(
          { ...input, optional: known.get(input.name)?.optional === true, format: known.get(input.name)?.format },
          batched,
          () => this.changed(),
        ),
    );
    this.labelled = (config.output || []).filter(output => output.label_filename).map(output => output.name);
    this.build();
  }

  build() {
    this.form = make("form", "try");
    this.send = make("button", "primary", "Send the request");
    this.stop = button("Stop", "", () => this.abort?.abort());
    this.stop.hidden = true;
    this.status = make("p", "status");
    this.status.setAttribute("role", "status");
    this.answer = make("div", "answer");
    this.form.append(
      ...this.controls.map(control => control.node),
      ...this.extras(),
      make("div", "buttons", this.send, this.stop),
    );
    this.form.noValidate = true;
    this.form.addEventListener("submit", event => {
      event.preventDefault();
      this.run();
    });
    const result = make("section", "result", make("h3", "", "Answer"), this.status, this.answer);
    result.setAttribute("aria-label", "Answer");
    say(
      this.status,
      this.decoupled
        ? "This model is decoupled: its answers are shown one after another as they come (generate_stream)."
        : "Nothing was sent yet.",
    );
    this.node = make("div", "card tryit", make("div", "columns", this.form, result), this.snippetNode());
  }

  /** Fields beside the inputs: of a sequence, of labels, and parameters. */
  extras() {
    const nodes = [];
    if (this.model.config.sequence_batching) {
      this.id = make("input");
      this.id.value = String(1 + Math.floor(Math.random() * 1e6));
      this.start = make("input");
      this.end = make("input");
      this.start.type = this.end.type = "checkbox";
      this.start.checked = true;
      nodes.push(
        make(
          "fieldset",
          "input",
          make("legend", "", make("b", "", "Sequence")),
          make(
            "div",
            "options",
            field("Sequence ID", this.id),
            field("This request starts it", this.start, "tick"),
            field("This request ends it", this.end, "tick"),
          ),
          make(
            "p",
            "note",
            "All requests of a sequence have the same ID. An open sequence keeps its slot until a request ends it or it is idle for too long.",
          ),
        ),
      );
    }
    if (this.labelled.length && !this.decoupled) {
      this.top = make("input");
      this.top.type = "number";
      this.top.min = "0";
      this.top.value = String(TOP);
      nodes.push(
        make("div", "options", field(`Show the top classes of ${this.labelled.join(", ")} (0: the numbers)`, this.top)),
      );
    }
    this.parameters = make("textarea");
    this.parameters.rows = 2;
    this.parameters.placeholder = '{"temperature": 0.5}';
    const more = make("details", "", make("summary", "", "Request parameters"), field("JSON object", this.parameters));
    nodes.push(more);
    for (const node of nodes) node.addEventListener("input", () => this.changed());
    return nodes;
  }

  /** The request as the form has it; throws an Error that says what is wrong. `quiet`: and is not shown at the input. */
  request(quiet = false) {
    const inputs = this.controls.map(control => control.read(quiet)).filter(Boolean);
    let parameters = {};
    if (this.parameters.value.trim()) {
      try {
        parameters = JSON.parse(this.parameters.value);
      } catch {
        parameters = null;
      }
      if (parameters === null || typeof parameters !== "object" || Array.isArray(parameters))
        throw new Error('Request parameters: expected a JSON object such as {"temperature": 0.5}');
    }
    if (this.id) {
      const id = this.id.value.trim();
      if (!id || id === "0") throw new Error("Sequence ID: expected a number above 0, or a text");
      parameters = {
        ...parameters,
        sequence_id: /^\d{1,15}$/.test(id) ? Number(id) : id,
        sequence_start: this.start.checked,
        sequence_end: this.end.checked,
      };
    }
    const classes = {},
      top = Number(this.top?.value || 0);
    if (!(Number.isInteger(top) && top >= 0)) throw new Error("Top classes: expected a whole number");
    if (top) for (const name of this.labelled) classes[name] = top;
    const { outputs } = this.model.metadata,
      binary = outputs.some(({ datatype }) => datatype === "FP16" || datatype === "BF16");
    return { inputs, parameters, classes, binary, outputs: outputs.map(({ name }) => name), stream: this.decoupled };
  }

  async run() {
    let request;
    this.answer.replaceChildren();
    try {
      request = this.request();
      if (this.decoupled) streamBody(request);
    } catch (error) {
      this.problem("The request was not sent", error.message);
      (error.cause?.node.querySelector("textarea, input:not([type=checkbox])") || this.send).focus();
      return;
    }
    this.abort = new AbortController();
    this.send.disabled = true;
    this.stop.hidden = false;
    const began = performance.now(),
      { name, version } = this.model;
    const waiting = setInterval(
      () => say(this.status, `Waiting for ${Math.round((performance.now() - began) / 1e3)} s …`, "status"),
      1000,
    );
    say(this.status, "Waiting …", "status");
    try {
      if (this.decoupled) await this.follow(request, began);
      else this.show(await infer(name, version, request, this.abort.signal), request, began);
      if (this.id) {
        this.start.checked = this.end.checked;
        this.end.checked = false;
      }
    } catch (error) {
      const after = ` (after ${duration((performance.now() - began) / 1e3)})`;
      this.problem(
        (error instanceof Refused ? plainly(error.status) : error.name === "AbortError" ? "Stopped" : "No answer") +
          after,
        failure(error),
      );
    } finally {
      clearInterval(waiting);
      this.send.disabled = false;
      this.stop.hidden = true;
      this.changed();
    }
  }

  problem(heading, text) {
    say(this.status, heading, "status bad");
    const box = make("p", "fault", text);
    this.answer.append(box);
  }

  show(answer, request, began) {
    const size = answer.outputs.length;
    say(
      this.status,
      `${plural(size, "output")} of version ${answer.model_version} in ${duration((performance.now() - began) / 1e3)}, the way there and back included.`,
      "status good",
    );
    for (const output of answer.outputs) this.answer.append(outputNode(output, request.classes[output.name]));
    const extra = Object.entries(answer.parameters || {}).filter(([key]) => !key.startsWith("sequence_"));
    if (extra.length) this.answer.append(make("p", "note", `Parameters: ${JSON.stringify(Object.fromEntries(extra))}`));
    if (!size) this.answer.append(make("p", "note", "The answer has no outputs."));
  }

  async follow(request, began) {
    const list = make("ol", "strings events"),
      { name, version } = this.model;
    let heard = 0,
      first = null;
    this.answer.append(list);
    await stream(name, version, request, this.abort.signal, message => {
      first ??= performance.now() - began;
      heard++;
      if (heard > SHOWN_EVENTS) return;
      const { model_name, model_version, ...outputs } = message;
      const values = Object.entries(outputs).map(
        ([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`,
      );
      list.append(make("li", "", make("span", "string", values.join("\n"))));
    });
    const shown = heard > SHOWN_EVENTS ? `; the first ${SHOWN_EVENTS} are shown` : "";
    const speed = first === null ? "" : `, the first after ${duration(first / 1e3)}`;
    say(
      this.status,
      `${plural(heard, "answer")} in ${duration((performance.now() - began) / 1e3)}${speed}${shown}.`,
      "status good",
    );
  }

  // ---- the same request as a program --------------------------------------------------------------------------------

  snippetNode() {
    this.code = make("code");
    const pre = make("pre", "", this.code);
    pre.tabIndex = 0;
    this.needed = make("div", "needed");
    this.language = "curl";
    const languages = choice(
      "Language",
      [
        ["curl", "curl"],
        ["python", "Python"],
        ["javascript", "JavaScript"],
      ],
      value => {
        this.language = value;
        this.changed();
      },
    );
    const copied = make("span", "note");
    copied.setAttribute("role", "status");
    const act = button("Copy", "", async () => {
      say(copied, (await copy(this.code.textContent, this.code)) ? "Copied." : "Press Ctrl+C: the text is selected.");
      setTimeout(() => say(copied, ""), 4000);
    });
    this.snippet = make(
      "details",
      "snippet",
      make("summary", "", "This request as a program"),
      make("div", "line", languages.node, make("span", "", copied, " ", act)),
      this.needed,
      pre,
    );
    this.snippet.addEventListener("toggle", () => this.changed());
    return this.snippet;
  }

  /** Something in the form is other than before: write the program anew if it is shown. */
  changed() {
    if (!this.snippet?.open) return;
    this.needed.replaceChildren();
    try {
      say(this.code, this.program(this.request(true)));
    } catch (error) {
      say(this.code, `# ${error.message}`);
    }
  }

  program(request) {
    const { name, version } = this.model,
      { language } = this;
    for (const input of request.stream ? [] : madeFiles(request, language)) {
      const file = tensorFile(input);
      this.needed.append(
        make(
          "p",
          "note",
          `It reads ${file}, the tensor that this page has made: `,
          button(`Save ${file}`, "small", () => save(file, input.data)),
        ),
      );
    }
    if (request.inputs.some(({ source }) => source.file))
      this.needed.append(make("p", "note", "Run it in the folder of the file."));
    return { curl, python: pythonProgram, javascript }[language](name, version, request, this.grpcPort);
  }
}
