import { expect, test } from "bun:test";
import { closeSync, ftruncateSync, readSync, writeSync } from "node:fs";
import { createMemfd, SEALS_ALL } from "../../../../src/vm/descriptors.ts";
import { FORK_STATE_BYTES_MAX, loadableState } from "../../../../src/vm/qemu/device-state.ts";
import { throwing } from "../../../support/failures.ts";
import { sealsOf } from "../../../support/guests/seals.ts";

function written(content: Uint8Array) {
  const fd = createMemfd("written", content.byteLength);
  writeSync(fd, content, 0, content.byteLength, 0);
  return { fd, [Symbol.dispose]: () => closeSync(fd) };
}

const HEADER = Buffer.from("5145564d00000003", "hex");

test("a state gets the machine's type and an empty description, and cannot be changed", async () => {
  using state = written(Buffer.concat([HEADER, Buffer.from("devices")]));
  const { fd, sizeBytes } = await loadableState(state.fd, "pc-q35-7.2");
  using _fd = { [Symbol.dispose]: () => closeSync(fd) };
  const content = Buffer.alloc(sizeBytes + 1);
  expect(readSync(fd, content, 0, content.byteLength, 0)).toBe(sizeBytes);
  const configuration = Buffer.concat([Buffer.from("070000000a", "hex"), Buffer.from("pc-q35-7.2")]);
  const end = Buffer.from("0600000000", "hex");
  expect(content.subarray(0, sizeBytes)).toEqual(Buffer.concat([HEADER, configuration, Buffer.from("devices"), end]));
  expect(sealsOf(fd)).toBe(SEALS_ALL);
});

const refusal = async (fd: number) => await throwing(loadableState(fd, "pc-q35-7.2"));

test.each([
  ["nothing", ""],
  ["another version", "5145564d00000004"],
  ["another format", "7f454c4600000000000000"],
])("%s is refused", async (_what, hex) => {
  using state = written(Buffer.from(hex, "hex"));
  expect(await refusal(state.fd)).toThrow("unknown format");
});

test("a state that is too large is refused before it is read", async () => {
  using state = written(HEADER);
  ftruncateSync(state.fd, FORK_STATE_BYTES_MAX + 1);
  expect(await refusal(state.fd)).toThrow("too large");
});
