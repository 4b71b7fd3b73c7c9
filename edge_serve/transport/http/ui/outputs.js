/** The answer of a model, drawn: numbers as tables, strings as text, and classes with their labels. */

import { button, make, save } from "./draw.js";
import { isFloat, textOf, writeNumpy } from "./tensors.js";
import { number, plural, shapeText } from "./text.js";

const ROWS = 32,
  FEW_ROWS = 8,
  COLUMNS = 16,
  STRINGS = 100,
  LETTERS = 20_000,
  HEX = 64,
  SMALLEST = 16;

export function outputNode(output, classes) {
  const { name, datatype, shape, values, raw } = output;
  const node = make("div", "output", make("h4", "", name, make("span", "note", ` ${datatype} ${shapeText(shape)}`)));
  if (!values.length) node.append(make("p", "note", "no values"));
  else if (classes) node.append(classTables(values, shape));
  else if (datatype === "BYTES") node.append(strings(values));
  else {
    const seen = picture(values, shape, datatype);
    if (seen) node.append(seen);
    node.append(numbers(values, shape, datatype, seen ? FEW_ROWS : ROWS));
  }
  const file = raw && !classes && writeNumpy(datatype, shape, raw);
  if (file) node.append(button("Save as .npy", "small", () => save(`${name}.npy`, file)));
  return node;
}

/** The strings of the classification extension, value:index or value:index:label; a table for each item of a batch. */
function classTables(values, shape) {
  const each = shape[shape.length - 1],
    box = make("div", "tables");
  for (let at = 0; at < values.length && box.children.length < ROWS; at += each)
    box.append(classTable(values.slice(at, at + each)));
  return box;
}

function classTable(values) {
  const table = make("table", "classes"),
    body = make("tbody");
  const rows = values.map(value => /^([^:]*):(\d+):?([^]*)$/.exec(textOf(value) ?? "")).filter(Boolean);
  const most = Math.max(...rows.map(([, score]) => Math.abs(Number(score))), 1e-9);
  for (const [, score, index, label] of rows) {
    const bar = make("div");
    bar.style.width = `${(Math.max(0, Number(score)) / most) * 100}%`;
    body.append(
      make(
        "tr",
        "",
        make("th", "", label || `class ${index}`),
        make("td", "right", number(Number(score), 4)),
        make("td", "wide", make("div", "bar", bar)),
        make("td", "note right", label ? index : ""),
      ),
    );
  }
  table.append(
    make(
      "thead",
      "",
      make("tr", "", ...["Class", "Value", "", "Index"].map((text, i) => make("th", i === 0 ? "" : "right", text))),
    ),
    body,
  );
  return table;
}

const show = (value, datatype) =>
  typeof value !== "number" || !isFloat(datatype)
    ? String(value)
    : Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3)
      ? value.toExponential(3)
      : String(Number(value.toPrecision(6)));

/** A canvas of values that have the shape of a picture or a map, from the least (black) to the highest; else null. */
function picture(values, shape, datatype) {
  const dims = shape.filter((dim, i) => dim > 1 || i >= shape.length - 2),
    [a, b, c] = dims;
  const large = (...sizes) => sizes.every(size => size >= SMALLEST && size <= 4096);
  const layout =
    dims.length === 2 && large(a, b)
      ? [a, b, 1, 0, 1]
      : dims.length !== 3
        ? null
        : c === 3 && large(a, b)
          ? [a, b, 3, 1, 3]
          : a === 3 && large(b, c)
            ? [b, c, 3, b * c, 1]
            : null;
  if (!layout) return null;
  const [height, width, channels, plane, step] = layout,
    { least, most } = datatype === "UINT8" ? { least: 0, most: 255 } : extremes(values);
  const canvas = make("canvas"),
    pen = canvas.getContext("2d");
  canvas.width = width;
  canvas.height = height;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "The values as a picture");
  const image = pen.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let channel = 0; channel < 3; channel++)
      image.data[4 * i + channel] =
        ((Number(values[i * step + (channels === 3 ? channel * plane : 0)]) - least) / (most - least || 1)) * 255;
    image.data[4 * i + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

/** A table whose columns are the last dimension, and the least, the highest, and the mean of many values. */
function numbers(values, shape, datatype, mostRows) {
  const box = make("div", ""),
    table = make("table", "numbers"),
    last = shape.length ? shape[shape.length - 1] : 1,
    flat = values.length === last; // one long row is broken into several
  const width = flat ? Math.min(last, COLUMNS) : last,
    columns = Math.min(width, COLUMNS),
    rows = Math.min(Math.ceil(values.length / width), mostRows),
    lead = shape.slice(0, -1);
  for (let r = 0; r < rows; r++) {
    const line = make("tr", "");
    if (values.length > width) line.append(make("th", "", flat ? `[${r * width}]` : place(r, lead)));
    for (const value of values.slice(r * width, r * width + columns))
      line.append(make("td", "", show(value, datatype)));
    if (columns < width) line.append(make("td", "", "…"));
    table.append(line);
  }
  const scroll = make("div", "scroll", table);
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "values");
  box.append(scroll);
  if (rows * columns < values.length)
    box.append(make("p", "note", `${number(rows * columns)} of ${plural(values.length, "value")}. ${summary(values)}`));
  return box;
}

/** The indices of a row, as in NumPy. */
function place(row, lead) {
  const indices = [];
  for (const size of [...lead].reverse()) {
    indices.unshift(row % size);
    row = Math.floor(row / size);
  }
  return `[${indices.join(", ")}]`;
}

function extremes(values) {
  let least = Infinity,
    most = -Infinity,
    total = 0,
    best = 0;
  for (let i = 0; i < values.length; i++) {
    const value = Number(values[i]);
    if (value < least) least = value;
    if (value > most) {
      most = value;
      best = i;
    }
    total += value;
  }
  return { least, most, best, mean: total / values.length };
}

function summary(values) {
  const { least, most, best, mean } = extremes(values),
    [low, high, middle] = [least, most, mean].map(value => show(value, "FP32"));
  return `Least ${low}, highest ${high} (at ${number(best)}), mean ${middle}.`;
}

function strings(values) {
  const list = make("ol", values.length === 1 ? "strings one" : "strings");
  for (const value of values.slice(0, STRINGS)) {
    const text = textOf(value);
    const item = make("li", "");
    if (text === null)
      item.append(make("span", "note", `${plural(value.length, "byte")}, no text: `), make("code", "", hex(value)));
    else if (text === "") item.append(make("span", "note", "an empty string"));
    else
      item.append(
        make("span", "string", text.slice(0, LETTERS)),
        text.length > LETTERS ? make("span", "note", ` … ${plural(text.length, "character")}`) : "",
      );
    list.append(item);
  }
  const box = make("div", "", list);
  if (values.length > STRINGS) box.append(make("p", "note", `${STRINGS} of ${plural(values.length, "string")}`));
  return box;
}

const hex = data =>
  Array.from(data.subarray(0, HEX), byte => byte.toString(16).padStart(2, "0")).join(" ") +
  (data.length > HEX ? " …" : "");
