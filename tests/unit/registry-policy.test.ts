import { expect, test } from "bun:test";
import { ApiError } from "../../src/domain/errors.ts";
import {
  allowedAddresses,
  checkRegistryHost,
  forbiddenKind,
  listedLoopback,
  type RegistryHosts,
} from "../../src/oci/registry-policy.ts";

const none: RegistryHosts = {};
const at =
  (...addresses: string[]) =>
  async () =>
    addresses;
const code = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => "accepted",
    (error: unknown) => (error instanceof ApiError ? error.code : String(error)),
  );

test("addresses are told apart in every spelling", () => {
  for (const [address, kind] of [
    ["127.0.0.1", "loopback"],
    ["127.255.0.9", "loopback"],
    ["::1", "loopback"],
    ["0:0:0:0:0:0:0:1", "loopback"],
    ["::ffff:127.0.0.1", "loopback"],
    ["::ffff:7f00:1", "loopback"],
    ["::127.0.0.1", "loopback"],
    ["64:ff9b::7f00:1", "loopback"],
    ["2002:7f00:1::", "loopback"],
    ["169.254.1.1", "link-local"],
    ["fe80::1%eth0", "link-local"],
    ["febf::1", "link-local"],
    ["169.254.169.254", "metadata"],
    ["::ffff:169.254.169.254", "metadata"],
    ["fd00:ec2::254", "metadata"],
    ["0.0.0.0", "unspecified"],
    ["0.1.2.3", "unspecified"],
    ["::", "unspecified"],
    ["10.0.0.1", null],
    ["192.168.1.1", null],
    ["172.16.0.1", null],
    ["100.64.0.1", null],
    ["203.0.113.5", null],
    ["fd00::1", null],
    ["fd00:ec2::255", null],
    ["fec0::1", null],
    ["2001:db8::1", null],
    ["::ffff:10.0.0.1", null],
    ["2002:a00:1::", null],
  ] as const) {
    expect([address, forbiddenKind(address)]).toEqual([address, kind]);
  }
});

test("one forbidden address among several is enough", async () => {
  expect(await code(checkRegistryHost("r.example", none, at("10.0.0.1")))).toBe("accepted");
  expect(await code(checkRegistryHost("r.example", none, at("10.0.0.1", "127.0.0.1")))).toBe("forbidden");
  expect(await code(checkRegistryHost("r.example:5000", none, at("fe80::1")))).toBe("forbidden");
});

test("literal addresses are not looked up", async () => {
  const never = () => Promise.reject(new Error("looked up"));
  expect(await code(checkRegistryHost("127.0.0.1:5000", none, never))).toBe("forbidden");
  expect(await code(checkRegistryHost("[::1]:5000", none, never))).toBe("forbidden");
  expect(await code(checkRegistryHost("[::ffff:7f00:1]", none, never))).toBe("forbidden");
  expect(await code(checkRegistryHost("192.168.7.7:5000", none, never))).toBe("accepted");
});

test("the operator's list decides, the entry with the port first", async () => {
  const hosts: RegistryHosts = {
    "127.0.0.1:5000": { insecure: true },
    "nas.example": { caFile: "/ca.pem" },
    "nas.example:9": { allow: false },
    "*": { insecure: false },
  };
  expect(await checkRegistryHost("127.0.0.1:5000", hosts)).toEqual({ insecure: true });
  expect(await code(checkRegistryHost("127.0.0.1:5001", hosts))).toBe("forbidden");
  expect(await checkRegistryHost("nas.example:443", hosts, at("127.0.0.1"))).toEqual({ caFile: "/ca.pem" });
  expect(await code(checkRegistryHost("nas.example:9", hosts, at("10.0.0.1")))).toBe("forbidden");
  const closed: RegistryHosts = { "*": { allow: false }, "r.example": {} };
  expect(await code(checkRegistryHost("other.example", closed, at("10.0.0.1")))).toBe("forbidden");
  expect(await code(checkRegistryHost("r.example", closed, at("10.0.0.1")))).toBe("accepted");
  expect(await code(checkRegistryHost("constructor:1", none, at("127.0.0.1")))).toBe("forbidden");
});

