/** Networks that permit what the operator allows except some ranges: the checks of a request, and the judgement of connections. */

import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../src/domain/errors.ts";
import {
  type Destination,
  type NetworkInput,
  type NetworkRequest,
  type NetworkRule,
  networkInputOf,
} from "../../../src/domain/network.ts";
import { judge } from "../../../src/network/gate/dial.ts";
import { GateError } from "../../../src/network/gate.ts";
import { networkOf } from "../../../src/service/network.ts";
import { NetworkJudge } from "../../../src/supervisor/network/judge.ts";
import { AgentFrame, Refusal } from "../../../src/vm/agent/protocol.ts";
import { text } from "../../support/guests/agent-script.ts";
import { NetworkScene, rule } from "../../support/network-scene.ts";
import { turns } from "../../support/waiting.ts";

const EVERYTHING = ["*", "0.0.0.0/0", "::/0"].map((host) => rule(host, "*"));
const ALL_RANGES = ["0.0.0.0/0", "::/0"];
const LIMITS = { allow: EVERYTHING, record: true };

const denying = (deny: readonly string[], allow: readonly NetworkRule[] = []): NetworkRequest => ({
  ...{ allow, deny, tls: "sni", record: false },
});
const toName = (host: string, port = 80): Destination => ({ kind: "name", host, port });
const toAddress = (host: string, port = 80): Destination => ({ kind: "address", host, port });

function failureOf(input: NetworkInput, limits = LIMITS): unknown {
  try {
    return networkOf(input, limits);
  } catch (error) {
    return error instanceof ApiError ? [error.code, error.details?.["field"]] : error;
  }
}

describe("a request", () => {
  test("with the default allow has its ranges in one spelling, and the same wire form", () => {
    const request = networkOf({ default: "allow", deny: ["::ffff:10.0.0.0/104", "192.0.2.7"] }, LIMITS);
    expect(request).toEqual(denying(["10.0.0.0/8", "192.0.2.7"]));
    expect(networkOf(networkInputOf(request), LIMITS)).toEqual(request);
    expect(networkOf({ default: "allow" }, LIMITS)).toEqual(denying([]));
  });

  test("that was stored without ranges permits its rules alone", () => {
    const stored: NetworkRequest = { allow: [rule("a.example")], tls: "sni", record: false };
    expect(networkInputOf(stored)).toEqual({ allow: [rule("a.example")], tls: "sni" });
    const judge = new NetworkJudge({ allow: EVERYTHING, private: { names: [], ranges: [] } }, stored);
    expect([judge.allows(toName("a.example")), judge.allows(toName("b.example"))]).toEqual([true, false]);
    expect(judge.allows(toAddress("1.1.1.1"))).toBeFalse();
  });

  test.each<[string, NetworkInput, unknown]>([
    ["ranges without the default allow", { allow: [rule("a.example")], deny: ["10.0.0.0/8"] }, "network.deny"],
    ["a name as a range", { default: "allow", deny: ["10.0.0.0/8", "a.example"] }, "network.deny.1"],
    ["all names as a range", { default: "allow", deny: ["*"] }, "network.deny.0"],
    ["bits after the prefix", { default: "allow", deny: ["10.0.0.1/8"] }, "network.deny.0"],
    ["too many ranges", { default: "allow", deny: Array(10_000).fill("10.0.0.0/8") }, "network.deny"],
    ["too many exceptions", { default: "allow", allow: Array(257).fill(rule("a.example")) }, "network.allow"],
    ["a recorded run", { default: "allow", record: true }, "network.default"],
  ])("is refused for %s", (_, input, field) => {
    expect(failureOf(input)).toEqual(["validation_error", field]);
  });

  test("may not except what the operator does not allow, nor have anything when he allows nothing", () => {
    const limits = { allow: [rule("*.example")], record: false };
    const input = { default: "allow", allow: [rule("a.org")] } as const;
    expect(failureOf(input, limits)).toEqual(["forbidden", "network.allow.0"]);
    expect(failureOf({ default: "allow" }, { allow: [], record: false })).toEqual(["forbidden", "network"]);
  });
});

describe("the judge", () => {
  const operator = { allow: [rule("*.example", "*"), rule("0.0.0.0/0", [80])], private: { names: [], ranges: [] } };
  const judgeOf = (deny: readonly string[], allow: readonly NetworkRule[] = []) =>
    new NetworkJudge(operator, denying(deny, allow));

  test("permits what the operator allows and no range has", () => {
    const judge = judgeOf(["10.0.0.0/8"]);
    expect([toName("a.example"), toAddress("1.1.1.1")].map((each) => judge.allows(each))).toEqual([true, true]);
    const refused = [toName("a.org"), toAddress("10.1.2.3"), toAddress("1.1.1.1", 443)];
    expect(refused.map((each) => judge.allows(each))).toEqual([false, false, false]);
  });

  test("lets a rule win over a range, at its ports", () => {
    const judge = judgeOf(ALL_RANGES, [rule("8.8.8.0/24", [80]), rule("a.example", [443])]);
    expect(judge.allows(toAddress("8.8.8.8"))).toBeTrue();
    expect(judge.allows(toAddress("1.1.1.1"))).toBeFalse();
    expect([judge.allows(toName("a.example", 443)), judge.allows(toName("a.example", 80))]).toEqual([true, false]);
  });

  test("tells no name to a request that denies all addresses, but those of its rules", () => {
    const judge = judgeOf(ALL_RANGES, [rule("a.example"), rule("8.8.8.8")]);
    expect([judge.allowsName("a.example"), judge.allowsName("b.example")]).toEqual([true, false]);
    expect(judge.allows(toName("b.example"))).toBeFalse();
  });

  test("sends the gate the ranges for names, without those that a rule permits at the port", () => {
    const judge = judgeOf(["8.0.0.0/8"], [rule("8.8.8.8", [80]), rule("a.example")]);
    const except = (destination: Destination) => judge.reach(destination).denied?.except;
    expect(except(toName("b.example", 80))).toEqual(["8.8.8.8"]);
    expect(except(toName("b.example", 443))).toEqual([]);
    expect(judge.reach(toName("a.example")).denied).toBeUndefined();
    expect(judge.reach(toAddress("9.9.9.9")).denied).toBeUndefined();
  });

  test("sees through IPv6 addresses that lead to a range", () => {
    const open = { allow: EVERYTHING, private: { names: [], ranges: [] } };
    const judge = new NetworkJudge(open, denying(["8.8.8.0/24"]));
    for (const address of ["64:ff9b::808:808", "2002:808:808::1"]) {
      expect(judge.allows(toAddress(address))).toBeFalse();
    }
    expect(judge.allows(toAddress("64:ff9b::909:909"))).toBeTrue();
  });
});

