import { expect, test } from "bun:test";
import { parseAnswer } from "../../../src/network/gate/messages.ts";
import { GateError } from "../../../src/network/gate.ts";
import { parseHosts, parseServers } from "../../../src/network/host-network.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";

const parse = (answer: unknown): readonly string[] => parseAnswer(Buffer.from(JSON.stringify(answer)));
const failure = (answer: unknown): GateError => {
  try {
    parse(answer);
  } catch (error) {
    if (error instanceof GateError) return error;
    throw error;
  }
  throw new Error("it was accepted");
};

test("an answer has addresses, or the reason why it has none", () => {
  expect(parse({ ok: true, addresses: ["192.0.2.1", "2001:db8::1"] })).toEqual(["192.0.2.1", "2001:db8::1"]);
  const refusal = failure({ ok: false, verdict: "refused", message: "connection refused", addresses: ["192.0.2.1"] });
  expect([refusal.verdict, refusal.message, refusal.addresses]).toEqual([
    "refused",
    "connection refused",
    ["192.0.2.1"],
  ]);
});

test.each([
  ["nothing", null],
  ["a list", [true]],
  ["no addresses", { ok: true, addresses: [] }],
  ["a name for an address", { ok: true, addresses: ["host.example"] }],
  ["a number for an address", { ok: true, addresses: [7] }],
  ["a list of too many addresses", { ok: true, addresses: Array(33).fill("192.0.2.1") }],
  ["neither yes nor no", { ok: 1, addresses: ["192.0.2.1"] }],
  ["an unknown verdict", { ok: false, verdict: "allowed", message: "", addresses: [] }],
  ["no message", { ok: false, verdict: "refused", addresses: [] }],
])("%s is invalid", (_, answer) => {
  expect(failure(answer).message).toBe("the connecting process sent an invalid answer");
});

test("a message of the process is short and printable", () => {
  const message = `\x1b[31m${"é".repeat(5000)}\n`;
  const text = failure({ ok: false, verdict: "refused", message, addresses: [] }).message;
  expect(text).toMatch(/^[\x20-\x7e]{1,1000}$/);
});

test("any message of the process is an answer or an error of the gate", () => {
  const random = seededRandom(seedOfTests());
  const good = Buffer.from(JSON.stringify({ ok: true, addresses: ["192.0.2.1", "2001:db8::1"] }));
  for (let round = 0; round < 5000; round++) {
    const bytes = Buffer.from(good);
    for (let change = random.below(4); change >= 0; change--) bytes[random.below(bytes.byteLength)] = random.below(256);
    try {
      expect(parseAnswer(bytes).length).toBeGreaterThan(0);
    } catch (error) {
      expect(error).toBeInstanceOf(GateError);
    }
  }
});

test("uses the reachable name servers of resolv.conf, or this host", () => {
  const text =
    "# local\nsearch lan.example\nnameserver 192.0.2.53\n nameserver\t2001:db8::53 \nnameserver fe80::1%eth0\noptions ndots:5\n";
  expect(parseServers(text)).toEqual(["192.0.2.53", "2001:db8::53"]);
  expect(parseServers("nameserver 192.0.2.1\n".repeat(9))).toHaveLength(3);
  for (const empty of ["", "nameserver dns.example", "nameserver"]) expect(parseServers(empty)).toEqual(["127.0.0.1"]);
});

test("reads the names of /etc/hosts in lower case, with all of their addresses", () => {
  const text =
    "127.0.0.1\tlocalhost\n192.0.2.7 NAS.lan nas # the shelf\n2001:db8::7 nas.lan\n# 192.0.2.9 gone\nnonsense here\n";
  expect(Object.fromEntries(parseHosts(text))).toEqual({
    localhost: ["127.0.0.1"],
    "nas.lan": ["192.0.2.7", "2001:db8::7"],
    nas: ["192.0.2.7"],
  });
});
