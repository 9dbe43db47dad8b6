import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../src/domain/errors.ts";
import type { Destination, NetworkPorts, NetworkRule } from "../../../src/domain/network.ts";
import {
  allowsDestination,
  allowsName,
  canonicalAddress,
  covers,
  isHostName,
  parseHostText,
  parseRule,
  parseRuleText,
  ruleText,
} from "../../../src/network/rules.ts";
import { seededRandom } from "../../support/random.ts";

const rule = (text: string): NetworkRule => parseRuleText(text);
const hostOf = (host: string): string => parseRule(host, undefined, "network.allow.0").host;

function refusal(body: () => unknown): { readonly message: string; readonly field: unknown } {
  try {
    body();
  } catch (error) {
    if (error instanceof ApiError) return { message: error.message, field: error.details["field"] };
    throw error;
  }
  throw new Error("it was accepted");
}

/** A destination as the daemon builds it from the bytes of the guest. */
function to(text: string): Destination {
  const [, host = "", port = ""] = /^\[?(.*?)\]?:(\d+)$/.exec(text) ?? [];
  return { kind: canonicalAddress(host) === null ? "name" : "address", host, port: Number(port) };
}

describe("the canonical spelling of a host", () => {
  test.each([
    ["Example.ORG", "example.org"],
    ["*.Example.org", "*.example.org"],
    ["*", "*"],
    ["db", "db"],
    ["_sip._tcp.example.org", "_sip._tcp.example.org"],
    ["xn--bcher-kva.example", "xn--bcher-kva.example"],
    ["1.2.3.4a", "1.2.3.4a"],
    ["0x7f.example", "0x7f.example"],
    ["93.184.215.14", "93.184.215.14"],
    ["10.0.7.0/24", "10.0.7.0/24"],
    ["10.0.7.5/32", "10.0.7.5"],
    ["0.0.0.0/0", "0.0.0.0/0"],
    ["2001:DB8:0:0::1", "2001:db8::1"],
    ["2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"],
    ["2001:DB8::/32", "2001:db8::/32"],
    ["2001:db8::1/128", "2001:db8::1"],
    ["::/0", "::/0"],
    ["2600:7::200:5efe:10.0.7.5", "2600:7::200:5efe:a00:705"],
    ["::ffff:10.0.0.1", "10.0.0.1"],
    ["::FFFF:a00:1", "10.0.0.1"],
    ["0:0:0:0:0:ffff:10.0.0.1", "10.0.0.1"],
    ["::ffff:10.0.0.0/104", "10.0.0.0/8"],
    ["::ffff:10.0.0.1/128", "10.0.0.1"],
    ["::ffff:0.0.0.0/96", "0.0.0.0/0"],
    ["::10.0.0.1", "::a00:1"],
  ])("%s is %s", (text, host) => {
    expect(hostOf(text)).toBe(host);
    expect(hostOf(host)).toBe(host);
  });

  test.each([
    ["", "printable ASCII"],
    [" example.org", "printable ASCII"],
    ["example.org\n", "printable ASCII"],
    ["exa\0mple.org", "printable ASCII"],
    ["bücher.example", "xn--"],
    ["１.2.3.4", "xn--"],
    ["a".repeat(254), "253 characters"],
    [`${"a".repeat(64)}.org`, "63 letters"],
    ["example.org.", "end with a dot"],
    ["*.", "labels"],
    [".", "end with a dot"],
    [".example.org", "labels"],
    ["a..example.org", "labels"],
    ["-a.example.org", "hyphen"],
    ["a-.example.org", "hyphen"],
    ["a/b", "range of addresses"],
    ["exa%6dple.org", "zone"],
    ["user@example.org", "labels"],
    ["example.org:443", "without a port"],
    ["http://example.org", "without a scheme"],
    ["a.*.org", "may have *"],
    ["*a.org", "may have *"],
    ["**.org", "may have *"],
    ["*.*.org", "may have *"],
    ["127.1", "four decimal numbers"],
    ["0x7f.1", "four decimal numbers"],
    ["2130706433", "four decimal numbers"],
    ["0x7f000001", "four decimal numbers"],
    ["0X7F000001", "four decimal numbers"],
    ["0177.0.0.1", "four decimal numbers"],
    ["127.0.0.01", "four decimal numbers"],
    ["127.0.0.1.", "end with a dot"],
    ["127.0.0.256", "four decimal numbers"],
    ["127.0.0.0x1", "four decimal numbers"],
    ["127.0.0.0x", "four decimal numbers"],
    ["*.1", "four decimal numbers"],
    ["*.127.0.0.1", "four decimal numbers"],
    ["[::1]", "without brackets"],
    ["::1%lo", "zone"],
    ["fe80::1%25eth0", "zone"],
    ["fe80::%1/10", "range of addresses"],
    ["1:2:3:4:5:6:7:8:9", "without a port"],
    ["::ffff:127.1", "without a port"],
    ["10.0.7.5/24", "zeros after the first 24 bits"],
    ["0.0.0.1/0", "zeros after the first 0 bits"],
    ["2001:db8::1/64", "zeros"],
    ["::ffff:0:0/95", "zeros"],
    ["10.0.0.0/33", "at most 32 bits"],
    ["::/129", "at most 128 bits"],
    ["10.0.0.0/08", "range of addresses"],
    ["10.0.0.0/", "range of addresses"],
    ["10.0.0.0/8/8", "range of addresses"],
    ["10.0.0.0/-1", "range of addresses"],
    ["10.0.0/8", "range of addresses"],
    ["example.org/24", "range of addresses"],
    ["*/0", "range of addresses"],
  ])("%j is refused", (text, reason) => {
    const { message, field } = refusal(() => hostOf(text));
    expect(field).toBe("network.allow.0.host");
    expect(message).toStartWith("network.allow.0.host ");
    expect(message).toContain(reason);
  });

  test("ports are sorted and unique, and are 80 and 443 by default", () => {
    const portsOf = (ports: NetworkPorts | undefined) => parseRule("a.example", ports, "f").ports;
    expect(portsOf(undefined)).toEqual([80, 443]);
    expect(portsOf([443, 1, 65_535, 443])).toEqual([1, 443, 65_535]);
    expect(portsOf("*")).toBe("*");
    for (const wrong of [
      [],
      [0],
      [65_536],
      [1.5],
      [Number.NaN],
      Array.from({ length: 257 }, (_, index) => index + 1),
    ]) {
      expect(refusal(() => portsOf(wrong)).field).toBe("f.ports");
    }
  });
});