describe("the connecting process", () => {
  const verdictOf = (addresses: readonly string[], anyAddress = false, except: readonly string[] = []): unknown => {
    const denied = { ranges: ["8.0.0.0/8", "127.0.0.0/8"], except };
    const reach = { forbidden: "all-not-public", except: [], anyAddress, denied } as const;
    try {
      judge(addresses, { port: 80, reach, own: ["203.0.114.9"], ownPorts: [] });
      return "reached";
    } catch (error) {
      return error instanceof GateError ? [error.verdict, ...error.addresses] : error;
    }
  };

  test("refuses a name one of whose addresses is denied", () => {
    expect(verdictOf(["9.9.9.9"])).toBe("reached");
    expect(verdictOf(["9.9.9.9", "8.8.8.8"])).toEqual(["denied", "8.8.8.8"]);
    expect(verdictOf(["9.9.9.9", "::ffff:8.8.8.8"])).toEqual(["denied", "::ffff:8.8.8.8"]);
    expect(verdictOf(["8.8.8.8"], false, ["8.8.8.8"])).toBe("reached");
  });

  test("denies addresses of a name for which the operator excepts all, and excepts nothing that the operator does not", () => {
    expect(verdictOf(["127.0.0.1"], true)).toEqual(["denied", "127.0.0.1"]);
    expect(verdictOf(["127.0.0.1"], false, ["127.0.0.1"])).toEqual(["denied_private", "127.0.0.1"]);
    expect(verdictOf(["203.0.114.9"], false, ["203.0.114.9"])).toEqual(["denied_private", "203.0.114.9"]);
  });
});

describe("a change to denied ranges", () => {
  // The stand-in connects every name to 203.0.113.5.
  const settings = { allow: EVERYTHING };

  test("resets the connections to their addresses, by name or not, and no others", async () => {
    await using scene = await NetworkScene.open(denying([]), settings);
    const [byName, byRule, literal, other] = [
      await scene.connect("a.example"),
      await scene.connect("db.example"),
      await scene.connect([203, 0, 113, 7]),
      await scene.connect([198, 51, 100, 1]),
    ];
    scene.network.change(denying(["203.0.113.0/24"], [rule("db.example")]));
    await turns();
    expect([byName, byRule, literal, other].map(({ outer }) => outer.wasReset)).toEqual([true, false, true, false]);
    scene.network.change(denying(["198.51.100.1"]));
    expect([byRule, other].map(({ outer }) => outer.wasReset)).toEqual([false, true]);
    scene.guest.send(AgentFrame.netData, byRule.id, text("still here"));
    await turns();
    expect(Buffer.concat(byRule.outer.written).toString()).toBe("still here");
  });

  test("refuses a connection that the gate makes meanwhile", async () => {
    await using scene = await NetworkScene.open(denying([]), settings);
    const gate = Promise.withResolvers<void>();
    scene.gate.held = gate.promise;
    const [racing, permitted] = [scene.ask("a.example"), scene.ask("db.example")];
    await turns();
    scene.network.change(denying(["203.0.113.5"], [rule("db.example")]));
    gate.resolve();
    await turns();
    expect([racing, permitted].map((id) => scene.answer(id))).toEqual([Refusal.denied, "accepted"]);
    expect(scene.gate.connections.map(({ wasReset }) => wasReset)).toEqual([true, false]);
    expect(scene.entries()).toEqual(["denied a.example:80 1 0/0", "allowed db.example:80 1 0/0"]);
    expect(scene.openCount).toBe(1);
  });

  test("has a bounded number of ranges in the audit", async () => {
    await using scene = await NetworkScene.open(denying([]), settings);
    scene.network.change(
      denying(Array.from({ length: 256 }, (_, index) => `2001:db8:aaaa:bbbb:cccc:dddd:${index}::/112`)),
    );
    const [, policy] = scene.audit().policies ?? [];
    expect(JSON.stringify(policy).length).toBeLessThan(5000);
    expect(policy).toMatchObject({ rules_truncated: true, network: { default: "allow" } });
  });

  test("resets what the site's proxy connected by name, because its address is not known", async () => {
    await using scene = await NetworkScene.open(denying([]), settings);
    scene.gate.isProxied = true;
    const { outer } = await scene.connect("a.example");
    scene.network.change(denying(["10.0.0.0/8"]));
    expect(outer.wasReset).toBeTrue();
  });
});
