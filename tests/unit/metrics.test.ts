import { describe, expect, test } from "bun:test";
import { createMetrics } from "../../src/metrics.ts";
import { Laps } from "../../src/supervisor/operations/laps.ts";
import { MetricRegistry } from "../../src/system/metric-registry.ts";
import { parseExposition } from "../support/exposition.ts";
import { pause } from "../support/waiting.ts";

describe("metrics", () => {
  test("counters and gauges are written with their labels, escaped", async () => {
    const registry = new MetricRegistry();
    const counter = registry.counter("c_total", "Counts\nthings \\ more.", ["what"]);
    counter.add({ what: 'a"b\\c\nd' });
    counter.add({ what: 'a"b\\c\nd' }, 2);
    registry.gauge("g", "Looked up.", () => [[{}, 1.5]]);
    expect(await registry.render()).toBe(
      '# HELP c_total Counts\\nthings \\\\ more.\n# TYPE c_total counter\nc_total{what="a\\"b\\\\c\\nd"} 3\n' +
        "# HELP g Looked up.\n# TYPE g gauge\ng 1.5\n",
    );
  });

  test("a histogram's buckets are cumulative, their limits are inclusive, and the last one counts all values", async () => {
    const registry = new MetricRegistry();
    const histogram = registry.histogram("h_seconds", "Times.", ["phase"]);
    for (const seconds of [0.001, 0.0011, 0.3, 5000]) histogram.observe({ phase: "x" }, seconds);
    const { value, types, samples } = parseExposition(await registry.render());
    expect(types.get("h_seconds")).toBe("histogram");
    expect(value("h_seconds_bucket", { le: "0.001" })).toBe(1);
    expect(value("h_seconds_bucket", { le: "0.0025" })).toBe(2);
    expect(value("h_seconds_bucket", { le: "0.5" })).toBe(3);
    expect(value("h_seconds_bucket", { le: "1800" })).toBe(3);
    expect(value("h_seconds_bucket", { le: "+Inf" })).toBe(4);
    expect(value("h_seconds_count")).toBe(4);
    expect(value("h_seconds_sum")).toBeCloseTo(5000.3021);
    const buckets = samples.filter(({ name }) => name === "h_seconds_bucket").map((sample) => sample.value);
    expect(buckets).toEqual([...buckets].sort((a, b) => a - b));
  });

  test("label values beyond the limit become one series", async () => {
    const registry = new MetricRegistry();
    const counter = registry.counter("c_total", "Counts.", ["path"]);
    for (let index = 0; index < 5000; index++) counter.add({ path: `/${index}` });
    const { samples, value } = parseExposition(await registry.render());
    expect(samples.length).toBeLessThanOrEqual(1001);
    expect(value("c_total", { path: "other" })).toBe(4000);
  });

  test("a name can be registered once", async () => {
    const registry = new MetricRegistry();
    registry.counter("c_total", "Counts.", []);
    expect(() => registry.gauge("c_total", "Again.", () => [])).toThrow("two metrics");
  });

  test("names end in their unit, and names of counters in _total", async () => {
    const { registry, requests } = createMetrics();
    requests.add({ method: "GET", route: "/healthz", status: "200" });
    for (const [name, type] of parseExposition(await registry.render()).types) {
      if (type === "counter") expect(name).toEndWith("_total");
      if (type === "histogram") expect(name).toEndWith("_seconds");
    }
  });

  test("laps add up to the elapsed time", async () => {
    const startsAfter = performance.now();
    const laps = new Laps();
    const startsBefore = performance.now();
    await pause("a phase", 10);
    laps.lap("clone");
    await pause("another", 20);
    const endsAfter = performance.now();
    laps.lap("exec");
    const endsBefore = performance.now();
    const sum = laps.ended.reduce((all, [, ms]) => all + ms, 0);
    expect(laps.ended.map(([phase]) => phase)).toEqual(["clone", "exec"]);
    expect(sum).toBeGreaterThanOrEqual(endsAfter - startsBefore);
    expect(sum).toBeLessThanOrEqual(endsBefore - startsAfter);
  });
});