describe("rules as text", () => {
  test.each([
    ["example.org", "example.org:80,443"],
    ["Example.org:443", "example.org:443"],
    ["*.example.org:443+80", "*.example.org:80,443"],
    ["*:*", "*:*"],
    ["*", "*:80,443"],
    ["10.0.7.0/24:5432", "10.0.7.0/24:5432"],
    ["[2001:db8::1]", "[2001:db8::1]:80,443"],
    ["[2001:db8::/32]:*", "[2001:db8::/32]:*"],
    ["[::ffff:10.0.0.1]:1", "10.0.0.1:1"],
  ])("%s is %s", (text, spelling) => {
    expect(ruleText(rule(text))).toBe(spelling);
    expect(rule(spelling)).toEqual(rule(text));
  });

  test.each([
    ["", "the host"],
    [":443", "the host"],
    ["example.org:", "the ports"],
    ["example.org:0", "the ports"],
    ["example.org:65536", "the ports"],
    ["example.org:80,", "the ports"],
    ["example.org:80-90", "the ports"],
    ["example.org:80,*", "the ports"],
    ["example.org: 80", "the ports"],
    ["example.org:+80", "the ports"],
    ["example.org:8e1", "the ports"],
    // The last group might be read as the port.
    ["2001:db8::5:5432", "brackets"],
    ["::1", "brackets"],
    ["[example.org]:80", "brackets"],
    ["[10.0.0.1]:80", "brackets"],
    ["[::1]80", "brackets"],
    ["a[::1]:80", "brackets"],
    ["[]:80", "brackets"],
    ["http://example.org", "without a scheme"],
    ["http://me:secret@example.org:80/", "without a scheme"],
  ])("%j is refused", (text, reason) => {
    const { message } = refusal(() => rule(text));
    expect(message).toStartWith(JSON.stringify(text));
    expect(message).toContain(reason);
  });

  test("hosts without ports are for all ports, and * is not a host", () => {
    expect(parseHostText("*.Lan.example")).toEqual({ host: "*.lan.example", ports: "*" });
    expect(parseHostText("fd00::/8")).toEqual({ host: "fd00::/8", ports: "*" });
    expect(refusal(() => parseHostText("*")).message).toContain("must not be *");
    expect(refusal(() => parseHostText("lan.example:80")).message).toContain("without a port");
  });
});

