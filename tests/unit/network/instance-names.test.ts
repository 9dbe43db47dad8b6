/** Queries of a guest for names, between a scripted agent and a stand-in for the connecting process. */

import { expect, test } from "bun:test";
import { NetworkScene } from "../../support/network-scene.ts";
import { turns } from "../../support/waiting.ts";

test("names that no rule allows do not exist, and no name server gets a query for them", async () => {
  await using scene = await NetworkScene.open();
  expect(await scene.resolve("secret.attacker.com")).toBe(3);
  expect(await scene.resolve("1.2.3.4")).toBe(3);
  expect(await scene.resolve("-a.example")).toBe(3);
  expect(scene.gate.resolved).toEqual([]);
  expect(scene.entries()).toEqual([
    "denied secret.attacker.com:null 1 0/0",
    "denied 1.2.3.4:null 1 0/0",
    "denied -a.example:null 1 0/0",
  ]);
});

test("a name is resolved once a minute, and every query counts", async () => {
  await using scene = await NetworkScene.open();
  expect(await scene.resolve("a.example")).toBe(0);
  expect(await scene.resolve("a.example")).toBe(0);
  expect(scene.gate.resolved).toEqual(["a.example"]);
  scene.nowMs += 60_000;
  expect(await scene.resolve("a.example")).toBe(0);
  expect(scene.gate.resolved).toEqual(["a.example", "a.example"]);
  expect(scene.entries()).toEqual(["allowed a.example:null 3 0/0"]);
  expect(await scene.resolve("gone.example")).toBe(3);
  expect(await scene.resolve("gone.example")).toBe(3);
  expect(scene.entries()).toEqual(["allowed a.example:null 3 0/0", "no_such_name gone.example:null 2 0/0"]);
  expect(scene.gate.resolved.length).toBe(3);
  // The name may exist soon.
  scene.gate.names = new Set(["gone.example"]);
  scene.nowMs += 5000;
  expect(await scene.resolve("gone.example")).toBe(0);
});

test("a name whose name server does not answer can be queried again at once", async () => {
  await using scene = await NetworkScene.open();
  scene.gate.failure = "timed_out";
  expect(await scene.resolve("a.example")).toBe(2);
  scene.gate.failure = null;
  expect(await scene.resolve("a.example")).toBe(0);
  expect(scene.entries()).toEqual(["timed_out a.example:null 1 0/0", "allowed a.example:null 1 0/0"]);
});

test("names without connections are in the audit and the events, but do not count as connections in the metrics", async () => {
  await using scene = await NetworkScene.open();
  scene.gate.names = new Set(["data-1.example", "data-2.example", "a.example"]);
  for (const name of ["data-1.example", "a.example", "data-2.example"]) expect(await scene.resolve(name)).toBe(0);
  await scene.connect("a.example");
  expect(await scene.resolve("a.example")).toBe(0);
  scene.ask("data-2.example", 22);
  expect(scene.entries()).toEqual([
    ...["allowed data-1.example:null 1 0/0", "allowed data-2.example:null 1 0/0"],
    ...["allowed a.example:80 1 0/0", "denied data-2.example:22 1 0/0"],
  ]);
  expect(scene.events).toEqual([
    ...["allowed data-1.example:null", "allowed a.example:null", "allowed data-2.example:null"],
    ...["allowed a.example:80", "denied data-2.example:22"],
  ]);
  expect(scene.verdicts).toEqual(["allowed", "denied"]);
});

test("names with an open query when the instance ends are counted once", async () => {
  const scene = await NetworkScene.open();
  const held = Promise.withResolvers<void>();
  scene.gate.held = held.promise;
  const answer = scene.resolve("a.example");
  await turns();
  await scene.network[Symbol.asyncDispose]();
  expect(scene.entries()).toEqual(["allowed a.example:null 1 0/0"]);
  held.resolve();
  await answer;
  await turns();
  expect(scene.entries()).toEqual(["allowed a.example:null 1 0/0"]);
});
