/** The network of an instance, between a scripted agent and a stand-in for the connecting process. */

import { describe, expect, test } from "bun:test";
import type { GateVerdict } from "../../../src/network/gate.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, Refusal } from "../../../src/vm/agent/protocol.ts";
import { done, text } from "../../support/guests/agent-script.ts";
import { NetworkScene, rule } from "../../support/network-scene.ts";
import { turns } from "../../support/waiting.ts";

describe("access of a guest", () => {
  test.each([
    ["a.example", 80, "accepted"],
    ["a.example", 22, Refusal.denied],
    ["example", 80, Refusal.denied],
    // The ceiling has this rule, the request does not.
    ["a.org", 80, Refusal.denied],
    [[192, 0, 2, 7], 5432, "accepted"],
    [[192, 0, 2, 7], 80, Refusal.denied],
    [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7], 5432, Refusal.denied],
    [[127, 0, 0, 1], 80, Refusal.denied],
  ] as const)("%p, port %p: %p", async (host, port, answer) => {
    await using scene = await NetworkScene.open();
    const id = scene.ask(host, port);
    await turns();
    expect(scene.answer(id)).toBe(answer);
    expect(scene.gate.connections).toHaveLength(answer === "accepted" ? 1 : 0);
  });

  test("is judged only by the ceiling when the run is recorded, whose policy allows the hosts that were reached", async () => {
    await using scene = await NetworkScene.open({ record: true, allow: [] });
    await scene.connect("b.org", 443);
    await scene.connect("a.org", 80);
    await scene.connect("b.org", 80);
    scene.ask("a.com");
    scene.gate.failure = "refused";
    scene.ask("c.org");
    await turns();
    expect(scene.audit().policy).toEqual([rule("a.org", [80]), rule("b.org", [80])]);
    // The port of TLS counts once the server has answered.
    scene.gate.connections[0]?.send("x");
    await turns();
    expect(scene.audit().policy).toEqual([rule("a.org", [80]), rule("b.org", [80, 443])]);
  });

  test("reaches the gate with the name to pin and the excepted addresses", async () => {
    await using scene = await NetworkScene.open();
    await using free = await NetworkScene.open({ tls: "any" });
    const pinned = (await scene.connect("a.example", 443)).outer.request;
    expect(pinned).toEqual({
      account: "a",
      destination: { kind: "name", host: "a.example", port: 443 },
      reach: { forbidden: "all-not-public", except: ["192.0.2.0/24"], anyAddress: false },
      serverName: "a.example",
      idleMs: 600_000,
    });
    expect((await scene.connect("db.example", 80)).outer.request).toMatchObject({
      ...{ reach: { anyAddress: true }, serverName: null },
    });
    expect((await free.connect("a.example", 443)).outer.request.serverName).toBeNull();
  });

  test.each([
    ["denied_private", Refusal.denied],
    ["no_such_name", Refusal.nameGone],
    ["refused", Refusal.refused],
    ["unreachable", Refusal.unreachable],
    ["timed_out", Refusal.timedOut],
    ["limited", Refusal.limited],
  ] as const)("is refused with its reason when the gate says %s", async (verdict: GateVerdict, reason) => {
    await using scene = await NetworkScene.open();
    scene.gate.failure = verdict;
    const id = scene.ask("a.example");
    await turns();
    expect(scene.answer(id)).toBe(reason);
    expect(scene.audit().entries).toMatchObject([
      { host: "a.example", port: 80, verdict, connections: 1, addresses: ["203.0.113.9"] },
    ]);
  });

  test("is unreachable when the gate does not work, and the log reports it", async () => {
    await using scene = await NetworkScene.open();
    scene.gate.failure = new Error("no gate");
    const id = scene.ask("a.example");
    await turns();
    expect(scene.answer(id)).toBe(Refusal.unreachable);
    expect(scene.failures).toEqual([scene.gate.failure]);
  });
});

