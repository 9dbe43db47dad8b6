import { expect, test } from "bun:test";
import { RECENT_BYTES_MAX, RECENT_COUNT_MAX, RecentOutputs } from "../../../src/service/running/outputs.ts";
import { newId } from "../../support/database.ts";

const opener = (bytes: number) => {
  const opened: string[] = [];
  const open = async (stream: string) => {
    opened.push(stream);
    return new Uint8Array(bytes).fill(stream.length);
  };
  return { opened, open };
};

test("a short output of an ended operation is opened once, and each stream by itself", async () => {
  const recent = new RecentOutputs();
  const id = newId<never>();
  const { opened, open } = opener(RECENT_BYTES_MAX);
  const first = await recent.read(id, "stdout", open);
  expect(await recent.read(id, "stdout", open)).toEqual(first);
  await recent.read(id, "stderr", open);
  await recent.read(newId<never>(), "stdout", open);
  expect(opened).toEqual(["stdout", "stderr", "stdout"]);
});

test("a longer output is opened each time", async () => {
  const recent = new RecentOutputs();
  const id = newId<never>();
  const { opened, open } = opener(RECENT_BYTES_MAX + 1);
  await recent.read(id, "stdout", open);
  await recent.read(id, "stdout", open);
  expect(opened).toHaveLength(2);
});

test("the oldest output makes place for the newest", async () => {
  const recent = new RecentOutputs();
  const ids = Array.from({ length: RECENT_COUNT_MAX + 1 }, () => newId<never>());
  const { opened, open } = opener(1);
  for (const id of ids) await recent.read(id, "stdout", open);
  await recent.read(ids.at(-1) as never, "stdout", open);
  expect(opened).toHaveLength(ids.length);
  await recent.read(ids[0] as never, "stdout", open);
  expect(opened).toHaveLength(ids.length + 1);
});
