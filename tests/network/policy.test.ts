import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { FORBIDDEN, OWN_ADDRESS } from "../support/network/bystander.ts";
import { entryOf, Guest, verdicts } from "../support/network/guest.ts";
import { ring } from "../support/network/ring.ts";
import { ADDRESSES } from "../support/network/site/site.ts";
import { type Body, resultOf } from "../support/runs.ts";

setDefaultTimeout(180_000);

const CA = "/usr/local/share/ca.crt";
/** Addresses of the guest itself: connections to these do not leave it. */
const OF_THE_GUEST = /^(?:127\.|0\.|::1$|::\d+\.|192\.0\.2\.2$|198\.18\.)/;

/** Rules that permit private addresses and names that lead to them, as far as rules can. */
const ALLOW = [
  { host: "*.test", ports: "*" },
  { host: "20.0.0.0/16", ports: "*" },
  { host: "2600:7::/32", ports: "*" },
  ...["10.0.0.0/8", "64:ff9b::/96", "2002::/16", "fd00::/8"].map((host) => ({ host, ports: [80] })),
];

let guest: Guest;

beforeAll(async () => {
  guest = await Guest.start({ network: { allow: ALLOW } });
});

afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

/** Runs the command with curl's quiet flags for each target, and returns the exit code and output of each. */
async function curls(targets: readonly string[], on = guest): Promise<string[]> {
  const each = targets.map((target) => `out=$(curl -s -g -m 8 ${target}); echo "$?:$out"`);
  return (await on.output(each.join("\n"))).split("\n");
}

/** Results of the probe's connections, by host. */
async function probed(port: number, hosts: readonly string[]): Promise<Map<string, string>> {
  const lines = (await guest.probe(`each ${port} ${hosts.join(" ")}`)).split("\n");
  return new Map(lines.map((line) => line.split(": ") as [string, string]));
}

describe("addresses that are not public", () => {
  test("are refused in every spelling, and no host there is contacted", async () => {
    const { bystander } = ring().site;
    const outside = [...FORBIDDEN.v4, ...FORBIDDEN.v6].filter((address) => !OF_THE_GUEST.test(address));
    const written = outside.flatMap((address) => (address.includes(":") ? [address] : spellings(address)));
    const answers = await probed(80, written);
    expect(answers.size).toBe(new Set(written).size);
    expect([...answers].filter(([, answer]) => !["EHOSTUNREACH", "EACCES", "EAI_NONAME"].includes(answer))).toEqual([]);
    expect(bystander.seen).toEqual([]);
  });

  test("are refused when a name has them, one or among others", async () => {
    const { bystander, names } = ring().site;
    const all = [...FORBIDDEN.v4, ...FORBIDDEN.v6];
    for (const [index, address] of all.entries()) names.set(`bad-${index}.test`, address);
    names.set("mixed.test", "169.254.169.254", ADDRESSES.web, "::1");
    const bad = [...all.keys()].map((index) => `bad-${index}.test`);
    // Few enough for the limit of connections a second.
    const answers = [...(await probed(80, [...bad, "mixed.test"])), ...(await probed(443, bad.slice(0, 5)))];
    expect(answers.filter(([, answer]) => answer !== "EHOSTUNREACH")).toEqual([]);
    expect(bystander.seen).toEqual([]);
  });

  test("are refused when a name has another address the next time", async () => {
    const { bystander, names } = ring().site;
    let turn = 0;
    names.setAnswer("rebinding.test", () => ({
      addresses: [turn++ % 2 === 0 ? ADDRESSES.web : "169.254.169.254"],
      ttl: 0,
    }));
    for (let round = 0; round < 6; round += 1) {
      expect(["connected", "EHOSTUNREACH"]).toContain(
        (await probed(80, ["rebinding.test"])).get("rebinding.test") ?? "",
      );
    }
    expect(bystander.seen).toEqual([]);
  });

  test("are refused when a server redirects there", async () => {
    const { bystander } = ring().site;
    const targets = ["169.254.169.254", "10.0.7.5", OWN_ADDRESS].map((to) => `-L 'http://www.test/to?http://${to}/'`);
    expect(new Set(await curls(targets))).toEqual(new Set(["7:"]));
    expect(bystander.seen).toEqual([]);
  });

  test("are refused where the daemon and its registry listen", async () => {
    const { appliance, site } = ring();
    const { port } = new URL(appliance.url);
    site.names.set("daemon.test", "127.0.0.1");
    site.names.set("self.test", OWN_ADDRESS);
    const answers = await probed(Number(port), ["daemon.test", "self.test", OWN_ADDRESS]);
    expect([...answers.values()]).toEqual(["EHOSTUNREACH", "EHOSTUNREACH", "EHOSTUNREACH"]);
  });
});