describe("a connection", () => {
  test("carries and counts bytes in both directions, which end separately", async () => {
    await using scene = await NetworkScene.open();
    const { id, outer } = await scene.connect();
    expect(scene.openCount).toBe(1);
    scene.guest.send(AgentFrame.netData, id, text("GET"));
    scene.guest.send(AgentFrame.netEnd, id);
    await turns();
    expect([Buffer.concat(outer.written).toString(), outer.hasEnded]).toEqual(["GET", true]);
    outer.send("200 OK");
    outer.finish();
    await turns();
    expect(scene.received(id)).toBe("200 OK");
    expect(scene.typesOf(id).at(-1)).toBe(HostFrame.netEnd);
    scene.guest.send(AgentFrame.done, id, done());
    await turns();
    expect(scene.openCount).toBe(0);
    expect(outer.wasReset).toBe(false);
    expect(scene.entries()).toEqual(["allowed a.example:80 1 3/6"]);
    expect(scene.moved).toEqual({ sent: 3, received: 6 });
  });

  test.each(["reset", "idle", "lost"] as const)(
    "whose outer end is %s is reset in the guest, not ended",
    async (how) => {
      await using scene = await NetworkScene.open();
      const { id, outer } = await scene.connect();
      outer.send("part");
      outer.break(how);
      await turns();
      expect(scene.typesOf(id)).not.toContain(HostFrame.netEnd);
      expect(scene.typesOf(id).at(-1)).toBe(HostFrame.netReset);
      expect(scene.openCount).toBe(0);
    },
  );

  test("that the guest resets is reset outside", async () => {
    await using scene = await NetworkScene.open();
    const { id, outer } = await scene.connect();
    scene.guest.send(AgentFrame.netReset, id);
    await turns();
    expect([outer.wasReset, scene.openCount]).toEqual([true, 0]);
  });

  test("that both sides ended lasts until its bytes are passed on", async () => {
    await using scene = await NetworkScene.open();
    const { id, outer } = await scene.connect();
    const full = Promise.withResolvers<void>();
    outer.full = full.promise;
    scene.guest.send(AgentFrame.netData, id, text("first"));
    await turns();
    scene.guest.send(AgentFrame.netData, id, text("last"));
    scene.guest.send(AgentFrame.netEnd, id);
    outer.finish();
    await turns();
    scene.guest.send(AgentFrame.done, id, done());
    await turns();
    full.resolve();
    await turns();
    expect([Buffer.concat(outer.written).toString(), outer.hasEnded, outer.wasReset]).toEqual([
      "firstlast",
      true,
      false,
    ]);
  });

  test("gets no credit while the outer end reads nothing", async () => {
    await using scene = await NetworkScene.open();
    const { id, outer } = await scene.connect();
    outer.full = new Promise(() => undefined);
    scene.guest.send(AgentFrame.netData, id, Buffer.alloc(65_536));
    await turns();
    expect(scene.typesOf(id)).toEqual([HostFrame.netAccept]);
    expect(outer.written.length).toBeLessThanOrEqual(1);
  });

  test("to port 443 counts as allowed when the server answers, and as denied when TLS asks for another name", async () => {
    await using scene = await NetworkScene.open();
    const first = await scene.connect("a.example", 443);
    scene.guest.send(AgentFrame.netData, first.id, text("hello"));
    await turns();
    expect(scene.entries()).toEqual([]);
    first.outer.send("server hello");
    const second = await scene.connect("a.example", 443);
    scene.guest.send(AgentFrame.netData, second.id, text("other"));
    await turns();
    second.outer.break("denied_sni");
    await turns();
    // The gate has passed on none of the bytes that it refuses.
    expect(scene.entries()).toEqual(["allowed a.example:443 1 5/12", "denied_sni a.example:443 1 0/0"]);
    expect(scene.moved).toEqual({ sent: 5, received: 12 });
    expect(scene.verdicts).toEqual(["allowed", "denied_sni"]);
    expect(scene.typesOf(second.id).at(-1)).toBe(HostFrame.netReset);
    const third = await scene.connect("a.example", 443);
    third.outer.send("I speak first");
    await turns();
    scene.guest.send(AgentFrame.netData, third.id, text("other"));
    await turns();
    third.outer.break("denied_sni");
    await turns();
    expect(scene.verdicts.slice(2)).toEqual(["allowed", "denied_sni"]);
    expect(scene.entries()).toEqual(["allowed a.example:443 2 5/25", "denied_sni a.example:443 2 0/0"]);
  });

  test("that the guest abandons before it is open is aborted, and counts: the host may have been reached", async () => {
    await using scene = await NetworkScene.open();
    scene.gate.held = new Promise(() => undefined);
    const id = scene.ask("a.example");
    scene.guest.send(AgentFrame.netReset, id);
    await turns();
    expect(scene.answer(id)).toBeNull();
    expect(scene.entries()).toEqual(["allowed a.example:80 1 0/0"]);
    expect(scene.events).toEqual(["allowed a.example:80"]);
  });
});