describe("a rule", () => {
  const allows = (rules: readonly string[], destination: string): boolean =>
    allowsDestination(rules.map(rule), to(destination));

  test.each([
    ["example.org", "example.org:443", true],
    ["example.org", "example.org:22", false],
    ["example.org:*", "example.org:22", true],
    ["example.org", "a.example.org:443", false],
    ["*.example.org", "a.example.org:443", true],
    ["*.example.org", "a.b.example.org:443", true],
    ["*.example.org", "example.org:443", false],
    ["*.example.org", "aexample.org:443", false],
    ["*", "example.org:443", true],
    ["*", "db:443", false],
    ["db", "db:443", true],
    ["10.0.0.0/8:1", "10.1.2.3:1", true],
    ["10.0.0.0/8:1", "11.1.2.3:1", false],
    ["[fd00::/8]:1", "[fd12::1]:1", true],
    ["[::/0]:1", "10.0.0.1:1", false],
    ["0.0.0.0/0:1", "[2001:db8::1]:1", false],
    // Name rules do not apply to literals, nor address rules to names.
    ["*:*", "93.184.215.14:443", false],
    ["*:*", "[2001:db8::1]:443", false],
    ["0.0.0.0/0:*", "example.org:443", false],
  ])("%s, %s: %p", (text, destination, isAllowed) => expect(allows([text], destination)).toBe(isAllowed));

  test("has its own ports", () => {
    const both = ["a.example:80", "*.example:443"];
    expect(["a.example:80", "a.example:443", "b.example:80"].map((each) => allows(both, each))).toEqual([
      true,
      true,
      false,
    ]);
  });

  // A guest may send anything: only the canonical spelling of a destination is judged, so it has one meaning.
  test.each([
    ["Example.org", "name"],
    ["example.org.", "name"],
    ["exam\0ple.org", "name"],
    ["-x.example.org", "name"],
    ["a..example.org", "name"],
    ["*.example.org", "name"],
    ["*", "name"],
    ["", "name"],
    [".example.org", "name"],
    [`${"a.".repeat(126)}ab.example.org`, "name"],
    ["127.1", "name"],
    ["127.0.0.1", "name"],
    ["0x7f.1", "name"],
    ["2130706433", "name"],
    ["::1", "name"],
    ["10.0.0.0/8", "address"],
    ["010.0.0.1", "address"],
    ["::ffff:10.0.0.1", "address"],
    ["2001:DB8::1", "address"],
    ["2001:db8:0::1", "address"],
    ["fe80::1%eth0", "address"],
    ["example.org", "address"],
    ["", "address"],
  ] as const)("%j as a %s is never allowed", (host, kind) => {
    const all = ["*:*", "*.example.org:*", "example.org:*", "0.0.0.0/0:*", "[::/0]:*"].map(rule);
    expect(allowsDestination(all, { kind, host, port: 443 })).toBe(false);
    if (kind === "name") expect(allowsName(all, host)).toBe(false);
  });

  test("does not allow an invalid port", () => {
    for (const port of [0, -1, 65_536, 1.5, Number.NaN]) {
      expect(allowsDestination([rule("example.org:*")], { kind: "name", host: "example.org", port })).toBe(false);
    }
  });

  test("makes a name exist when any of its ports is allowed", () => {
    expect(allowsName([rule("example.org:22")], "example.org")).toBe(true);
    expect(allowsName([rule("example.org:22")], "www.example.org")).toBe(false);
    expect(allowsName([rule("10.0.0.0/8:*")], "10.0.0.1")).toBe(false);
  });
});

