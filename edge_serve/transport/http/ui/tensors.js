/** Tensors: values from and to text and bytes, and NumPy files. Errors are for people. */

import { number, plural, shapeText } from "./text.js";

const INTEGERS = {
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
};
const FLOATS = { FP32: Float32Array, FP64: Float64Array };
const SIZES = { BOOL: 1, FP16: 2, BF16: 2, BYTES: 0 };
const NUMPY = {
  BOOL: "|b1",
  UINT8: "|u1",
  UINT16: "<u2",
  UINT32: "<u4",
  UINT64: "<u8",
  INT8: "|i1",
  INT16: "<i2",
  INT32: "<i4",
  INT64: "<i8",
  FP16: "<f2",
  FP32: "<f4",
  FP64: "<f8",
};
const MOST_VALUES = 1_000_000;

export const sizeOf = datatype => SIZES[datatype] ?? (INTEGERS[datatype] || FLOATS[datatype]).BYTES_PER_ELEMENT;
export const isFloat = datatype => datatype in FLOATS || datatype === "FP16" || datatype === "BF16";
export const count = shape => shape.reduce((a, b) => a * b, 1);

// ---- 16-bit floats --------------------------------------------------------------------------------------------------

const single = new Float32Array(1),
  bits = new Uint32Array(single.buffer);

/** The 32 bits of a single without its lowest `drop`, rounded to nearest even. */
const rounded = (value, drop) =>
  Math.floor((value + 2 ** (drop - 1) - 1 + (Math.floor(value / 2 ** drop) & 1)) / 2 ** drop);

export function toBrain(value) {
  single[0] = value;
  return Number.isNaN(value) ? 0x7fc0 : rounded(bits[0], 16) & 0xffff;
}

export function fromBrain(half) {
  bits[0] = (half << 16) >>> 0;
  return single[0];
}

export function toHalf(value) {
  single[0] = value;
  const sign = (bits[0] >>> 31) << 15,
    size = Math.abs(single[0]);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) {
    // subnormal: a multiple of 2^-24, ties to even
    const scaled = size * 2 ** 24,
      low = Math.floor(scaled),
      rest = scaled - low;
    return sign | (rest > 0.5 || (rest === 0.5 && low & 1) ? low + 1 : low);
  }
  return sign | (rounded(bits[0] & 0x7fffffff, 13) - (112 << 10));
}

export function fromHalf(half) {
  const sign = half & 0x8000 ? -1 : 1,
    exponent = (half >> 10) & 31,
    fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}

// ---- bytes ----------------------------------------------------------------------------------------------------------

/** The bytes of a BYTES tensor: each element with its length before it. */
export function joined(elements) {
  const data = new Uint8Array(elements.reduce((all, one) => all + 4 + one.length, 0)),
    view = new DataView(data.buffer);
  let at = 0;
  for (const element of elements) {
    view.setUint32(at, element.length, true);
    data.set(element, at + 4);
    at += 4 + element.length;
  }
  return data;
}

/** The little-endian bytes of values; browsers run on little-endian machines only. */
export function encode(datatype, values) {
  if (datatype === "BYTES")
    return joined(values.map(text => (typeof text === "string" ? new TextEncoder().encode(text) : text)));
  if (datatype === "BOOL") return Uint8Array.from(values, Number);
  if (datatype === "FP16" || datatype === "BF16") {
    const convert = datatype === "FP16" ? toHalf : toBrain;
    return new Uint8Array(Uint16Array.from(values, convert).buffer);
  }
  return new Uint8Array((INTEGERS[datatype] || FLOATS[datatype]).from(values).buffer);
}