describe("limits", () => {
  test("of opens and queries are checked before the gate, and recover with time", async () => {
    await using scene = await NetworkScene.open({}, { opensPerSecond: 2 });
    expect(await scene.resolve("a.example")).toBe(0);
    const opens = Array.from({ length: 8 }, () => scene.ask("a.example"));
    await turns();
    expect(opens.map((id) => scene.answer(id))).toEqual([...Array(7).fill("accepted"), Refusal.limited]);
    expect(await scene.resolve("b.example")).toBe(2);
    expect(scene.gate.connections).toHaveLength(7);
    scene.nowMs += 500;
    const later = [scene.ask("a.example"), scene.ask("a.example")];
    await turns();
    expect(later.map((id) => scene.answer(id))).toEqual(["accepted", Refusal.limited]);
    // Rules are judged first: a denied open uses up no limit.
    const denied = scene.ask("a.com");
    expect(scene.answer(denied)).toBe(Refusal.denied);
  });

  test("of connections include those that are being opened", async () => {
    await using scene = await NetworkScene.open({}, { connectionsMax: 2 });
    const held = Promise.withResolvers<void>();
    scene.gate.held = held.promise;
    const opens = [scene.ask("a.example"), scene.ask("a.example"), scene.ask("a.example")];
    await turns();
    expect(opens.map((id) => scene.answer(id))).toEqual([null, null, Refusal.limited]);
    held.resolve();
    await turns();
    scene.gate.connections[0]?.break("reset");
    await turns();
    // Its place is free when the guest has answered the reset.
    expect(scene.answer(scene.ask("a.example"))).toBe(Refusal.limited);
    scene.guest.send(AgentFrame.netReset, opens[0] ?? 0);
    expect(scene.answer(scene.ask("a.example"))).toBeNull();
  });

  test("of connections include those to ports of the guest", async () => {
    await using scene = await NetworkScene.open({}, { connectionsMax: 2 });
    const dialled = scene.agent.dial(80).catch(() => undefined);
    const { session } = await scene.guest.frame(HostFrame.netDial);
    await scene.connect();
    expect(scene.answer(scene.ask("a.example"))).toBe(Refusal.limited);
    scene.guest.send(AgentFrame.netRefused, session, packIntegers([32, Refusal.refused]));
    await dialled;
    await scene.connect();
  });

  test("of bytes reset the connection that exceeds them, and refuse all others", async () => {
    await using scene = await NetworkScene.open({}, { bytesMax: 10 });
    const { id, outer } = await scene.connect();
    scene.guest.send(AgentFrame.netData, id, text("12345"));
    outer.send("67890");
    await turns();
    expect(scene.received(id)).toBe("67890");
    outer.send("!");
    outer.send("?");
    await turns();
    expect(scene.typesOf(id).at(-1)).toBe(HostFrame.netReset);
    expect(outer.wasReset).toBe(true);
    // Waiting would not help.
    const next = scene.ask("a.example");
    expect(scene.answer(next)).toBe(Refusal.denied);
    expect(scene.entries()).toEqual(["allowed a.example:80 1 5/5", "limited a.example:80 2 0/0"]);
    expect(scene.received(id)).toBe("67890");
  });
});

test("bytes that were refused for their TLS name do not count towards a limit", async () => {
  await using scene = await NetworkScene.open({}, { bytesMax: 10 });
  for (let count = 0; count < 3; count++) {
    const { id, outer } = await scene.connect("a.example", 443);
    scene.guest.send(AgentFrame.netData, id, text("123456"));
    await turns();
    outer.break("denied_sni");
    await turns();
  }
  expect(scene.entries()).toEqual(["denied_sni a.example:443 3 0/0"]);
});

describe("the end of an instance", () => {
  test("waits for the bytes that its programs have sent, but not for connections that are being opened", async () => {
    await using scene = await NetworkScene.open();
    await scene.network.drain(60_000);
    const { id, outer } = await scene.connect();
    scene.gate.held = new Promise(() => undefined);
    scene.ask("a.example");
    await scene.network.drain(1);
    let isDrained = false;
    const drained = scene.network.drain(60_000).then(() => {
      isDrained = true;
    });
    scene.guest.send(AgentFrame.netData, id, text("last"));
    scene.guest.send(AgentFrame.netEnd, id);
    await turns();
    expect([isDrained, outer.hasEnded]).toEqual([false, true]);
    outer.finish();
    await drained;
  });

  test("resets open and opening connections, and answers nothing afterwards", async () => {
    const scene = await NetworkScene.open();
    const { id, outer } = await scene.connect();
    scene.gate.held = new Promise(() => undefined);
    const waiting = scene.ask("a.example");
    await turns();
    await scene.network[Symbol.asyncDispose]();
    expect([outer.wasReset, scene.openCount]).toEqual([true, 0]);
    expect(scene.typesOf(id).at(-1)).toBe(HostFrame.netReset);
    expect(scene.answer(waiting)).toBe(Refusal.unreachable);
    expect(scene.answer(scene.ask("a.example"))).toBe(Refusal.noNetwork);
    expect(await scene.resolve("a.example")).toBe(2);
    expect(scene.entries()).toEqual(["allowed a.example:80 2 0/0"]);
  });

  test("by the loss of its machine resets the outer ends", async () => {
    await using scene = await NetworkScene.open();
    const { outer } = await scene.connect();
    scene.guest.channel.deliver(null);
    await turns();
    expect([outer.wasReset, scene.openCount]).toEqual([true, 0]);
  });
});

test("there is one event for each host, port and verdict", async () => {
  await using scene = await NetworkScene.open();
  for (const _ of [1, 2]) {
    await scene.connect();
    scene.ask("a.example", 22);
    await scene.resolve("a.com");
  }
  expect(scene.events).toEqual(["allowed a.example:80", "denied a.example:22", "denied a.com:null"]);
  expect(scene.verdicts).toHaveLength(6);
  expect(scene.entries()).toEqual([
    "allowed a.example:80 2 0/0",
    "denied a.example:22 2 0/0",
    "denied a.com:null 2 0/0",
  ]);
});
