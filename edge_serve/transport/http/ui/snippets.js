/** A request as a command or a program that can be pasted: curl, Python (tritonclient), JavaScript (fetch). */

import { headerOf, streamBody } from "./infer.js";
import { base, hasToken, modelPath } from "./server.js";
import { isFloat, jsonValues } from "./tensors.js";

/** More values, or longer texts, are read from a file. */
const MOST_VALUES = 1000,
  MOST_TEXT = 4000;
const NUMPY = { BOOL: "bool_", BYTES: "object_", FP16: "float16", FP32: "float32", FP64: "float64", BF16: "float32" };
const numpyType = datatype => "np." + (NUMPY[datatype] || datatype.toLowerCase());

const shell = text => `'${text.replaceAll("'", "'\\''")}'`;
const python = value => (value === true ? "True" : value === false ? "False" : JSON.stringify(value));
const identifier = i => `input${i}`;

/** Whether the values stand in a program, where its language has them at all. */
const areWritten = source => source.values && source.values.length <= MOST_VALUES;

/**
 * Where a program takes an input from: {json} = its values; {file, skip} = a file's bytes from there on;
 * {file, element} = a file as one string. A tensor that the page made has to be saved first.
 */
function sourceOf(input) {
  const { source } = input;
  if (areWritten(source)) {
    try {
      const json = jsonValues(input.datatype, source.values);
      if (json.length <= MOST_TEXT && input.datatype !== "FP16" && input.datatype !== "BF16") return { json };
    } catch {
      /* NaN and the like have no JSON */
    }
  }
  if (source.kind === "element") return { file: source.file, element: true };
  if (source.kind === "bytes" && source.skip !== null) return { file: source.file, skip: source.skip };
  return { file: tensorFile(input), skip: 0, made: true };
}

export const tensorFile = input => `${input.name.replace(/[^\w.-]/g, "_")}.bin`;

/** The inputs whose bytes have to be saved for a snippet to run. */
export function madeFiles(request, language) {
  return request.inputs.filter(
    input =>
      sourceOf(input).made &&
      !(language === "python" && (areWritten(input.source) || input.source.kind === "picture")),
  );
}

const inJson = (input, { json }) =>
  `{"name":${JSON.stringify(input.name)},"datatype":"${input.datatype}","shape":[${input.shape}],"data":${json}}`;
const inBinary = (input, size) =>
  `{"name":${JSON.stringify(input.name)},"datatype":"${input.datatype}","shape":[${input.shape}],"parameters":{"binary_data_size":${size}}}`;

/** The JSON text of a request whose inputs are `inputs`, texts themselves: 64-bit numbers stay whole. */
function jsonText(request, inputs) {
  const rest = JSON.stringify(headerOf(request, [])).slice('{"inputs":[]'.length, -1);
  return `{"inputs":[${inputs.join(",")}]${rest}}`;
}

// ---- curl -----------------------------------------------------------------------------------------------------------

export function curl(model, version, request) {
  const tokenHeader = hasToken() ? ` \\\n  -H "Authorization: Bearer $EDGE_SERVE_TOKEN"` : "";
  const url = verb => shell(base() + modelPath(model, version) + verb);
  if (request.stream)
    return `curl -sSN ${url("/generate_stream")}${tokenHeader} \\\n  -d ${shell(streamBody(request))}`;
  const sources = request.inputs.map(sourceOf),
    into = request.binary ? " -o answer.bin" : "";
  const remark = request.binary
    ? "# JSON has no 16-bit floats: answer.bin gets a JSON part, then the bytes of the outputs\n"
    : "";
  if (sources.every(source => source.json)) {
    return `${remark}curl -sS ${url("/infer")}${tokenHeader}${into} \\\n  -d ${shell(
      jsonText(
        request,
        request.inputs.map((input, i) => inJson(input, sources[i])),
      ),
    )}`;
  }
  const json = jsonText(
    request,
    request.inputs.map((input, i) =>
      sources[i].json ? inJson(input, sources[i]) : inBinary(input, input.data.length),
    ),
  );
  const parts = request.inputs.flatMap((input, i) => {
    const { file, skip, element, json: text } = sources[i],
      name = file && shell(file.startsWith("-") ? `./${file}` : file);
    if (text) return [];
    if (element) return [`printf '${octal(input.data.length - 4)}'`, `cat ${name}`];
    return [skip ? `tail -c +${skip + 1} ${name}` : `cat ${name}`];
  });
  const length = new TextEncoder().encode(json).length;
  return `${remark}{ printf '%s' ${shell(json)}\n  ${parts.join("\n  ")}\n} | curl -sS ${url("/infer")}${tokenHeader}${into} \\\n  -H 'Inference-Header-Content-Length: ${length}' --data-binary @-`;
}

