import { expect, test } from "bun:test";
import { isIP } from "node:net";
import { ApiError } from "../../../src/domain/errors.ts";
import { isAllowed } from "../../../src/network/gate/judge.ts";
import { GateError } from "../../../src/network/gate.ts";
import {
  checkRegistryHost,
  isForbidden,
  isListed,
  listedLoopback,
  type RegistryHosts,
  registryResolver,
} from "../../../src/network/registry-policy.ts";

const none: RegistryHosts = {};
const at =
  (...addresses: string[]) =>
  async () =>
    addresses;
const never = () => Promise.reject(new Error("looked up"));
const code = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => "accepted",
    (error: unknown) => (error instanceof ApiError ? error.code : String(error)),
  );

/** The addresses of a host, if a connection to them is allowed. */
async function allowedAddresses(host: string, hosts: RegistryHosts, addresses: readonly string[]) {
  const [, name = "", port = ""] = /^(.*):(\d+)$/.exec(host) ?? [];
  const bare = name.replace(/^\[|\]$/g, "");
  const reach = { forbidden: "registry", except: [], anyAddress: isListed(host, hosts) } as const;
  const judgement = { port: Number(port), reach, own: [], ownPorts: [] };
  const resolved = isIP(bare) === 0 ? addresses : [bare];
  if (resolved.every((address) => isAllowed(address, judgement))) return resolved;
  throw new ApiError("forbidden", "denied");
}

