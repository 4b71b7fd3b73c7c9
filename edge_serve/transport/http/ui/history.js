/** Figures out of the newest status documents: rates, quantiles, and the series that charts draw. */

export const SPAN = 60,
  RATE_WINDOW = 5,
  LATENCY_WINDOW = 10;
export const STAGES = ["queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns"];

export const sum = values => Object.values(values).reduce((a, b) => a + b, 0);
export const keyOf = model => [model.namespace || "", model.name, model.version].join(" ");

/** The quantile `q` of counts per bucket, interpolated; null of nothing. `bounds` are the buckets' upper ones. */
function quantile(q, counts, bounds) {
  const total = counts.reduce((all, count) => all + count, 0);
  let left = q * total;
  for (let i = 0; total && i < counts.length; i++) {
    if (left <= counts[i]) {
      const low = i ? bounds[i - 1] : 0,
        high = i < bounds.length ? bounds[i] : low;
      return low + (high - low) * (counts[i] ? left / counts[i] : 0);
    }
    left -= counts[i];
  }
  return null;
}

export const clientErrors = model => model.client_errors ?? 0;

const indexed = new WeakMap();

/** The version with this key in a document. */
function rowOf(doc, key) {
  let rows = indexed.get(doc);
  if (!rows) indexed.set(doc, (rows = new Map(doc.models.map(model => [keyOf(model), model]))));
  return rows.get(key);
}

/** The counters of one version, or of all since the server started, at one moment. */
export function countersOf(doc, key) {
  const row = key ? rowOf(doc, key) : { totals: doc.totals, client_errors: doc.totals.client_errors };
  if (!row?.totals)
    return { requests: 0, failures: 0, clientErrors: 0, counts: doc.duration_bounds_seconds.map(() => 0).concat(0) };
  const { requests, failures, duration_counts: counts } = row.totals;
  return { requests, failures: sum(failures), clientErrors: clientErrors(row), counts };
}

/** Rates and quantiles between two moments. A model that was loaded anew begins at 0. */
function between(before, after, seconds, bounds) {
  const diff = (a, b) => (b >= a ? b - a : b);
  const counts = after.counts.map((count, i) => diff(before.counts[i], count));
  const perSecond = name => diff(before[name], after[name]) / seconds;
  return {
    requests: perSecond("requests"),
    failures: perSecond("failures"),
    clientErrors: perSecond("clientErrors"),
    p50: quantile(0.5, counts, bounds),
    p99: quantile(0.99, counts, bounds),
  };
}

/** The newest documents and the series made of them: one for the server (key ""), one for each model version. */
export class History {
  constructor() {
    this.docs = [];
    this.series = new Map();
  }

  add(doc) {
    const last = this.docs[this.docs.length - 1];
    if (last && (last.server.pid !== doc.server.pid || last.clock_ns > doc.clock_ns)) {
      this.docs = [];
      this.series.clear();
    } else if (last && last.clock_ns === doc.clock_ns) return;
    this.docs.push(doc);
    while (this.docs.length > 2 && this.age(this.docs[1]) > LATENCY_WINDOW) this.docs.shift();
    if (this.docs.length < 2) return;
    const live = new Map(doc.models.filter(model => model.totals).map(model => [keyOf(model), model]));
    for (const key of this.series.keys()) if (key && !live.has(key)) this.series.delete(key);
    this.point("", doc);
    for (const [key, model] of live) this.point(key, doc, model);
  }

  get newest() {
    return this.docs[this.docs.length - 1];
  }

  age(doc) {
    return (this.newest.clock_ns - doc.clock_ns) / 1e9;
  }

  points(key) {
    return this.series.get(key) || [];
  }

  /** Figures of the last `seconds`, null before there are two documents. */
  figures(key, seconds) {
    const after = this.newest,
      before = this.docs.find(doc => this.age(doc) <= seconds + 0.5 && doc !== after);
    if (!before) return null;
    return between(countersOf(before, key), countersOf(after, key), this.age(before), after.duration_bounds_seconds);
  }

  point(key, doc, model) {
    const { device } = doc,
      point = { at: doc.clock_ns / 1e9, ...this.figures(key, RATE_WINDOW) };
    if (model) {
      point.busy = model.in_flight;
      point.count = model.totals.requests;
      point.stages = STAGES.map(name => model.totals[name]);
    } else {
      point.cpu = device.cpu_utilization;
      point.heat = device.temperatures[0]?.celsius;
      device.gpus.forEach((gpu, i) => (point["gpu" + i] = gpu.utilization));
    }
    const points = this.points(key);
    points.push(point);
    while (points[0].at < point.at - SPAN) points.shift();
    this.series.set(key, points);
  }

  /** Average seconds of a request in each stage over the last minute; null where there was no request. */
  stages(key) {
    const points = this.points(key),
      last = points[points.length - 1];
    const first = last && points.find(point => point.count <= last.count);
    const requests = first ? last.count - first.count : 0;
    return requests > 0 ? last.stages.map((ns, i) => Math.max(0, ns - first.stages[i]) / requests / 1e9) : null;
  }
}
