/** The control for one input of a model: its shape, and values or a file. */

import { button, choice, field, make, say, select } from "./draw.js";
import { ELSEWHERE, LARGEST, checkSize, isPicture, readTensor } from "./files.js";
import { SCALES, layoutOf, pictureTensor, readPicture, sizeFor } from "./picture.js";
import { count, encode, fitted, isFloat, parseValues, sizeOf } from "./tensors.js";
import { bytes, plural, shapeText } from "./text.js";

const FILLED = 4096;

/** Values that show where each one goes: 1, 2, 3. */
const counting = (datatype, amount) =>
  Array.from({ length: amount }, (_, i) => (datatype === "BOOL" ? String(i % 2 === 0) : String(1 + (i % 100))));
const random = (datatype, amount) =>
  Array.from({ length: amount }, () =>
    datatype === "BOOL"
      ? String(Math.random() < 0.5)
      : isFloat(datatype)
        ? Math.random().toFixed(3)
        : String(Math.floor(Math.random() * 100)),
  );

export class InputControl {
  /** `spec` is {name, datatype, shape, optional, format}; `batched`: the first dimension is the batch. */
  constructor(spec, batched, changed) {
    this.spec = spec;
    this.batched = batched;
    this.changed = changed;
    this.layout =
      spec.datatype === "BYTES" || spec.datatype === "BOOL" ? null : layoutOf(spec.shape, batched, spec.format);
    this.file = null;
    this.mode = "values";
    this.build();
  }

  build() {
    const { name, datatype, optional } = this.spec;
    this.node = make("fieldset", "input");
    this.problem = make("p", "problem");
    this.problem.id = `problem ${name}`.replace(/\W/g, "-");
    this.problem.setAttribute("role", "alert");
    this.sent = make("input");
    this.sent.type = "checkbox";
    this.sent.checked = !optional;
    const legend = make("legend", "", make("b", "", name), ` ${datatype}${optional ? ", optional" : ""}`);
    this.modes = choice(
      `How to give ${name}`,
      [
        ["values", datatype === "BYTES" ? "Text" : "Values"],
        ["file", "File"],
      ],
      mode => this.show(mode),
    );
    this.body = make(
      "div",
      "body",
      make("div", "line", this.shapeNode(), this.modes.node),
      this.valuesNode(),
      this.fileNode(),
    );
    this.text.setAttribute("aria-describedby", this.problem.id);
    this.node.append(legend, this.body, this.problem);
    if (optional) {
      this.node.insertBefore(field("Send this input", this.sent, "tick"), this.body);
      this.sent.addEventListener("change", () => {
        this.body.hidden = !this.sent.checked;
        this.changed();
      });
      this.body.hidden = true;
    }
    this.node.addEventListener("input", () => {
      this.complain("");
      this.changed();
    });
    for (const kind of ["dragover", "dragleave", "drop"])
      this.node.addEventListener(kind, event => this.dragged(event));
    const { layout } = this,
      image = layout && layout.order !== "HW";
    this.show(
      image && (layout.width === null || layout.height === null || layout.width * layout.height > 256)
        ? "file"
        : "values",
    );
  }

  /** Numbers for the free dimensions, the others as they are. */
  shapeNode() {
    const node = make("span", "shape", make("span", "", "Shape [")),
      free = this.spec.shape.some(dim => dim < 0);
    this.dims = this.spec.shape.map((dim, i) => {
      if (i) node.append(make("span", "", ", "));
      if (dim >= 0) {
        node.append(make("span", "", String(dim)));
        return null;
      }
      const input = make("input");
      input.type = "number";
      input.min = "1";
      input.step = "1";
      input.value = i === 0 && this.batched ? "1" : "";
      input.placeholder = "auto";
      input.setAttribute(
        "aria-label",
        `${this.spec.name}, dimension ${i + 1}${i === 0 && this.batched ? ", the batch size" : ""}`,
      );
      node.append(input);
      return input;
    });
    node.append(make("span", "", "]"));
    if (free) node.title = "A dimension without a number follows from the number of values.";
    return node;
  }

