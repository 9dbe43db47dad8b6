import { describe, expect, test } from "bun:test";
import { RoundRobin } from "../../../src/system/round-robin.ts";
import { ownTurn } from "../../../src/system/turns.ts";

test("ownTurn gives every caller its own turn of the event loop, in the order of the calls", async () => {
  const turns: number[] = [];
  let turn = 0;
  const count = () => {
    turn++;
    if (turns.length < 3) setImmediate(count);
  };
  setImmediate(count);
  const order: string[] = [];
  const take = async (name: string) => {
    await ownTurn();
    order.push(name);
    turns.push(turn);
  };
  await Promise.all(["first", "second", "third"].map(take));
  expect(order).toEqual(["first", "second", "third"]);
  expect(new Set(turns).size).toBe(3);
});

test("ownTurn gives an owner as many turns as before when another one has many waiting calls", async () => {
  const order: string[] = [];
  const take = async (owner: string, name: string) => {
    await ownTurn(owner);
    order.push(name);
  };
  await Promise.all([
    ...["a1", "a2", "a3"].map((name) => take("a", name)),
    ...["b1", "b2"].map((name) => take("b", name)),
    take("c", "c1"),
  ]);
  expect(order).toEqual(["a1", "b1", "c1", "a2", "b2", "a3"]);
});

describe("waiting callers", () => {
  test("are removed when they leave, and their owner with the last of them", () => {
    const waiting = new RoundRobin<string>();
    for (const name of ["a1", "a2"]) waiting.add("a", name);
    waiting.add("b", "b1");
    expect([waiting.delete("a", "a1"), waiting.delete("a", "a1"), waiting.delete("c", "a2")]).toEqual([
      true,
      false,
      false,
    ]);
    expect([waiting.take(), waiting.isEmpty, waiting.take(), waiting.isEmpty, waiting.take()]).toEqual([
      ...["a2", false],
      ...["b1", true],
      null,
    ]);
  });
});