/** The four bytes of a length, for printf. */
const octal = size =>
  [0, 8, 16, 24].map(shift => "\\" + ((size >>> shift) & 255).toString(8).padStart(3, "0")).join("");

// ---- Python ---------------------------------------------------------------------------------------------------------

const pythonValue = value =>
  typeof value === "string"
    ? python(value) + ".encode()"
    : typeof value === "boolean"
      ? python(value)
      : Number.isNaN(value)
        ? "np.nan"
        : value === Infinity
          ? "np.inf"
          : value === -Infinity
            ? "-np.inf"
            : String(value);

function pythonArray(input) {
  const { source, datatype, shape } = input,
    kind = numpyType(datatype),
    file = source.file && JSON.stringify(source.file);
  if (areWritten(source))
    return `np.array([${source.values.map(pythonValue).join(", ")}], ${kind}).reshape(${shapeOf(shape)})`;
  if (source.kind === "element") return `np.array([open(${file}, "rb").read()], ${kind}).reshape(${shapeOf(shape)})`;
  if (source.kind === "numpy" || (source.kind === "bytes" && source.skip))
    return `np.load(${file}).reshape(${shapeOf(shape)})${datatype === "BYTES" ? ".astype(np.object_)" : ""}`;
  const from = JSON.stringify(source.kind === "bytes" ? source.file : tensorFile(input));
  if (datatype === "BF16")
    return `(np.fromfile(${from}, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(${shapeOf(shape)})`;
  if (datatype === "BYTES")
    return `tritonclient.utils.deserialize_bytes_tensor(open(${from}, "rb").read()).reshape(${shapeOf(shape)})`;
  return `np.fromfile(${from}, ${kind}).reshape(${shapeOf(shape)})`;
}
const shapeOf = shape => `[${shape.join(", ")}]`;

const PYTHON_SCALES = {
  inception: " / 127.5 - 1",
  unit: " / 255",
  bytes: "",
  imagenet: " / 255\npicture = (picture - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]",
  vgg: " - [123, 117, 104]",
};

function pythonPicture(input, name) {
  const { options, layout, file } = input.source,
    { width, height } = options,
    one = layout.channels === 1;
  const scale = isFloat(input.datatype) ? options.scale : "bytes";
  const plain = one ? PYTHON_SCALES[scale].replaceAll(/\[([\d.]+)[^\]]*\]/g, "$1") : PYTHON_SCALES[scale];
  const resize = options.crop
    ? `picture = ImageOps.fit(picture, (${width}, ${height}))`
    : `picture = picture.resize((${width}, ${height}))`;
  const lines = [
    `picture = ImageOps.exif_transpose(Image.open(${JSON.stringify(file)})).convert("${one ? "L" : "RGB"}")`,
    resize,
    `picture = np.asarray(picture).astype(np.float32)${plain}`,
  ];
  if (options.bgr && !one) lines.push("picture = picture[:, :, ::-1]");
  if (one && layout.order !== "HW")
    lines.push(layout.order === "CHW" ? "picture = picture[np.newaxis]" : "picture = picture[:, :, np.newaxis]");
  else if (layout.order === "CHW") lines.push("picture = picture.transpose(2, 0, 1)");
  if (input.datatype === "INT8") lines.push("picture = picture - 128");
  lines.push(
    `${name} = np.ascontiguousarray(picture.astype(${numpyType(input.datatype)})).reshape(${shapeOf(input.shape)})`,
  );
  return lines.join("\n");
}

