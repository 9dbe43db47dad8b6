import { expect, test } from "bun:test";
import { FailedSignIns } from "../../../../src/api/web/failed-sign-ins.ts";
import { ApiError } from "../../../../src/domain/errors.ts";

const MINUTE_MS = 60_000;

function limiter() {
  const clock = { ms: 5 };
  const failures = new FailedSignIns(() => clock.ms);
  const fail = (address: string, count: number) => {
    for (let n = 0; n < count; n++) failures.begin(address);
  };
  const refusal = (address: string) => {
    try {
      failures.begin(address);
      return null;
    } catch (error) {
      return error instanceof ApiError ? [error.code, error.details["retry_after_seconds"]] : error;
    }
  };
  return { clock, failures, fail, refusal };
}

test("an address may fail ten times a minute, and then waits for the end of the minute", () => {
  const { clock, fail, refusal } = limiter();
  fail("192.0.2.1", 10);
  expect(refusal("192.0.2.1")).toEqual(["too_many_requests", 60]);
  expect(refusal("192.0.2.2")).toBeNull();
  clock.ms += MINUTE_MS - 500;
  expect(refusal("192.0.2.1")).toEqual(["too_many_requests", 1]);
  clock.ms += 500;
  expect(refusal("192.0.2.1")).toBeNull();
});

test("a successful attempt does not count, also across the end of a minute", () => {
  const { clock, failures, fail, refusal } = limiter();
  for (let n = 0; n < 50; n++) failures.begin("192.0.2.1")();
  const late = failures.begin("192.0.2.1");
  clock.ms += MINUTE_MS;
  fail("192.0.2.1", 10);
  late();
  expect(refusal("192.0.2.1")).toEqual(["too_many_requests", 60]);
});

test("addresses of one IPv6 network count as one, except IPv4 addresses in IPv6", () => {
  const { fail, refusal } = limiter();
  fail("2001:db8:1:2::1", 5);
  fail("2001:DB8:1:2:ffff::9", 5);
  expect(refusal("2001:db8:1:2:3:4:5:6")).not.toBeNull();
  expect(refusal("2001:db8:1:3::1")).toBeNull();
  fail("::ffff:192.0.2.1", 10);
  expect(refusal("192.0.2.1")).not.toBeNull();
  expect(refusal("::ffff:192.0.2.2")).toBeNull();
});

test("the addresses of this machine count as one", () => {
  const { fail, refusal } = limiter();
  for (let n = 1; n <= 10; n++) fail(n % 2 === 0 ? `127.0.0.${n}` : `::ffff:127.1.0.${n}`, 1);
  expect(refusal("127.0.0.1")).not.toBeNull();
});

test("all addresses together may fail 6,000 times a minute, which bounds the memory", () => {
  const { clock, fail, refusal } = limiter();
  for (let n = 0; n < 6000; n++) fail(`10.0.${n >> 8}.${n & 255}`, 1);
  expect(refusal("192.0.2.1")).toEqual(["too_many_requests", 60]);
  clock.ms += MINUTE_MS;
  expect(refusal("192.0.2.1")).toBeNull();
});