test("forbids this host and its cloud's metadata in every spelling, and allows private addresses of a site", () => {
  const forbidden = ["127.0.0.1", "169.254.1.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "0.0.0.0"];
  const wrapped = forbidden.flatMap((address) => [`::ffff:${address}`, `64:ff9b::${address}`, `64:ff9b:1::${address}`]);
  for (const address of [...forbidden, ...wrapped, "::1", "::", "fe80::1%eth0", "fd00:ec2::254", "fd20:ce::254"]) {
    expect([address, isForbidden(address)]).toEqual([address, true]);
  }
  const fine = ["10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "203.0.113.5", "fd00::1", "2001:db8::1"];
  for (const address of [
    ...fine,
    ...fine.slice(0, 5).map((each) => `::ffff:${each}`),
    "8.8.8.8",
    "64:ff9b:1::8.8.8.8",
  ]) {
    expect([address, isForbidden(address)]).toEqual([address, false]);
  }
});

test("forbids a name if one of its addresses is forbidden", async () => {
  expect(await code(checkRegistryHost("r.example", none, at("10.0.0.1")))).toBe("accepted");
  expect(await code(checkRegistryHost("r.example", none, at("10.0.0.1", "127.0.0.1")))).toBe("forbidden");
  expect(await code(checkRegistryHost("r.example:5000", none, at("fe80::1")))).toBe("forbidden");
});

test("does not look up literal addresses", async () => {
  expect(await code(checkRegistryHost("127.0.0.1:5000", none, never))).toBe("forbidden");
  expect(await code(checkRegistryHost("[::1]:5000", none, never))).toBe("forbidden");
  expect(await code(checkRegistryHost("[::ffff:7f00:1]", none, never))).toBe("forbidden");
  for (const host of ["100.100.100.200", "168.63.129.16:80", "[fd20:ce::254]", "[64:ff9b:1::7f00:1]:5000"]) {
    expect([host, await code(checkRegistryHost(host, none, never))]).toEqual([host, "forbidden"]);
  }
  expect(await code(checkRegistryHost("192.168.7.7:5000", none, never))).toBe("accepted");
});

test("the operator's list decides, and an entry with the port has precedence", async () => {
  const hosts: RegistryHosts = {
    "127.0.0.1:5000": { insecure: true },
    "nas.example": { caFile: "/ca.pem" },
    "nas.example:9": { allow: false },
    "*": { insecure: false },
  };
  expect(await checkRegistryHost("127.0.0.1:5000", hosts, never)).toEqual({ insecure: true });
  expect(await code(checkRegistryHost("127.0.0.1:5001", hosts, never))).toBe("forbidden");
  expect(await checkRegistryHost("nas.example:443", hosts, at("127.0.0.1"))).toEqual({ caFile: "/ca.pem" });
  expect(await code(checkRegistryHost("nas.example:9", hosts, at("10.0.0.1")))).toBe("forbidden");
  const closed: RegistryHosts = { "*": { allow: false }, "r.example": {} };
  expect(await code(checkRegistryHost("other.example", closed, at("10.0.0.1")))).toBe("forbidden");
  expect(await code(checkRegistryHost("r.example", closed, at("10.0.0.1")))).toBe("accepted");
  expect(await code(checkRegistryHost("constructor:1", none, at("127.0.0.1")))).toBe("forbidden");
});

test("the gate looks up names, and numbers stand for the addresses that they encode", async () => {
  const lookup = (name: string) => {
    if (name === "localhost") return Promise.resolve(["127.0.0.1", "::1"]);
    return Promise.reject(new GateError("no_such_name", "its name does not resolve"));
  };
  const resolve = registryResolver({ lookup }, new AbortController().signal);
  expect(await code(checkRegistryHost("localhost:5000", none, resolve))).toBe("forbidden");
  // The C library accepts numbers in other forms, and reads some as octal.
  const loopback = [
    "127.1:5000",
    "127.0.1",
    "2130706433:5000",
    "0x7f000001:1",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001:1",
  ];
  const metadata = ["2852039166:80", "0xa9fea9fe:80", "0251.0376.0251.0376", "169.254.43518", "0x64.0x64.0x64.0xc8"];
  for (const host of [...loopback, ...metadata, "1684301000:80", "0xa83f8110:80", "0:5000", "0x0:1"]) {
    expect([host, await code(checkRegistryHost(host, none, resolve))]).toEqual([host, "forbidden"]);
  }
  expect(await code(checkRegistryHost("no-such-host.invalid", none, resolve))).toBe("unavailable");
  const behindProxy = registryResolver({ lookup: () => Promise.resolve(null) }, new AbortController().signal);
  expect(await code(checkRegistryHost("r.example", none, behindProxy))).toBe("accepted");
  expect(await code(checkRegistryHost("127.1:5000", none, behindProxy))).toBe("forbidden");
});

test("connects to the addresses that were checked", async () => {
  const hosts = { "listed.example": {}, "port.example:5000": {}, "denied.example": { allow: false } };
  const allowed = (host: string, ...addresses: string[]) => allowedAddresses(host, hosts, addresses);
  expect(await allowed("r.example:443", "10.0.0.1", "fd00::1")).toEqual(["10.0.0.1", "fd00::1"]);
  expect(await code(allowed("r.example:443", "10.0.0.1", "::1"))).toBe("forbidden");
  expect(await allowed("listed.example:443", "127.0.0.1")).toEqual(["127.0.0.1"]);
  expect(await allowed("port.example:5000", "::1")).toEqual(["::1"]);
  expect(await code(allowed("port.example:5001", "::1"))).toBe("forbidden");
  expect(await code(allowed("denied.example:443", "10.0.0.1"))).toBe("forbidden");
  expect(await code(allowed("denied.example:5000", "10.0.0.1"))).toBe("forbidden");
  expect(await code(allowed("[::1]:443"))).toBe("forbidden");
  expect(await allowed("[fd00::1]:443")).toEqual(["fd00::1"]);
  // A name server may answer anything: an address that cannot be checked gets no connection.
  expect(await code(allowed("r.example:443", "127.1"))).not.toBe("accepted");
});

test("an entry without a port opens only the ports of its scheme", async () => {
  const hosts: RegistryHosts = {
    localhost: {},
    "plain.lan": { insecure: true },
    "registry.lan": {},
    "registry.lan:5001": {},
    "[fe80::1]": {},
  };
  const connect = (host: string, ...addresses: string[]) => code(allowedAddresses(host, hosts, addresses));
  for (const address of ["127.0.0.1", "::1", "169.254.1.1", "169.254.169.254", "0.0.0.0"]) {
    for (const host of ["localhost", "registry.lan", "plain.lan"]) {
      expect(await connect(`${host}:443`, address)).toBe("accepted");
      expect(await connect(`${host}:80`, address)).toBe(host === "plain.lan" ? "accepted" : "forbidden");
      for (const port of [5000, 6379, 8443]) expect(await connect(`${host}:${port}`, address)).toBe("forbidden");
      // The reference of an import may name any port, but that does not open it.
      expect(await code(checkRegistryHost(`${host}:6379`, hosts, at(address)))).toBe("forbidden");
      expect(await code(checkRegistryHost(host, hosts, at(address)))).toBe("accepted");
    }
    expect(await connect("registry.lan:6379", "10.0.0.1", address)).toBe("forbidden");
    expect(await connect("registry.lan:5001", address)).toBe("accepted");
  }
  expect(await connect("registry.lan:6379", "10.0.0.1")).toBe("accepted");
  expect(await connect("[fe80::1]:6379")).toBe("forbidden");
  expect(await connect("[fe80::1]:443")).toBe("accepted");
  expect(await checkRegistryHost("plain.lan:5000", hosts, at("10.0.0.1"))).toEqual({ insecure: true });
});

test("when other hosts are not allowed, an entry without a port allows the ports of its scheme", async () => {
  const hosts: RegistryHosts = { "*": { allow: false }, "registry.lan": {}, "registry.lan:5000": {} };
  const connect = (host: string) => code(allowedAddresses(host, hosts, ["10.0.0.1"]));
  expect(await connect("registry.lan:443")).toBe("accepted");
  expect(await connect("registry.lan:5000")).toBe("accepted");
  expect(await connect("registry.lan:5001")).toBe("forbidden");
  expect(await code(checkRegistryHost("registry.lan:5001", hosts, at("10.0.0.1")))).toBe("forbidden");
});

test("loopback addresses are allowed only as the operator lists them", () => {
  const hosts = {
    "*": {},
    "127.0.0.1:5000": {},
    "127.0.0.1:5001": { allow: false },
    "localhost:5002": {},
    "[::1]:5003": {},
    "127.0.0.8": {},
    "127.0.0.9": { insecure: true },
    "10.0.0.1:5004": {},
    "r.example:5005": {},
  };
  expect(listedLoopback(hosts).map(({ address, port }) => `${address} ${port}`)).toEqual([
    ...["127.0.0.1 5000", "127.0.0.1 5002", "::1 5002", "::1 5003"],
    ...["127.0.0.8 443", "127.0.0.9 443", "127.0.0.9 80"],
  ]);
});
