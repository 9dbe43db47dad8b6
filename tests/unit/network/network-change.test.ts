/** The network of an instance that is changed while the instance runs. */

import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../src/domain/errors.ts";
import type { NetworkRequest } from "../../../src/domain/network.ts";
import { CHANGES_COUNT_MAX, POLICIES_COUNT_MAX } from "../../../src/supervisor/network/policies.ts";
import { Rcode } from "../../../src/vm/agent/guest-network.ts";
import { AgentFrame, HostFrame, Refusal } from "../../../src/vm/agent/protocol.ts";
import { text } from "../../support/guests/agent-script.ts";
import { NetworkScene, rule } from "../../support/network-scene.ts";
import { turns } from "../../support/waiting.ts";

const policy = (allow: NetworkRequest["allow"], more: Partial<NetworkRequest> = {}): NetworkRequest => ({
  ...{ allow, tls: "sni", record: false },
  ...more,
});

describe("a change of the network", () => {
  test("is in force for the next connection and lookup, in both directions and within the ceiling", async () => {
    await using scene = await NetworkScene.open();
    scene.gate.names = new Set(["a.example", "a.org"]);
    expect([await scene.resolve("a.example"), await scene.resolve("a.org")]).toEqual([Rcode.ok, Rcode.noSuchName]);
    scene.network.change(policy([rule("*.org"), rule("*.com")]));
    expect([await scene.resolve("a.example"), await scene.resolve("a.org")]).toEqual([Rcode.noSuchName, Rcode.ok]);
    const answers = ["a.example", "a.org", "a.com"].map((host) => scene.ask(host));
    await turns();
    expect(answers.map((id) => scene.answer(id))).toEqual([Refusal.denied, "accepted", Refusal.denied]);
  });

  test("resets the open connections that no rule permits any more, and leaves the others alone", async () => {
    await using scene = await NetworkScene.open();
    const lost = await scene.connect("a.example");
    const kept = await scene.connect("db.example");
    const address = await scene.connect("x.example", 443);
    const literal = scene.ask([192, 0, 2, 7], 5432);
    await turns();
    scene.nowMs = 5000;
    // The address of the literal is permitted by another rule than before; that of x.example is no reason to keep it.
    scene.network.change(policy([rule("db.example", [80]), rule("192.0.2.7", "*")]));
    await turns();
    expect([lost, kept, address].map(({ outer }) => outer.wasReset)).toEqual([true, false, true]);
    expect([lost, address].map(({ id }) => scene.typesOf(id).at(-1))).toEqual([HostFrame.netReset, HostFrame.netReset]);
    kept.outer.send("still here");
    scene.guest.send(AgentFrame.netData, kept.id, text("and I"));
    await turns();
    expect([scene.received(kept.id), Buffer.concat(kept.outer.written).toString()]).toEqual(["still here", "and I"]);
    expect([scene.answer(literal), scene.openCount]).toEqual(["accepted", 2]);
    expect(scene.events.slice(-4)).toEqual([
      ...["changed, 2 reset", "denied a.example:80", "denied x.example:443", "allowed x.example:443"],
    ]);
    expect(scene.audit().policies).toEqual([
      {
        since: new Date(1_000_000).toISOString(),
        network: { allow: [rule("*.example"), rule("192.0.2.0/24", [5432])], tls: "sni" },
        connections_reset: 0,
      },
      {
        since: new Date(1_005_000).toISOString(),
        network: { allow: [rule("db.example", [80]), rule("192.0.2.7", "*")], tls: "sni" },
        connections_reset: 2,
      },
    ]);
    expect(scene.entries()).toEqual([
      ...["allowed a.example:80 1 0/0", "allowed db.example:80 1 5/10", "allowed 192.0.2.7:5432 1 0/0"],
      ...["denied a.example:80 1 0/0", "denied x.example:443 1 0/0", "allowed x.example:443 1 0/0"],
    ]);
  });

  test("refuses a connection that is being opened, whether or not the gate has connected meanwhile", async () => {
    await using scene = await NetworkScene.open();
    const gate = Promise.withResolvers<void>();
    scene.gate.held = gate.promise;
    const [waiting, racing] = [scene.ask("a.example"), scene.ask("db.example")];
    await turns();
    scene.network.change(policy([rule("db.example")]));
    expect(scene.answer(racing)).toBeNull();
    await turns();
    expect([scene.answer(waiting), scene.gate.connections.length]).toEqual([Refusal.unreachable, 0]);
    gate.resolve();
    // The gate has connected, but the guest's side does not know it yet.
    scene.network.change(policy([rule("a.org")]));
    await turns();
    expect(scene.answer(racing)).toBe(Refusal.unreachable);
    expect(scene.gate.connections.map(({ wasReset }) => wasReset)).toEqual([true]);
    expect(scene.openCount).toBe(0);
    expect(scene.entries()).toEqual([
      ...["denied a.example:80 1 0/0", "allowed a.example:80 1 0/0"],
      ...["denied db.example:80 1 0/0", "allowed db.example:80 1 0/0"],
    ]);
  });

  test("hides a name that is being looked up", async () => {
    await using scene = await NetworkScene.open();
    const gate = Promise.withResolvers<void>();
    scene.gate.held = gate.promise;
    const code = scene.network.resolve({ type: 1, name: "a.example" });
    scene.network.change(null);
    gate.resolve();
    expect(await code).toBe(Rcode.noSuchName);
    expect(scene.entries()).toEqual(["allowed a.example:null 1 0/0"]);
  });

  test("resets a connection whose TLS was not judged, when it has to be", async () => {
    await using scene = await NetworkScene.open({ tls: "any" });
    const [unjudged, plain] = [await scene.connect("a.example", 443), await scene.connect("a.example", 80)];
    scene.network.change(policy([rule("*.example")]));
    const judged = await scene.connect("a.example", 443);
    scene.network.change(policy([rule("*.example")], { tls: "any" }));
    expect([unjudged, plain, judged].map(({ outer }) => outer.wasReset)).toEqual([true, false, false]);
  });

  test("gives an instance a network that it did not have, and takes it away", async () => {
    await using scene = await NetworkScene.open(null);
    expect([scene.network.wasOn, scene.network.audit()]).toEqual([false, null]);
    void scene.agent.network(scene.network);
    scene.network.change(policy([rule("*.example")]));
    const { outer } = await scene.connect("a.example");
    scene.network.change(null);
    expect(outer.wasReset).toBe(true);
    const late = scene.ask("a.example");
    await turns();
    expect([scene.answer(late), await scene.resolve("a.example")]).toEqual([Refusal.noNetwork, Rcode.noSuchName]);
    expect(scene.audit().policies?.map(({ network, connections_reset }) => [network, connections_reset])).toEqual([
      ["none", 0],
      [{ allow: [rule("*.example")], tls: "sni" }, 0],
      ["none", 1],
    ]);
    expect(scene.network.wasOn).toBe(true);
  });

  test("keeps the record of what was reached", async () => {
    await using scene = await NetworkScene.open({ record: true, allow: [] });
    await scene.connect("a.org", 80);
    scene.network.change(policy([rule("a.org", [80]), rule("*.example")]));
    await scene.connect("b.example", 80);
    expect(scene.gate.connections.map(({ wasReset }) => wasReset)).toEqual([false, false]);
    expect(scene.audit().policy).toEqual([rule("a.org", [80]), rule("b.example", [80])]);
    expect(scene.audit().policies?.[0]?.network).toEqual({ tls: "sni", record: true });
    await using plain = await NetworkScene.open();
    await plain.connect("a.example", 80);
    plain.network.change(policy([], { record: true }));
    await plain.connect("a.org", 80);
    expect(plain.audit().policy).toEqual([rule("a.example", [80]), rule("a.org", [80])]);
  });

  test("is counted and bounded, and so is what the audit keeps of it", async () => {
    await using scene = await NetworkScene.open();
    const long = policy(Array.from({ length: 256 }, (_, index) => rule(`${"x".repeat(60)}-${index}.example`)));
    scene.network.change(long);
    expect(scene.audit()).toMatchObject({ truncated: false, policies: [{}, { rules_truncated: true }] });
    for (let count = 1; count < CHANGES_COUNT_MAX; count += 1) scene.network.change(count % 2 === 0 ? null : long);
    const { policies = [], truncated } = scene.audit();
    expect([policies.length, truncated]).toEqual([POLICIES_COUNT_MAX, true]);
    expect(policies[0]?.network).toMatchObject({ allow: [rule("*.example"), {}] });
    expect(policies.at(-1)?.network).not.toBe("none");
    expect(JSON.stringify(policies).length).toBeLessThan(POLICIES_COUNT_MAX * 5000);
    const before = scene.network.policy;
    const error = ((): unknown => {
      try {
        return scene.network.change(null);
      } catch (thrown) {
        return thrown;
      }
    })();
    expect(error).toBeInstanceOf(ApiError);
    expect([(error as ApiError).code, scene.network.policy]).toEqual(["conflict", before]);
  });
});