/** Texts that some programs accept as an IPv4 address. */
function spellings(address: string): string[] {
  const [a = 0, b = 0, c = 0, d = 0] = address.split(".").map(Number);
  const whole = ((a << 24) | (b << 16) | (c << 8) | d) >>> 0;
  const hex = (value: number): string => `0x${value.toString(16)}`;
  const mapped = `${((a << 8) | b).toString(16)}:${((c << 8) | d).toString(16)}`;
  return [
    ...[address, `${whole}`, hex(whole), `0${whole.toString(8)}`, `${hex(a)}.${hex(b)}.${hex(c)}.${hex(d)}`],
    ...[`0${a.toString(8)}.0${b.toString(8)}.0${c.toString(8)}.0${d.toString(8)}`, `${a}.${b}.${(c << 8) | d}`],
    ...[`${a}.${(b << 16) | (c << 8) | d}`, `::ffff:${address}`, `::ffff:${mapped}`, `64:ff9b::${mapped}`],
    ...[`2002:${mapped}::1`, `::ffff:0:${mapped}`, `2600:7::5efe:${mapped}`, `fe80::5efe:${mapped}%lo`],
  ];
}

describe("TLS to port 443", () => {
  test("must ask for the name that was opened", async () => {
    const { web } = ring().site;
    const before = web.requestsTo("other.test").length;
    const answers = await curls([
      `--cacert ${CA} https://www.test/bytes/3 -o /dev/null`,
      // Another name in the ClientHello, no name, and no TLS at all.
      `--cacert ${CA} --connect-to other.test:443:www.test:443 https://other.test/bytes/3 -o /dev/null`,
      "http://www.test:443/bytes/3 -o /dev/null",
    ]);
    expect(answers).toEqual(["0:", "35:", expect.stringMatching(/^(?:56|52):$/)]);
    const nameless = await guest.run("openssl s_client -noservername -connect www.test:443 < /dev/null 2>&1");
    expect(nameless.code).not.toBe(0);
    expect(web.requestsTo("other.test").length).toBe(before);
  });

  test("may be anything if the request allows it", async () => {
    await using any = await Guest.start({ network: { allow: [{ host: "www.test" }], tls: "any" } });
    const targets = ["--connect-to other.test:443:www.test:443 https://other.test/bytes/3 -o /dev/null"];
    expect(
      await curls(
        targets.map((target) => `--cacert ${CA} ${target}`),
        any,
      ),
    ).toEqual(["0:"]);
  });
});

describe("a request", () => {
  const refused = async (network: object): Promise<[number, Body]> => {
    const { appliance, image } = ring();
    const answer = await appliance.post("/instances", { image, command: "true", network });
    return [answer.status, (await answer.json()) as Body];
  };

  test.each([
    [{ host: "www.example" }, "www.example"],
    [{ host: "*" }, "*"],
    [{ host: "8.8.8.8", ports: [53] }, "8.8.8.8"],
    [{ host: "20.0.0.0/8" }, "20.0.0.0/8"],
    [{ host: "10.0.7.5", ports: [5432] }, "10.0.7.5"],
  ])("for more than the operator permits, %j, is refused, and the answer names the rule", async (rule, named) => {
    const [status, { error, message }] = await refused({ allow: [{ host: "www.test" }, rule] });
    expect([status, error]).toEqual([403, "forbidden"]);
    expect(String(message)).toContain(named);
  });

  test("with malformed rules is refused", async () => {
    for (const host of ["", "http://www.test", "www.test/", "10.0.0.1/8", "127.1", "0x7f.1", "*.*.test", "a b"]) {
      expect((await refused({ allow: [{ host }] }))[0]).toBe(400);
    }
  });

  test("needs the scope", async () => {
    const { appliance, image } = ring();
    const token = await appliance.createToken("tester", "--scope", "instances:spawn");
    const request = { image, command: "true", disposable: true };
    const allow = [{ host: "www.test" }];
    const answer = await appliance.post("/instances", { ...request, network: { allow } }, token);
    expect([answer.status, JSON.stringify(await answer.json())]).toEqual([
      403,
      expect.stringContaining("instances:network"),
    ]);
    expect((await appliance.post("/instances", { ...request, network: "none" }, token)).status).toBe(201);
  });
});