/** `grpcPort` is null where the server has no gRPC: a stream then comes over HTTP, which tritonclient does not read. */
export function pythonProgram(model, version, request, grpcPort) {
  if (request.stream && grpcPort === null) return pythonEvents(model, version, request);
  const { stream } = request,
    kind = stream ? "grpc" : "http",
    { host, hostname, protocol, pathname } = new URL(base());
  const secure = protocol === "https:",
    address = stream ? `${hostname}:${grpcPort}` : host + pathname.replace(/\/$/, "");
  const lines = [`# pip install 'tritonclient[${kind}]'${hasPicture(request) ? " pillow" : ""}`];
  if (hasToken()) lines.push("import os");
  if (stream) lines.push("import queue");
  lines.push("", "import numpy as np", `import tritonclient.${kind} as triton`);
  if (request.inputs.some(input => input.datatype === "BYTES" && !input.source.values))
    lines.push("import tritonclient.utils");
  if (hasPicture(request)) lines.push("from PIL import Image, ImageOps");
  lines.push("");
  request.inputs.forEach((input, i) => {
    const name = identifier(i);
    lines.push(input.source.kind === "picture" ? pythonPicture(input, name) : `${name} = ${pythonArray(input)}`);
  });
  lines.push("", "inputs = [");
  for (const { name, shape, datatype } of request.inputs)
    lines.push(`    triton.InferInput(${JSON.stringify(name)}, ${shapeOf(shape)}, "${datatype}"),`);
  lines.push("]");
  request.inputs.forEach((_, i) => lines.push(`inputs[${i}].set_data_from_numpy(${identifier(i)})`));
  const sent = [`model_version=${JSON.stringify(version)}`, ...parameterArguments(request)];
  if (Object.keys(request.classes).length) {
    lines.push("outputs = [");
    for (const name of request.outputs)
      lines.push(
        `    triton.InferRequestedOutput(${JSON.stringify(name)}${request.classes[name] ? `, class_count=${request.classes[name]}` : ""}),`,
      );
    lines.push("]");
    sent.push("outputs=outputs");
  }
  if (hasToken()) sent.push('headers={"Authorization": "Bearer " + os.environ["EDGE_SERVE_TOKEN"]}');
  lines.push("", `client = triton.InferenceServerClient("${address}"${secure ? ", ssl=True" : ""})`);
  return [...lines, ...(stream ? streamed(model, sent) : asked(model, sent, request))].join("\n");
}

const hasPicture = request => request.inputs.some(input => input.source.kind === "picture");

function parameterArguments(request) {
  const { sequence_id: id, sequence_start: start, sequence_end: end, ...own } = request.parameters,
    list = [];
  if (id !== undefined) list.push(`sequence_id=${python(id)}`);
  if (start) list.push("sequence_start=True");
  if (end) list.push("sequence_end=True");
  const pairs = Object.entries(own).map(([key, value]) => `${JSON.stringify(key)}: ${python(value)}`);
  if (pairs.length) list.push(`parameters={${pairs.join(", ")}}`);
  return list;
}

const asked = (model, sent, request) => [
  `result = client.infer(${JSON.stringify(model)}, inputs, ${sent.join(", ")})`,
  ...request.outputs.map(name => `print(${JSON.stringify(name)}, result.as_numpy(${JSON.stringify(name)}))`),
];

function pythonEvents(model, version, request) {
  const headers = ['"Content-Type": "application/json"'];
  if (hasToken()) headers.push('"Authorization": "Bearer " + os.environ["EDGE_SERVE_TOKEN"]');
  return [
    `import json${hasToken() ? "\nimport os" : ""}`,
    "import urllib.request",
    "",
    `url = ${JSON.stringify(base() + modelPath(model, version) + "/generate_stream")}`,
    `body = ${JSON.stringify(streamBody(request))}`,
    `request = urllib.request.Request(url, body.encode(), {${headers.join(", ")}})`,
    "with urllib.request.urlopen(request) as events:",
    "    for line in events:",
    '        if line.startswith(b"data: "):',
    "            print(json.loads(line[6:]))",
  ].join("\n");
}

