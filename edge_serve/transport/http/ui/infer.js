/** One request of a model: as bytes, sent, and its answer read (the binary tensor data extension of the v2 protocol). */

import { ask, modelPath } from "./server.js";
import { decode, fitted, jsonValues } from "./tensors.js";
import { bytes } from "./text.js";

/** The page reads no longer answer. */
const LONGEST_ANSWER = 256 * 2 ** 20;
const HEADER = "Inference-Header-Content-Length";

/**
 * The header object of a request. `request` has inputs [{name, datatype, shape, data, values, source}], classes
 * {output: count}, outputs (names), parameters, binary (JSON cannot hold the outputs), and stream (a decoupled model).
 */
export function headerOf(request, inputs) {
  const header = { inputs };
  const parameters = request.binary ? { ...request.parameters, binary_data_output: true } : request.parameters;
  if (Object.keys(parameters).length) header.parameters = parameters;
  if (Object.keys(request.classes).length) {
    header.outputs = request.outputs.map(name =>
      request.classes[name] ? { name, parameters: { classification: request.classes[name] } } : { name },
    );
  }
  return header;
}

export async function infer(model, version, request, signal) {
  const inputs = request.inputs.map(({ name, datatype, shape, data }) => ({
    name,
    datatype,
    shape,
    parameters: { binary_data_size: data.length },
  }));
  const header = headerOf(request, inputs);
  header.parameters = { ...header.parameters, binary_data_output: true };
  for (const output of header.outputs || []) output.parameters = { ...output.parameters, binary_data: true };
  const json = new TextEncoder().encode(JSON.stringify(header));
  const answer = await ask(`${modelPath(model, version)}/infer`, {
    method: "POST",
    signal,
    body: new Blob([json, ...request.inputs.map(input => input.data)]),
    headers: { [HEADER]: String(json.length), "Content-Type": "application/octet-stream" },
  });
  const length = Number(answer.headers.get("Content-Length"));
  if (length > LONGEST_ANSWER) {
    await answer.body.cancel();
    throw new Error(
      `The answer has ${bytes(length)}, and this page reads up to ${bytes(LONGEST_ANSWER)}: use the copied Python program.`,
    );
  }
  return outputsOf(new Uint8Array(await answer.arrayBuffer()), answer.headers.get(HEADER));
}

function outputsOf(body, headerLength) {
  let at = headerLength === null ? body.length : Number(headerLength);
  const { outputs = [], ...rest } = JSON.parse(new TextDecoder().decode(body.subarray(0, at)));
  return {
    ...rest,
    outputs: outputs.map(({ name, datatype, shape, data, parameters = {} }) => {
      if (data !== undefined) return { name, datatype, shape, values: data.flat(Infinity) };
      const raw = body.subarray(at, (at += parameters.binary_data_size));
      return { name, datatype, shape, raw, values: decode(datatype, raw) };
    }),
  };
}

/** The body of generate_stream, which has no shapes and no binary data; throws an Error where the request needs those. */
export function streamBody(request) {
  const members = request.inputs.map(({ name, datatype, shape, dims, data }) => {
    const values = decode(datatype, data);
    const own = fitted(
      dims.map(dim => (dim < 0 ? null : dim)),
      values.length,
      name,
    );
    if (String(own) !== String(shape))
      throw new Error(
        `${name}: generate_stream would take the shape [${own}] from the values; send other shapes over gRPC, as the copied Python program does`,
      );
    const text = jsonValues(datatype, values);
    return `${JSON.stringify(name)}:${values.length === 1 ? text.slice(1, -1) : text}`;
  });
  for (const [name, value] of Object.entries(request.parameters))
    members.push(`${JSON.stringify(name)}:${JSON.stringify(value)}`);
  return `{${members.join(",")}}`;
}

/** Send to a decoupled model; `heard` gets each answer as it comes. */
export async function stream(model, version, request, signal, heard) {
  const answer = await ask(`${modelPath(model, version)}/generate_stream`, {
    method: "POST",
    signal,
    body: streamBody(request),
    headers: { "Content-Type": "application/json" },
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const message = JSON.parse(event.replace(/^data: ?/, ""));
      if (message.error !== undefined) throw new Error(message.error);
      heard(message);
    }
  }
}