/** The values in some bytes, which belong to no one else afterwards; BYTES elements stay bytes. */
export function decode(datatype, data) {
  if (datatype === "BYTES") {
    const view = new DataView(data.buffer, data.byteOffset, data.length),
      elements = [];
    for (let at = 0; at + 4 <= data.length;) {
      const length = view.getUint32(at, true);
      elements.push(data.subarray(at + 4, at + 4 + length));
      at += 4 + length;
    }
    return elements;
  }
  const size = sizeOf(datatype),
    whole = data.byteOffset % size ? data.slice() : data;
  const typed = kind => new kind(whole.buffer, whole.byteOffset, Math.floor(whole.length / size));
  if (datatype === "BOOL") return Array.from(data, value => value !== 0);
  if (datatype === "FP16") return Float32Array.from(typed(Uint16Array), fromHalf);
  if (datatype === "BF16") return Float32Array.from(typed(Uint16Array), fromBrain);
  return typed(INTEGERS[datatype] || FLOATS[datatype]);
}

/** An element of BYTES as text, null where it is no UTF-8. */
export function textOf(data) {
  if (typeof data === "string") return data;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

// ---- text -----------------------------------------------------------------------------------------------------------

/** The value that a person wrote; throws an Error that says what is wrong with it. */
function parseOne(word, datatype) {
  if (datatype === "BOOL") {
    const value = { true: true, false: false, 1: true, 0: false }[word.toLowerCase()];
    if (value === undefined) throw new Error(`“${word}” is not a BOOL: write true or false`);
    return value;
  }
  if (isFloat(datatype)) {
    const value = { nan: NaN, inf: Infinity, "+inf": Infinity, "-inf": -Infinity }[word.toLowerCase()] ?? Number(word);
    if (Number.isNaN(value) && word.toLowerCase() !== "nan") throw new Error(`“${word}” is not a number`);
    return value;
  }
  if (!/^[+-]?\d+$/.test(word)) throw new Error(`“${word}” is not a whole number, which ${datatype} needs`);
  const wide = datatype.endsWith("64"),
    value = wide ? BigInt(word) : Number(word);
  const size = sizeOf(datatype) * 8,
    signed = datatype.startsWith("INT");
  const least = signed ? -(2n ** BigInt(size - 1)) : 0n,
    most = 2n ** BigInt(signed ? size - 1 : size) - 1n;
  if (value < least || value > most) throw new Error(`${word} does not fit ${datatype} (${least} to ${most})`);
  return value;
}

/** The values in a text: separated by blanks, commas, or line breaks; strings one on each line, or a JSON array. */
export function parseValues(text, datatype, single = false) {
  if (datatype === "BYTES") {
    if (text.trimStart().startsWith("[")) {
      try {
        const values = JSON.parse(text).flat(Infinity);
        if (values.every(value => typeof value === "string")) return values;
      } catch {
        /* no JSON: text that begins with a bracket */
      }
    }
    return single ? [text] : text.replace(/\r?\n$/, "").split(/\r?\n/);
  }
  const words = text.split(/[\s,;[\]]+/).filter(Boolean);
  if (words.length > MOST_VALUES)
    throw new Error(`${plural(words.length, "value")} are too many for a text: choose a file (.npy)`);
  return words.map(word => parseOne(word, datatype));
}

/** The values as members of a JSON array. */
export function jsonValues(datatype, values) {
  if (datatype === "BYTES") {
    return (
      "[" +
      Array.from(values, value => {
        const text = textOf(value);
        if (text === null) throw new Error("the bytes are no UTF-8 text, which JSON cannot hold");
        return JSON.stringify(text);
      }).join(",") +
      "]"
    );
  }
  if (Array.from(values).some(value => typeof value === "number" && !Number.isFinite(value)))
    throw new Error("JSON cannot hold NaN or infinity");
  return "[" + Array.from(values, String).join(",") + "]";
}

/**
 * The shape for `amount` elements. `dims` are numbers, null where the value decides: the last such dimension takes what
 * the others leave. Throws an Error that names both.
 */
export function fitted(dims, amount, name) {
  const fixed = count(dims.map(dim => dim ?? 1)),
    free = dims.lastIndexOf(null);
  const fits = free < 0 ? fixed === amount : fixed > 0 && amount % fixed === 0;
  if (!fits) {
    const shown = shapeText(dims.map(dim => dim ?? "?"));
    const wanted = free < 0 ? plural(fixed, "value") : `a multiple of ${number(fixed)} values`;
    throw new Error(`${name}: found ${plural(amount, "value")}, and the shape ${shown} needs ${wanted}`);
  }
  return dims.map((dim, i) => dim ?? (i === free ? amount / fixed : 1));
}

// ---- NumPy files ----------------------------------------------------------------------------------------------------

/** {datatype, shape, data, skip} of a .npy file; `skip` is the length of its head. */
export function readNumpy(bytes, name) {
  if (String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY" || bytes.length < 12)
    throw new Error(`${name} is not a NumPy file (.npy)`);
  const view = new DataView(bytes.buffer, bytes.byteOffset),
    long = bytes[6] > 1;
  const start = long ? 12 : 10,
    skip = start + (long ? view.getUint32(8, true) : view.getUint16(8, true));
  const head = new TextDecoder("latin1").decode(bytes.subarray(start, skip));
  const kind = /'descr':\s*'([^']+)'/.exec(head)?.[1],
    shape = /'shape':\s*\(([\d,\s]*)\)/.exec(head)?.[1];
  if (kind?.includes("O")) throw new Error(`${name} holds Python objects: save strings with a.astype("S") instead`);
  if (!kind || shape === undefined) throw new Error(`${name} holds a structured array: save one plain array`);
  const dims = shape
    .split(",")
    .map(part => part.trim())
    .filter(Boolean)
    .map(Number);
  if (/'fortran_order':\s*True/.test(head) && dims.filter(dim => dim > 1).length > 1)
    throw new Error(`${name} is in Fortran order: save np.ascontiguousarray(a)`);
  const data = bytes.subarray(skip),
    text = /^[|<](S|U)(\d+)$/.exec(kind);
  if (text)
    return { datatype: "BYTES", shape: dims, data: stringsOf(data, text[1], Number(text[2]), count(dims)), skip: null };
  const datatype = Object.keys(NUMPY).find(key => NUMPY[key] === kind);
  if (!datatype)
    throw new Error(
      `${name} holds ${kind}, which no tensor has${kind.startsWith(">") ? ": save it in little-endian order" : ""}`,
    );
  if (data.length !== count(dims) * sizeOf(datatype)) throw new Error(`${name} ends before its data does`);
  return { datatype, shape: dims, data, skip };
}