  valuesNode() {
    const { name, datatype } = this.spec;
    this.text = make("textarea");
    this.text.rows = 3;
    this.text.spellcheck = false;
    this.text.setAttribute("aria-label", `${name}, ${datatype === "BYTES" ? "one string on each line" : "values"}`);
    this.text.placeholder =
      datatype === "BYTES"
        ? "One string on each line, or a JSON array of strings"
        : "Numbers, separated by blanks, commas, or line breaks";
    const fill = (text, make) => button(text, "small", () => this.fill(make));
    const zeros = (type, amount) => Array(amount).fill(type === "BOOL" ? "false" : "0");
    const fills = make("div", "fills", fill("1 2 3 …", counting), fill("Zeros", zeros), fill("Random", random));
    this.values = make("div", "values", this.text, fills);
    const own = this.spec.shape.slice(this.batched ? 1 : 0);
    fills.hidden = datatype === "BYTES" && (own.includes(-1) || count(own) < 2); // a text, of which no value is a guess
    const amount = count(this.spec.shape.map(dim => (dim < 0 ? 1 : dim)));
    if (amount <= 64 && !fills.hidden) this.fill(counting);
    return this.values;
  }

  /** Write values for the shape; free dimensions count as 1. */
  fill(make) {
    const { datatype, shape, name } = this.spec,
      amount = count(this.shape().map(dim => dim ?? 1));
    if (amount > FILLED * 16)
      return this.complain(
        `${name} has ${plural(amount, "value")}, too many to write down: choose a file (.npy), or fewer with a smaller shape`,
      );
    const words = make(datatype, amount),
      row = shape[shape.length - 1];
    const size = row > 0 && row <= 32 ? row : 16,
      lines = [];
    if (datatype === "BYTES") lines.push(...words);
    else for (let i = 0; i < words.length; i += size) lines.push(words.slice(i, i + size).join(" "));
    this.text.value = lines.join("\n");
    this.text.rows = Math.min(8, Math.max(2, lines.length));
    this.complain("");
    return this.changed();
  }

