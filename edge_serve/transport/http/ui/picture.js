/** A picture file as the numbers of an image tensor. */

import { encode, isFloat } from "./tensors.js";

/** What networks were trained on: [name, text, value of a pixel (0 to 255) of channel 0, 1, 2]. */
const MEAN = [0.485, 0.456, 0.406],
  DEVIATION = [0.229, 0.224, 0.225],
  VGG_MEAN = [123, 117, 104];
export const SCALES = [
  ["inception", "−1 to 1 (INCEPTION)", pixel => pixel / 127.5 - 1],
  ["unit", "0 to 1", pixel => pixel / 255],
  ["bytes", "0 to 255 (NONE)", pixel => pixel],
  ["imagenet", "ImageNet mean and deviation (torchvision)", (pixel, i) => (pixel / 255 - MEAN[i]) / DEVIATION[i]],
  ["vgg", "0 to 255 minus mean (VGG)", (pixel, i) => pixel - VGG_MEAN[i]],
];

const LARGEST = 1024,
  GRID = 32;

/**
 * Where an input of this shape has its channels, height and width; null where it is no image. Sizes are null where they
 * are free. `leading` are dimensions before the image's, all 1.
 */
export function layoutOf(shape, batched, format = "") {
  const lead = batched || (shape.length === 4 && (shape[0] === 1 || shape[0] === -1)) ? 1 : 0,
    dims = shape.slice(lead);
  const free = dim => (dim < 0 ? null : dim),
    colour = dim => dim === 1 || dim === 3,
    size = dim => dim < 0 || dim >= 8;
  const image = (order, channels, height, width) =>
    size(height) && size(width) ? { order, channels, height: free(height), width: free(width), leading: lead } : null;
  if (dims.length === 2) return image("HW", 1, ...dims);
  if (dims.length !== 3) return null;
  if (colour(dims[0]) && format !== "FORMAT_NHWC") return image("CHW", ...dims);
  return colour(dims[2]) ? image("HWC", dims[2], dims[0], dims[1]) : null;
}

/** The size to which a picture is brought: that of the input, or its own where that is free. */
export function sizeFor(layout, picture, datatype) {
  const { width, height } = picture,
    network = isFloat(datatype);
  const scale = Math.min(1, (network ? LARGEST : 4 * LARGEST) / Math.max(width, height));
  const grid = side =>
    network ? Math.max(GRID, Math.round((side * scale) / GRID) * GRID) : Math.max(1, Math.round(side * scale));
  return { width: layout.width ?? grid(width), height: layout.height ?? grid(height) };
}

/** The picture in a file; throws an Error if the browser cannot read it. */
export async function readPicture(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is not a picture that this browser can read (JPEG, PNG, WebP, GIF, BMP)`);
  }
}

/**
 * The bytes of the tensor, drawn on `canvas` on the way. `options` has width, height, scale, crop (or stretch), bgr.
 * A transparent picture is drawn on white.
 */
export function pictureTensor(picture, canvas, layout, datatype, options) {
  const { width, height } = options,
    { channels, order } = layout;
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, width, height);
  pen.imageSmoothingQuality = "high";
  let [x, y, w, h] = [0, 0, picture.width, picture.height];
  if (options.crop) {
    const part = Math.min(w / width, h / height);
    [x, y, w, h] = [(w - width * part) / 2, (h - height * part) / 2, width * part, height * part];
  }
  pen.drawImage(picture, x, y, w, h, 0, 0, width, height);
  const pixels = pen.getImageData(0, 0, width, height).data,
    area = width * height;
  const scaled = SCALES.find(([name]) => name === options.scale)[2],
    values = new Float32Array(area * channels);
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < channels; c++) {
      const from = options.bgr ? channels - 1 - c : c;
      const pixel =
        channels === 1
          ? 0.299 * pixels[4 * i] + 0.587 * pixels[4 * i + 1] + 0.114 * pixels[4 * i + 2]
          : pixels[4 * i + from];
      values[order === "HWC" ? i * channels + c : c * area + i] = scaled(pixel, from);
    }
  }
  if (isFloat(datatype)) return encode(datatype, values);
  const shift = datatype === "INT8" ? 128 : 0; // pixels do not fit INT8 as they are
  return encode(
    datatype,
    datatype.endsWith("64") ? Array.from(values, v => BigInt(Math.round(v))) : values.map(v => Math.round(v) - shift),
  );
}