/** Elements of the types S (bytes) and U (UTF-32), which NumPy fills up with zeros. */
function stringsOf(data, kind, length, amount) {
  const width = kind === "S" ? length : 4 * length,
    strings = [];
  for (let i = 0; i < amount; i++) {
    let element = data.subarray(i * width, (i + 1) * width);
    if (kind === "U") {
      const view = new DataView(element.buffer, element.byteOffset, width);
      const points = Array.from({ length }, (_, j) => view.getUint32(4 * j, true)).filter(Boolean);
      element = new TextEncoder().encode(points.map(point => String.fromCodePoint(point)).join(""));
    } else {
      let end = width;
      while (end && !element[end - 1]) end--;
      element = element.subarray(0, end);
    }
    strings.push(element);
  }
  return joined(strings);
}

/** A .npy file of a tensor; null where NumPy has no such type. */
export function writeNumpy(datatype, shape, data) {
  if (!NUMPY[datatype]) return null;
  const dims = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  const dict = `{'descr': '${NUMPY[datatype]}', 'fortran_order': False, 'shape': (${dims}), }`;
  const text = dict + " ".repeat(63 - ((dict.length + 10) % 64)) + "\n";
  const head = new Uint8Array(10 + text.length);
  head.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, text.length & 255, text.length >> 8]);
  head.set(new TextEncoder().encode(text), 10);
  return new Blob([head, data]);
}