describe("the ceiling", () => {
  test.each([
    ["example.org", "example.org:443", true],
    ["example.org", "example.org:22", false],
    ["example.org:443", "example.org:*", false],
    ["example.org:*", "example.org:*", true],
    ["*.example.org", "a.example.org", true],
    ["*.example.org", "*.a.example.org", true],
    ["*.example.org", "*.example.org", true],
    ["*.example.org", "example.org", false],
    ["*.a.example.org", "*.example.org", false],
    ["*.example.org", "*.xexample.org", false],
    ["*", "*.org", true],
    ["*", "example.org", true],
    ["*", "db", false],
    ["*", "*", true],
    ["*.org", "*", false],
    ["*:*", "10.0.0.1:80", false],
    ["*:*", "0.0.0.0/0:80", false],
    ["0.0.0.0/0:*", "example.org", false],
    ["10.0.0.0/8:*", "10.0.7.0/24:5432", true],
    ["10.0.7.0/24:*", "10.0.0.0/8:5432", false],
    ["10.0.7.0/24:*", "10.0.8.0/24:5432", false],
    ["10.0.7.1:*", "10.0.7.1/32:5432", true],
    ["0.0.0.0/0:*", "[::ffff:10.0.0.1]:80", true],
    ["[::/0]:*", "[::ffff:10.0.0.1]:80", false],
    ["[::/0]:*", "[2001:db8::/32]:80", true],
    ["[2001:db8::/32]:*", "[2001:db8:1::/48]:80", true],
    ["[2001:db8::/33]:*", "[2001:db8:8000::/34]:80", false],
  ])("%s, %s: %p", (ceiling, wish, isCovered) => expect(covers([rule(ceiling)], rule(wish))).toBe(isCovered));

  test("covers the ports of a rule by several rules, but its hosts only by one", () => {
    expect(covers([rule("*.example:80"), rule("a.example:443")], rule("a.example"))).toBe(true);
    expect(covers([rule("10.0.0.0/9:1"), rule("10.128.0.0/9:1")], rule("10.0.0.0/8:1"))).toBe(false);
    expect(covers([], rule("a.example"))).toBe(false);
  });

  test("covers only rules that allow nothing beyond it, for random rules", () => {
    const random = seededRandom(14);
    const pick = <T>(values: readonly T[]): T => values[random.below(values.length)] as T;
    const labels = ["a", "b", "ab", "xn--a", "_b"];
    const name = (): string => Array.from({ length: 1 + random.below(4) }, () => pick(labels)).join(".");
    const v4 = (): string => `${pick([10, 11])}.${pick([0, 128])}.0.${pick([0, 1, 128])}`;
    const v6 = (): string =>
      `${pick(["fd00", "fe00", "::ffff", "2001:db8"])}:${pick(["0", "8000"])}:${pick(["0", "1"])}`;
    const address = (): string => canonicalAddress(random.below(2) === 0 ? v4() : padded(v6())) ?? "";
    const padded = (text: string): string => (text.startsWith("::") ? text : `${text}::`);
    const range = (): string => zeroed(address(), random);
    const host = (): string => pick([name, () => `*.${name()}`, () => "*", address, range])();
    const ports = (): NetworkPorts => (random.below(3) === 0 ? "*" : Array.from({ length: 1 + random.below(2) }, port));
    const port = (): number => pick([80, 443, 5432]);
    let covered = 0;
    let allowed = 0;
    for (let round = 0; round < 20_000; round++) {
      const ceiling = Array.from({ length: 1 + random.below(3) }, () => parseRule(host(), ports(), "f"));
      const wish = parseRule(host(), ports(), "f");
      const isCovered = covers(ceiling, wish);
      if (isCovered) covered++;
      expect(covers([wish], wish)).toBe(true);
      for (let each = 0; each < 4; each++) {
        const kind = pick(["name", "address"] as const);
        const destination: Destination = { kind, host: kind === "name" ? name() : address(), port: port() };
        if (!allowsDestination([wish], destination)) continue;
        allowed++;
        if (isCovered && !allowsDestination(ceiling, destination)) {
          throw new Error(`${JSON.stringify({ ceiling, wish, destination })}`);
        }
      }
    }
    expect(covered).toBeGreaterThan(1000);
    expect(allowed).toBeGreaterThan(1000);
  });

  test("any text is a rule in its canonical spelling, or is refused with the field", () => {
    const random = seededRandom(41);
    const alphabet = "aB01x.*-_:/[]%@ \n\0üf";
    let accepted = 0;
    for (let round = 0; round < 50_000; round++) {
      const text = Array.from({ length: random.below(9) }, () => alphabet[random.below(alphabet.length)]).join("");
      try {
        const parsed = parseRule(text, "*", "f");
        accepted++;
        expect(parseRule(parsed.host, "*", "f")).toEqual(parsed);
        expect(rule(ruleText(parsed))).toEqual(parsed);
        if (isHostName(parsed.host)) expect(canonicalAddress(parsed.host)).toBeNull();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        expect(error.details["field"]).toBe("f.host");
      }
    }
    expect(accepted).toBeGreaterThan(500);
  });
});

/** A range of random length around an address. */
function zeroed(address: string, random: ReturnType<typeof seededRandom>): string {
  const isV4 = !address.includes(":");
  const bits = isV4 ? [0, 8, 9, 24, 25, 32] : [0, 7, 8, 32, 33, 48, 128];
  for (const length of bits.sort(() => random.below(3) - 1)) {
    try {
      return parseHostText(`${address}/${length}`).host;
    } catch {
      // The address has bits beyond this length, so another length is tried.
    }
  }
  return address;
}
