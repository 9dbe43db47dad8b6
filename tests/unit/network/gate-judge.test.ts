import { describe, expect, test } from "bun:test";
import { isAllowed, type Judgement } from "../../../src/network/gate/judge.ts";
import type { AddressReach } from "../../../src/network/gate.ts";

const GUEST: AddressReach = { forbidden: "all-not-public", except: [], anyAddress: false };
const REGISTRY: AddressReach = { forbidden: "registry", except: [], anyAddress: false };
const base: Judgement = {
  port: 443,
  reach: GUEST,
  own: ["203.0.114.9", "192.168.1.5", "2a00:1::9"],
  ownPorts: [8642, 8644],
};

/** Spellings of addresses that no guest may reach, one for each way to write or to embed them. */
const FORBIDDEN = [
  ...["0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"],
  ...["168.63.129.16", "169.254.1.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1"],
  ...["192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"],
  ...[
    "255.255.255.255",
    "::",
    "::1",
    "0:0:0:0:0:0:0:1",
    "::0001",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
  ],
  ...["ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "0:0:0:0:0:FFFF:10.0.0.1", "::FFFF:A00:1"],
  ...["64:ff9b::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::10.0.0.1", "2002:7f00:1::1", "2002:a00:1::", "::127.0.0.1"],
  ...["2001:0:7f00:1::", "2001:0:4136:e378:8000:63bf:80ff:fffe", "::ffff:0:10.0.0.1", "2a00::5efe:10.0.0.1"],
];

describe("a guest", () => {
  test("reaches only public addresses, in every spelling", () => {
    expect(FORBIDDEN.filter((address) => isAllowed(address, base))).toEqual([]);
    for (const address of ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"]) {
      expect(isAllowed(address, base)).toBeTrue();
    }
  });

  test("does not reach the host at its own public addresses", () => {
    for (const address of [
      "203.0.114.9",
      "::ffff:203.0.114.9",
      "64:ff9b::203.0.114.9",
      "2002:cb00:7209::1",
      "2a00:1::9",
    ]) {
      expect(isAllowed(address, base)).toBeFalse();
    }
  });

  test("reaches the addresses that the operator excepts, but not the daemon there", () => {
    const reach = { ...GUEST, except: ["10.0.7.0/24", "127.0.0.1", "fd00::/8", "192.168.0.0/16"] };
    for (const address of ["10.0.7.9", "::ffff:10.0.7.9", "127.0.0.1", "fd12::1", "192.168.1.5"]) {
      expect(isAllowed(address, { ...base, reach })).toBeTrue();
    }
    for (const address of ["10.0.8.1", "127.0.0.2", "fe80::1"])
      expect(isAllowed(address, { ...base, reach })).toBeFalse();
    for (const address of ["127.0.0.1", "192.168.1.5"]) {
      for (const port of base.ownPorts) expect(isAllowed(address, { ...base, reach, port })).toBeFalse();
    }
    expect(isAllowed("10.0.7.9", { ...base, reach, port: 8642 })).toBeTrue();
  });

  test("reaches any address of a name that the operator lists, but not the daemon there", () => {
    const reach = { ...GUEST, anyAddress: true };
    expect(isAllowed("169.254.1.1", { ...base, reach })).toBeTrue();
    for (const address of ["127.0.0.1", "::1", "0.0.0.0", "203.0.114.9", "::ffff:127.0.0.1"]) {
      expect(isAllowed(address, { ...base, reach, port: 8642 })).toBeFalse();
    }
  });
});

test("a registry may have private addresses, but no address of the machine or its cloud", () => {
  const judged = { ...base, reach: REGISTRY };
  for (const address of ["10.0.0.1", "192.168.1.5", "fd12::1", "1.1.1.1"])
    expect(isAllowed(address, judged)).toBeTrue();
  for (const address of ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "100.100.100.200"]) {
    expect(isAllowed(address, judged)).toBeFalse();
  }
  expect(isAllowed("192.168.1.5", { ...judged, port: 8642 })).toBeFalse();
});
