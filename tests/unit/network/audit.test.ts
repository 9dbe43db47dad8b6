import { expect, test } from "bun:test";
import { AuditRecorder, ENTRIES_COUNT_MAX, UNREACHED_COUNT_MAX } from "../../../src/supervisor/network/audit.ts";
import { TokenBucket } from "../../../src/supervisor/network/token-bucket.ts";

test("an audit has one entry for each host, port and verdict, with times, bytes and addresses", () => {
  let now = Date.parse("2026-01-01T00:00:00Z");
  const firsts: string[] = [];
  const recorder = new AuditRecorder(
    () => now,
    ({ host, port, verdict }) => firsts.push(`${verdict} ${host}:${port}`),
  );
  const key = { host: "a.example", port: 443, verdict: "allowed" } as const;
  const first = recorder.count(key, ["192.0.2.1"]);
  first.sentBytes += 5;
  now += 1000;
  const second = recorder.count(key, ["192.0.2.1", "192.0.2.2"]);
  second.receivedBytes += 7;
  recorder.count({ ...key, verdict: "refused" });
  now += 1000;
  recorder.touch(first);
  expect(recorder.audit(false)).toEqual({
    entries: [
      {
        ...{ host: "a.example", port: 443, verdict: "allowed", connections: 2, bytes_sent: 5, bytes_received: 7 },
        ...{ first_at: "2026-01-01T00:00:00.000Z", last_at: "2026-01-01T00:00:02.000Z" },
        addresses: ["192.0.2.1", "192.0.2.2"],
      },
      {
        ...{ host: "a.example", port: 443, verdict: "refused", connections: 1, bytes_sent: 0, bytes_received: 0 },
        ...{ first_at: "2026-01-01T00:00:01.000Z", last_at: "2026-01-01T00:00:01.000Z", addresses: [] },
      },
    ],
    truncated: false,
  });
  expect(firsts).toEqual(["allowed a.example:443", "refused a.example:443"]);
});

test("an audit has a bounded number of entries and addresses, and continues to count for the entries it has", () => {
  let firstCount = 0;
  const recorder = new AuditRecorder(Date.now, () => {
    firstCount += 1;
  });
  const allowed = (host: string) => ({ host, port: 80, verdict: "allowed" }) as const;
  for (let index = 0; index < ENTRIES_COUNT_MAX; index++) recorder.count(allowed(`h${index}.example`));
  expect(recorder.audit(false).truncated).toBe(false);
  for (let index = 0; index < 50; index++) recorder.count(allowed("h0.example"), [`192.0.2.${index}`]);
  expect(recorder.audit(false).truncated).toBe(false);
  recorder.count(allowed("more.example")).sentBytes += 1;
  const { entries, truncated } = recorder.audit(false);
  expect([entries.length, truncated, firstCount]).toEqual([ENTRIES_COUNT_MAX, true, ENTRIES_COUNT_MAX]);
  expect(entries[0]).toMatchObject({ connections: 51 });
  expect(entries[0]?.addresses).toHaveLength(8);
});

test("names and hosts that a guest invents do not displace those that it reached", () => {
  const recorder = new AuditRecorder(Date.now, () => undefined);
  for (let index = 0; index < ENTRIES_COUNT_MAX; index++) {
    recorder.count({ host: `h${index}.example`, port: index % 2 === 0 ? null : 80, verdict: "denied" });
  }
  recorder.count({ host: "exit.example", port: 443, verdict: "allowed" }).sentBytes += 7;
  const { entries, truncated } = recorder.audit(false);
  expect([entries.length, truncated]).toEqual([UNREACHED_COUNT_MAX + 1, true]);
  expect(entries.at(-1)).toMatchObject({ host: "exit.example", bytes_sent: 7 });
});

test("names that are only resolved have half of the places, and a connection to one frees its place", () => {
  const firsts: string[] = [];
  const recorder = new AuditRecorder(Date.now, ({ host }) => firsts.push(host));
  const ask = (host: string) => recorder.count({ host, port: null, verdict: "allowed" });
  for (let index = 0; index < UNREACHED_COUNT_MAX; index++) ask(`data-${index}.example`);
  expect(recorder.audit(false).truncated).toBe(false);
  recorder.count({ host: "data-0.example", port: 80, verdict: "refused" });
  recorder.count({ host: "data-1.example", port: 80, verdict: "allowed" });
  ask("data-1.example");
  expect(recorder.audit(false)).toMatchObject({ truncated: false, entries: { length: UNREACHED_COUNT_MAX } });
  ask("one-more.example");
  expect(recorder.audit(false)).toMatchObject({ truncated: false, entries: { length: UNREACHED_COUNT_MAX + 1 } });
  ask("too-many.example");
  expect(recorder.audit(false)).toMatchObject({ truncated: true, entries: { length: UNREACHED_COUNT_MAX + 1 } });
  expect(firsts.filter((host) => host === "data-1.example")).toHaveLength(2);
  expect(firsts.at(-1)).toBe("one-more.example");
  expect(recorder.audit(true).policy).toEqual([{ host: "data-1.example", ports: [80] }]);
});

test("a rule in the policy of an audit has at most as many ports as a caller may send", () => {
  const recorder = new AuditRecorder(Date.now, () => undefined);
  for (let port = 300; port > 0; port--) recorder.count({ host: "a.example", port, verdict: "allowed" });
  recorder.count({ host: "192.0.2.1", port: 5432, verdict: "allowed" });
  const policy = recorder.audit(true).policy ?? [];
  expect(policy.map(({ host, ports }) => [host, ports.length, ports[0]])).toEqual([
    ["192.0.2.1", 1, 5432],
    ["a.example", 256, 1],
    ["a.example", 44, 257],
  ]);
});

test("a token bucket allows a burst, and then a number per second", () => {
  let now = 0;
  const bucket = new TokenBucket({ perSecond: 10, burst: 3, now: () => now });
  const fourTakes = () => [bucket.take(), bucket.take(), bucket.take(), bucket.take()];
  expect(fourTakes()).toEqual([true, true, true, false]);
  now += 99;
  expect(bucket.take()).toBe(false);
  now += 101;
  expect(fourTakes()).toEqual([true, true, false, false]);
  now += 60_000;
  expect(fourTakes()).toEqual([true, true, true, false]);
});
