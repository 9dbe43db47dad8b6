import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { Guest, verdicts } from "../support/network/guest.ts";
import { PROBES } from "../support/network/guest-image.ts";
import { ring } from "../support/network/ring.ts";

setDefaultTimeout(180_000);

/** Shell commands that make a resolv.conf; each begins without one. */
const VARIANTS: Readonly<Record<string, string>> = {
  "no file": "true",
  "an empty file": ": > /etc/resolv.conf",
  "a dangling symbolic link": "ln -s ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf",
  "an IPv4 server": "echo nameserver 9.9.9.9 > /etc/resolv.conf",
  "an IPv6 server": "echo nameserver 2001:db8::53 > /etc/resolv.conf",
  "the stub of systemd-resolved, which does not run":
    "printf 'nameserver 127.0.0.53\\noptions edns0 trust-ad\\nsearch .\\n' > /etc/resolv.conf",
  "a link-local server first, and a search list":
    "printf 'nameserver fe80::1\\nnameserver 10.0.0.1\\nsearch corp.invalid\\n' > /etc/resolv.conf",
  "a server over TCP": "printf 'nameserver ::1\\noptions use-vc\\n' > /etc/resolv.conf",
};

/** Commands that resolve a name, each with another resolver; `none` when it has no address. */
const RESOLVERS: Readonly<Record<string, (name: string) => string>> = {
  glibc: (name) => `${PROBES.glibc} lookup ${name} | tail -n 1`,
  musl: (name) => `${PROBES.musl} lookup ${name} | tail -n 1`,
  python: (name) =>
    `python3 -c 'import socket; print(socket.gethostbyname("${name}"))' 2>&1 | tail -n 1 | sed 's/.*Name or service.*/EAI_NONAME/'`,
  "Go's own": (name) =>
    `GODEBUG=netdns=go hey -n 1 -c 1 http://${name}:80/bytes/1 | grep -oE '1 responses|no such host'`,
};

/** Node.js with the resolver of the C library and its own, in one process, because its start is slow. */
const NODE = `
const dns = require("dns/promises");
const tell = (promise) => promise.then((answer) => answer.address ?? answer[0], (error) => error.code);
(async () => {
  for (const name of ["www.test", "nope.test"]) {
    console.log(name, await tell(dns.lookup(name)), await tell(dns.resolve4(name)));
  }
})();
`;

let guest: Guest;

beforeAll(async () => {
  guest = await Guest.start();
});

afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

/** A line for each resolver: its name, and its results for the existing name and the missing one. */
const asked = Object.entries(RESOLVERS)
  .map(([resolver, ask]) => `echo "${resolver}: $(${ask("www.test")}), $(${ask("nope.test")})"`)
  .join("\n");
const synthetic = "198\\.1[89]\\.\\d+\\.\\d+";

describe("with %s as resolv.conf", () => {
  test.each(Object.entries(VARIANTS))("%s: every resolver finds the name, and not the other", async (_, variant) => {
    const out = await guest.output(`rm -f /etc/resolv.conf; ${variant}; ${asked}; rm -f /etc/resolv.conf`);
    expect(out.split("\n")).toEqual([
      expect.stringMatching(new RegExp(`^glibc: ${synthetic}, EAI_NONAME$`)),
      expect.stringMatching(new RegExp(`^musl: ${synthetic}, EAI_NONAME$`)),
      expect.stringMatching(new RegExp(`^python: ${synthetic}, EAI_NONAME$`)),
      "Go's own: 1 responses, no such host",
    ]);
  });

  test.each(Object.entries(VARIANTS).slice(0, 4))("%s: Node.js, too", async (_, variant) => {
    const script = `rm -f /etc/resolv.conf; ${variant}; node -e '${NODE}'; rm -f /etc/resolv.conf`;
    const address = synthetic;
    expect((await guest.output(script)).split("\n")).toEqual([
      expect.stringMatching(new RegExp(`^www.test ${address} ${address}$`)),
      "nope.test ENOTFOUND ENOTFOUND",
    ]);
  });
});

test("a name has one address as long as the machine lives; its own names need no name server", async () => {
  const one = await guest.output(`${PROBES.musl} lookup www.test; ${PROBES.musl} lookup www.test`);
  expect(new Set(one.split("\n")).size).toBe(1);
  const before = ring().site.nameServer.asked.length;
  expect(await guest.probe("lookup localhost", "musl")).toContain("127.0.0.1");
  expect(await guest.probe("lookup anything.localhost", "musl")).toContain("127.0.0.1");
  expect(await guest.output(`${PROBES.musl} lookup "$(hostname)"`)).not.toBe("");
  // Names that no rule allows are no way out, in whatever form.
  for (const name of ["exfiltrated.example", "a.b.c.example", "test", "www.test.example"]) {
    expect(await guest.probe(`lookup ${name}`, "musl")).toBe("EAI_NONAME");
  }
  expect(ring().site.nameServer.asked.length).toBe(before);
});

test("failed look-ups differ from names that do not exist", async () => {
  const { names } = ring().site;
  names.setAnswer("fails.test", () => "failure");
  expect(await guest.probe("lookup fails.test")).toBe("EAI_AGAIN");
});

test("records of other types do not exist, and are not looked up", async () => {
  const { nameServer } = ring().site;
  const script = `
const dns = require("dns/promises");
const tell = (promise) => promise.then((answer) => JSON.stringify(answer), (error) => error.code);
(async () => {
  for (const type of ["AAAA", "MX", "TXT", "SRV", "CNAME", "NS", "SOA", "PTR", "CAA"]) console.log(type, await tell(dns.resolve("www.test", type)));
})();`;
  const out = await guest.output(`node -e '${script}'`);
  expect(new Set(out.split("\n").map((line) => line.split(" ")[1]))).toEqual(new Set(["ENODATA"]));
  expect(nameServer.asked.filter((question) => !/ (?:1|28)$/.test(question))).toEqual([]);
});

test("the audit has names that do not exist, once each, with the number of look-ups", async () => {
  const { audit } = await guest.end();
  expect(verdicts(audit, "nope.test")).toEqual([expect.stringMatching(/^null no_such_name \d+$/)]);
  expect(verdicts(audit, "exfiltrated.example")).toEqual([expect.stringMatching(/^null denied \d+$/)]);
});
