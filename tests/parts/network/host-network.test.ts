/** The host's own addresses, in a network of the test's own with real interfaces. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { closeSync, openSync } from "node:fs";
import { isAllowed } from "../../../src/network/gate/judge.ts";
import { HostNetwork } from "../../../src/network/host-network.ts";
import { enterNetwork, unshareNetwork } from "../../../src/system/libc.ts";
import { until } from "../../support/waiting.ts";

let home: number;
beforeAll(() => {
  home = openSync("/proc/thread-self/ns/net", "r");
  unshareNetwork();
});
afterAll(() => {
  enterNetwork(home);
  closeSync(home);
});

/** Runs commands of ip(8), one a line. */
function ip(commands: string): void {
  const { exitCode, stderr } = Bun.spawnSync(["ip", "-batch", "-"], { stdin: Buffer.from(commands) });
  if (exitCode !== 0) throw new Error(`ip: ${stderr}`);
}

const reach = { forbidden: "all-not-public", except: [], anyAddress: false } as const;

/** Those of the addresses at which the host may be reached. */
function reached(host: HostNetwork, addresses: readonly string[]): string[] {
  return addresses.filter((address) => isAllowed(address, { port: 80, reach, own: host.own, ownPorts: [8642] }));
}

test("own addresses are those of all interfaces, in any state, and the ranges that routes make local", async () => {
  const host = new HostNetwork();
  expect(host.own).toEqual([]);
  const own = [
    ...["20.0.0.1", "20.0.0.2", "20.0.0.5", "2600::1", "2002:1400:9::1", "20.0.1.1", "2600:1::1"],
    ...["20.0.3.0", "20.0.3.77", "20.4.5.6", "2600:4::77", "::ffff:20.0.0.2", "64:ff9b::20.0.1.1", "20.0.0.9"],
  ];
  // With a peer the other end is not this host; a route of another table needs a rule that is not known.
  const others = ["20.0.0.3", "20.0.0.6", "20.0.1.2", "20.0.4.1", "20.5.0.1", "2600::2", "2600:4:0:1::1"];
  expect(reached(host, [...own, ...others])).toEqual([...own, ...others]);
  ip(`link set lo up
    link add bridge type bridge
    link set bridge up
    addr add 20.0.0.1/24 dev bridge
    addr add 20.0.0.2/24 dev bridge
    addr add 20.0.0.5 peer 20.0.0.6 dev bridge
    addr add 2600::1/64 dev bridge
    addr add 2002:1400:9::1/64 dev bridge
    link add idle type bridge
    addr add 20.0.1.1/24 dev idle
    addr add 2600:1::1/64 dev idle
    addr add 20.0.3.0/24 dev lo
    route add local 20.4.0.0/16 dev lo
    route add local 2600:4::/64 dev lo
    route add local 20.5.0.0/16 dev lo table 100`);
  await until("the addresses are read", () => host.own.length > 0);
  expect(reached(host, [...own, ...others])).toEqual(others);
});

test("an address that is added later counts, and one that is removed does not", async () => {
  const host = new HostNetwork();
  expect(reached(host, ["20.7.0.1"])).toEqual(["20.7.0.1"]);
  ip("link add later type bridge\n addr add 20.7.0.1/24 dev later");
  await until("it is own", () => reached(host, ["20.7.0.1"]).length === 0);
  ip("link del later");
  await until("it is own no more", () => reached(host, ["20.7.0.1"]).length === 1);
});

test("thousands of addresses are read whole, and not for every request", async () => {
  const host = new HostNetwork();
  const many = Array.from({ length: 4000 }, (_, index) => `20.8.${index >> 8}.${index & 255}`);
  ip(["link add many type bridge", ...many.map((address) => `addr add ${address}/32 dev many`)].join("\n"));
  await until("all are read", () => host.own.includes(many.at(-1) ?? ""));
  expect(many.filter((address) => !host.own.includes(address))).toEqual([]);
  await until("one reading serves several requests", () => {
    const once = host.own;
    return host.own === once;
  });
  ip("link del many");
});