test("a host that the request does not permit is denied, even if the operator permits it", async () => {
  const { nameServer, web } = ring().site;
  await using narrow = await Guest.start({ network: { allow: [{ host: "www.test", ports: [80] }] } });
  const asked = nameServer.asked.length;
  const seen = web.seen.length;
  const answers = await curls(
    ["http://deb.test/", "http://www.test:8080/", `http://${ADDRESSES.web}/`, `http://[${ADDRESSES.web6}]/`],
    narrow,
  );
  expect(answers).toEqual(["6:", "7:", "7:", "7:"]);
  expect(nameServer.asked.slice(asked).filter((question) => question.includes("deb.test"))).toEqual([]);
  expect(web.seen.length).toBe(seen);
  const { audit } = await narrow.end();
  expect(verdicts(audit, "deb.test")).toEqual([expect.stringMatching(/^null denied \d+$/)]);
  // The rules have the name, so it was looked up.
  expect(verdicts(audit, "www.test")).toEqual(["8080 denied 1", expect.stringMatching(/^null allowed \d+$/)]);
  expect(verdicts(audit, ADDRESSES.web)).toEqual(["80 denied 1"]);
});

test("a run is recorded, and its policy is enough for the next", async () => {
  const { appliance, image, site } = ring();
  const command = `curl -sS http://www.test/bytes/5 -o /dev/null && curl -sS --cacert ${CA} https://npm.test/bytes/6 -o /dev/null`;
  const first = resultOf(await appliance.run(image, command, { network: { record: true }, disposable: true }));
  expect([first.exit_code, first.err]).toEqual([0, ""]);
  const { policy, entries } = first["network"] as { policy: object[]; entries: Body[] };
  expect(policy).toEqual([
    { host: "npm.test", ports: [443] },
    { host: "www.test", ports: [80] },
  ]);
  const seen = site.web.seen.length;
  const again = await appliance.run(image, `${command} && ! curl -s http://npm.test/`, {
    network: { allow: policy },
    disposable: true,
  });
  expect(resultOf(again).exit_code).toBe(0);
  expect(site.web.seen.length - seen).toBe(2);
  expect(entries.map(({ host, port, verdict, connections }) => [host, port, verdict, connections])).toEqual([
    ["www.test", 80, "allowed", 1],
    ["npm.test", 443, "allowed", 1],
  ]);
});

test("an idle guest with a network sends nothing, and causes no look-up", async () => {
  const { site } = ring();
  await using idle = await Guest.start();
  const before = site.contacts;
  await idle.output("sleep 5");
  const { audit } = await idle.end();
  expect(audit).toEqual({ entries: [], truncated: false });
  expect(site.contacts).toBe(before);
});

test("the audit has the refused connections, with the reasons", async () => {
  const { audit } = await guest.end();
  expect(entryOf(audit, "bad-0.test", "denied_private").port).toBe(80);
  expect(verdicts(audit, "10.0.7.5")).toEqual([expect.stringMatching(/^80 denied_private \d+$/)]);
  expect(verdicts(audit, "169.254.169.254")).toEqual([expect.stringMatching(/^80 denied \d+$/)]);
  expect(verdicts(audit, "www.test")).toContainEqual(expect.stringMatching(/^443 denied_sni [23]$/));
  expect(ring().site.bystander.seen).toEqual([]);
});