  fileNode() {
    const { name } = this.spec;
    this.chooser = make("input");
    this.chooser.type = "file";
    this.chooser.addEventListener("change", () => {
      if (this.chooser.files.length) this.take(this.chooser.files[0]);
    });
    this.chooser.setAttribute("aria-label", `File for ${name}`);
    this.about = make("div", "about");
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "The picture as it is sent");
    this.canvas.hidden = true;
    const kinds = [
      this.layout && "a picture",
      this.spec.datatype === "BYTES" ? "any file (its bytes)" : "raw bytes",
      "NumPy (.npy)",
      "text",
    ].filter(Boolean);
    this.files = make(
      "div",
      "files",
      make(
        "label",
        "drop",
        this.chooser,
        make("b", "", "Choose a file"),
        make("span", "", `or drop one here: ${kinds.join(", ")}, up to ${bytes(LARGEST)}`),
      ),
      this.about,
      this.pictureNode(),
      this.canvas,
    );
    return this.files;
  }

  pictureNode() {
    this.width = make("input");
    this.height = make("input");
    for (const input of [this.width, this.height]) {
      input.type = "number";
      input.min = "1";
    }
    this.width.disabled = this.layout?.width != null;
    this.height.disabled = this.layout?.height != null;
    this.scale = select(SCALES.map(([name, text]) => [name, text]));
    this.crop = select([
      ["", "stretch"],
      ["crop", "cut out the middle"],
    ]);
    this.order = select([
      ["", "RGB"],
      ["bgr", "BGR"],
    ]);
    this.options = make(
      "div",
      "options",
      field("Width", this.width),
      field("Height", this.height),
      field("Fit", this.crop),
    );
    if (isFloat(this.spec.datatype)) this.options.append(field("Pixel values", this.scale));
    else this.scale.value = "bytes";
    if (this.layout?.channels === 3) this.options.append(field("Colours", this.order));
    this.options.hidden = true;
    this.options.addEventListener("change", () => this.draw());
    return this.options;
  }

  dragged(event) {
    if (!this.sent.checked || ![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    this.node.classList.toggle("over", event.type === "dragover");
    if (event.type === "drop" && event.dataTransfer.files.length) {
      this.show("file");
      this.modes.pick("file");
      this.take(event.dataTransfer.files[0]);
    }
  }

  show(mode) {
    this.mode = mode;
    this.modes.pick(mode);
    this.values.hidden = mode !== "values";
    this.files.hidden = mode !== "file";
    this.complain("");
    this.changed();
  }

  complain(text) {
    say(this.problem, text);
    this.problem.hidden = !text;
  }

  /** The shape as it stands in the control; null = free. */
  shape() {
    return this.spec.shape.map((dim, i) => {
      const text = this.dims[i]?.value.trim();
      if (dim >= 0) return dim;
      if (!text) return null;
      if (!/^\d+$/.test(text))
        throw new Error(`${this.spec.name}: dimension ${i + 1} is “${text}”, expected a whole number`);
      return Number(text);
    });
  }

  /** Read a file that was chosen; what is wrong with it is said below. */
  async take(file) {
    this.file = this.picture = null;
    this.options.hidden = this.canvas.hidden = true;
    say(this.about, "");
    try {
      checkSize(file);
      this.file = await this.understand(file);
      say(this.about, `${file.name}, ${bytes(file.size)}${this.file.note}`);
      this.complain("");
    } catch (error) {
      this.complain(
        error.name === "NotReadableError" || error.name === "NotFoundError"
          ? `${file.name} cannot be read: is it a file, and may you read it?`
          : error.message,
      );
    }
    this.chooser.value = ""; // so that the same file can be chosen again
    this.changed();
  }

  /** The tensor in a file; a picture is drawn first. */
  async understand(file) {
    const { name, datatype, shape } = this.spec;
    if (!isPicture(file) || datatype === "BYTES") {
      const found = await readTensor(file, this.spec);
      found.dims?.forEach((dim, i) => {
        if (this.dims[i]) this.dims[i].value = dim;
      });
      return found;
    }
    if (!this.layout)
      throw new Error(
        `${file.name} is a picture, and ${name} (${datatype} ${shapeText(shape)}) has not the shape of one: expected 1 or 3 channels, height, and width`,
      );
    this.picture = await readPicture(file);
    const size = sizeFor(this.layout, this.picture, datatype);
    this.width.value = size.width;
    this.height.value = size.height;
    this.options.hidden = this.canvas.hidden = false;
    return this.drawn(file.name, `, a picture of ${this.picture.width} × ${this.picture.height} pixels`);
  }

  /** Draw the picture anew with other options. */
  draw() {
    if (!this.picture) return;
    try {
      this.file = this.drawn(this.file.source.file, this.file.note);
      this.complain("");
    } catch (error) {
      this.complain(error.message);
    }
    this.changed();
  }

  drawn(fileName, note) {
    const { datatype, name } = this.spec,
      { layout } = this;
    const options = {
      width: Number(this.width.value),
      height: Number(this.height.value),
      scale: this.scale.value,
      crop: this.crop.value !== "",
      bgr: this.order.value !== "",
    };
    if (!(options.width >= 1 && options.height >= 1))
      throw new Error(`${name}: width and height are whole numbers from 1 on`);
    const size = options.width * options.height * layout.channels * sizeOf(datatype);
    if (size > LARGEST)
      throw new Error(
        `${name}: ${options.width} × ${options.height} pixels make ${bytes(size)}, and this page sends up to ${bytes(LARGEST)}: choose a smaller width and height`,
      );
    const data = pictureTensor(this.picture, this.canvas, layout, datatype, options);
    const { height, width } = options,
      image = { CHW: [layout.channels, height, width], HWC: [height, width, layout.channels], HW: [height, width] }[
        layout.order
      ];
    const shape = [...Array(layout.leading).fill(1), ...image];
    shape.forEach((dim, i) => {
      if (this.dims[i]) this.dims[i].value = dim;
    });
    return { data, amount: count(shape), shape, source: { kind: "picture", file: fileName, options, layout }, note };
  }

  /** The tensor as it stands; null = not sent. Throws an Error, which is also said below the control unless `quiet`. */
  read(quiet = false) {
    if (!this.sent.checked) return null;
    const { name, datatype, shape: dims } = this.spec;
    try {
      let made = this.file;
      if (this.mode === "file") {
        if (!made) throw new Error(this.problem.textContent || `${name}: choose a file, or fill in values`);
      } else {
        const wanted = this.shape(),
          values = parseValues(
            this.text.value,
            datatype,
            wanted.every(dim => dim === 1),
          );
        made = { data: encode(datatype, values), amount: values.length, source: { kind: "values", values } };
      }
      const shape = made.shape || fitted(this.shape(), made.amount, name);
      if (made.data.length > LARGEST)
        throw new Error(
          `${name} has ${bytes(made.data.length)}, and this page sends up to ${bytes(LARGEST)}: ${ELSEWHERE}.`,
        );
      return { name, datatype, dims, shape, data: made.data, source: made.source };
    } catch (error) {
      const text = error.message.startsWith(name) || this.mode === "file" ? error.message : `${name}: ${error.message}`;
      if (!quiet) this.complain(text);
      throw new Error(text, { cause: this });
    }
  }
}
