/** Files that hold the values of a tensor: NumPy, text, raw bytes, and any file as one string. */

import { count, encode, parseValues, readNumpy, sizeOf } from "./tensors.js";
import { bytes, plural, shapeText } from "./text.js";

/** The page sends no larger file and no larger tensor. */
export const LARGEST = 64 * 2 ** 20;
export const ELSEWHERE = "use a client program for larger ones, or shared memory on the device itself";

const PICTURE_TYPE = /^image\/(jpeg|png|webp|gif|bmp|avif)$/,
  PICTURE_NAME = /\.(jpe?g|png|webp|gif|bmp|avif)$/i;

export const isPicture = file => PICTURE_TYPE.test(file.type) || PICTURE_NAME.test(file.name);

/** Throws an Error for a file that is empty or too large, which is not read. */
export function checkSize(file) {
  if (file.size > LARGEST)
    throw new Error(
      `${file.name} has ${bytes(file.size)}, and this page sends files of up to ${bytes(LARGEST)}: ${ELSEWHERE}.`,
    );
  if (!file.size) throw new Error(`${file.name} is empty (0 bytes): choose another file.`);
}

/**
 * {data, amount, source, note} of a file for an input, and `dims` where the file has a shape; throws an Error if it does
 * not fit.
 */
export async function readTensor(file, spec) {
  const { name, datatype } = spec,
    data = new Uint8Array(await file.arrayBuffer());
  if (data[0] === 0x93 && /\.npy$/i.test(file.name)) return fromNumpy(data, file.name, spec);
  if (datatype === "BYTES")
    return {
      data: encode("BYTES", [data]),
      amount: 1,
      source: { kind: "element", file: file.name },
      note: ", sent as one string",
    };
  if (/\.(txt|csv|json)$/i.test(file.name)) {
    const values = parseValues(new TextDecoder().decode(data), datatype);
    return {
      data: encode(datatype, values),
      amount: values.length,
      source: { kind: "values", values },
      note: `, ${plural(values.length, "value")}`,
    };
  }
  const amount = data.length / sizeOf(datatype);
  if (!Number.isInteger(amount))
    throw new Error(
      `${file.name} has ${plural(data.length, "byte")}, no multiple of the ${sizeOf(datatype)} bytes of a value of ${name} (${datatype})`,
    );
  return {
    data,
    amount,
    source: { kind: "bytes", file: file.name, skip: 0 },
    note: `, raw bytes: ${plural(amount, "value")} of ${datatype}`,
  };
}

function fromNumpy(all, fileName, { name, datatype, shape }) {
  const found = readNumpy(all, fileName),
    { data, skip } = found;
  if (found.datatype !== datatype)
    throw new Error(`${fileName} holds ${found.datatype}, and ${name} expects ${datatype}: save it with a.astype(...)`);
  const fits = dims => dims.length === shape.length && shape.every((dim, i) => dim < 0 || dim === dims[i]);
  const dims = [found.shape, [1, ...found.shape]].find(fits);
  if (!dims)
    throw new Error(
      `${fileName} has the shape ${shapeText(found.shape)}, and ${name} expects ${shapeText(shape)} (−1: any number)`,
    );
  const source = { kind: datatype === "BYTES" ? "numpy" : "bytes", file: fileName, skip };
  return { data, amount: count(dims), dims, source, note: `, ${datatype} ${shapeText(found.shape)}` };
}