test("names are looked up for real", async () => {
  expect(await code(checkRegistryHost("localhost:5000", none))).toBe("forbidden");
  // The C library reads this as 127.0.0.1.
  expect(await code(checkRegistryHost("127.1:5000", none))).toBe("forbidden");
  expect(await code(checkRegistryHost("no-such-host.invalid", none))).toBe("unavailable");
});

test("the addresses to connect to are those that were judged", async () => {
  const hosts = { "listed.example": {}, "port.example:5000": {}, "denied.example": { allow: false } };
  const allowed = (host: string, ...addresses: string[]) =>
    allowedAddresses(host, hosts, { reference: { host: "r.example" }, resolve: at(...addresses) });
  expect(await allowed("r.example:443", "10.0.0.1", "fd00::1")).toEqual(["10.0.0.1", "fd00::1"]);
  expect(await code(allowed("r.example:443", "10.0.0.1", "::1"))).toBe("forbidden");
  expect(await allowed("listed.example:80", "127.0.0.1")).toEqual(["127.0.0.1"]);
  expect(await allowed("port.example:5000", "::1")).toEqual(["::1"]);
  expect(await code(allowed("port.example:5001", "::1"))).toBe("forbidden");
  expect(await code(allowed("denied.example:443", "10.0.0.1"))).toBe("forbidden");
  expect(await code(allowed("[::1]:443"))).toBe("forbidden");
  expect(await allowed("[fd00::1]:443")).toEqual(["fd00::1"]);
});

test("an entry without a port does not open every port of this machine", async () => {
  const hosts: RegistryHosts = { localhost: {}, "registry.lan": {}, "registry.lan:5001": {}, "[fe80::1]": {} };
  const connect = (host: string, reference: string, ...addresses: string[]) =>
    code(allowedAddresses(host, hosts, { reference: { host: reference }, resolve: at(...addresses) }));
  for (const address of ["127.0.0.1", "::1", "169.254.1.1", "169.254.169.254", "0.0.0.0"]) {
    for (const host of ["localhost", "registry.lan"]) {
      expect(await connect(`${host}:443`, "evil.example", address)).toBe("accepted");
      expect(await connect(`${host}:80`, "evil.example", address)).toBe("accepted");
      expect(await connect(`${host}:5000`, `${host}:5000`, address)).toBe("accepted");
      expect(await connect(`${host}:6379`, "evil.example", address)).toBe("forbidden");
      expect(await connect(`${host}:8443`, "evil.example", address)).toBe("forbidden");
      expect(await connect(`${host}:6379`, `${host}:5000`, address)).toBe("forbidden");
      expect(await connect(`${host}:6379`, "evil.example:6379", address)).toBe("forbidden");
    }
    expect(await connect("registry.lan:6379", "evil.example", "10.0.0.1", address)).toBe("forbidden");
    expect(await connect("registry.lan:5001", "evil.example", address)).toBe("accepted");
  }
  expect(await connect("registry.lan:6379", "evil.example", "10.0.0.1")).toBe("accepted");
  expect(await connect("[fe80::1]:6379", "evil.example")).toBe("forbidden");
  expect(await connect("[fe80::1]:443", "evil.example")).toBe("accepted");
});

test("places of the loopback are those that the operator listed, and the one that is asked for", () => {
  const hosts = {
    "*": {},
    "127.0.0.1:5000": {},
    "127.0.0.1:5001": { allow: false },
    "localhost:5002": {},
    "[::1]:5003": {},
    "127.0.0.9": {},
    "10.0.0.1:5004": {},
    "r.example:5005": {},
  };
  const places = (host: string) => listedLoopback(hosts, { host }).map(({ address, port }) => `${address} ${port}`);
  const always = ["127.0.0.1 5000", "127.0.0.1 5002", "::1 5002", "::1 5003", "127.0.0.9 443", "127.0.0.9 80"];
  expect(places("r.example")).toEqual(always);
  expect(places("127.0.0.9:5006")).toEqual(["127.0.0.9 5006", ...always]);
  expect(places("127.0.0.8:5006")).toEqual(always);
  expect(places("127.0.0.1:5001")).toEqual(always);
});