function streamed(model, sent) {
  const headers = sent.filter(text => text.startsWith("headers=")),
    rest = sent.filter(text => !text.startsWith("headers="));
  return [
    "answers = queue.Queue()",
    `client.start_stream(lambda result, error: answers.put((result, error))${headers.map(text => ", " + text).join("")})`,
    `client.async_stream_infer(${JSON.stringify(model)}, inputs, ${[...rest, "enable_empty_final_response=True"].join(", ")})`,
    "while True:",
    "    result, error = answers.get()",
    "    if error:",
    "        raise error",
    "    response = result.get_response()",
    "    for output in response.outputs:",
    "        print(output.name, result.as_numpy(output.name))",
    '    if response.parameters["triton_final_response"].bool_param:',
    "        break",
    "client.stop_stream()",
  ];
}

// ---- JavaScript -----------------------------------------------------------------------------------------------------

export function javascript(model, version, request) {
  const url = verb => JSON.stringify(base() + modelPath(model, version) + verb);
  const sources = request.inputs.map(sourceOf),
    plain = request.stream || sources.every(source => source.json);
  const lines = [plain ? "// for a page of this server, or: node request.mjs" : "// node request.mjs"];
  const headers = [];
  if (hasToken()) {
    lines.push('const token = "<the token>";');
    headers.push('"Authorization": `Bearer ${token}`');
  }
  if (request.stream) {
    return [
      ...lines,
      `const response = await fetch(${url("/generate_stream")}, {`,
      '  method: "POST",',
      `  headers: { ${['"Content-Type": "application/json"', ...headers].join(", ")} },`,
      `  body: ${JSON.stringify(streamBody(request))},`,
      "});",
      "const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();",
      "for (;;) {",
      "  const { done, value } = await reader.read();",
      "  if (done) break;",
      "  console.log(value);",
      "}",
    ].join("\n");
  }
  if (plain) {
    const json = jsonText(
      request,
      request.inputs.map((input, i) => inJson(input, sources[i])),
    );
    return [
      ...lines,
      `const response = await fetch(${url("/infer")}, {`,
      '  method: "POST",',
      `  headers: { ${['"Content-Type": "application/json"', ...headers].join(", ")} },`,
      `  body: ${JSON.stringify(json)},`,
      "});",
      ...printed(request),
    ].join("\n");
  }
  lines.splice(1, 0, 'import { readFile } from "node:fs/promises";');
  lines.push("", "const parts = [];");
  sources.forEach(({ file, skip, element, json }, i) => {
    if (json) return;
    if (element) {
      lines.push(
        `const file${i} = await readFile(${JSON.stringify(file)}), length${i} = Buffer.alloc(4);`,
        `length${i}.writeUInt32LE(file${i}.length);`,
        `parts.push(length${i}, file${i});`,
      );
    } else
      lines.push(
        `parts.push(${skip ? `(await readFile(${JSON.stringify(file)})).subarray(${skip})` : `await readFile(${JSON.stringify(file)})`});`,
      );
  });
  const json = jsonText(
    request,
    request.inputs.map((input, i) =>
      sources[i].json ? inJson(input, sources[i]) : inBinary(input, input.data.length),
    ),
  );
  headers.unshift(
    '"Content-Type": "application/octet-stream"',
    '"Inference-Header-Content-Length": String(header.length)',
  );
  return [
    ...lines,
    `const header = Buffer.from(${JSON.stringify(json)});`,
    `const response = await fetch(${url("/infer")}, {`,
    '  method: "POST",',
    `  headers: { ${headers.join(", ")} },`,
    "  body: Buffer.concat([header, ...parts]),",
    "});",
    ...printed(request),
  ].join("\n");
}

const printed = request =>
  !request.binary
    ? ["console.log(JSON.stringify(await response.json()));"]
    : [
        'const length = Number(response.headers.get("Inference-Header-Content-Length") ?? Infinity);',
        "const body = new Uint8Array(await response.arrayBuffer());",
        "console.log(new TextDecoder().decode(body.subarray(0, length)), body.subarray(length));",
      ];
