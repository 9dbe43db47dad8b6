import { expect, test } from "bun:test";
import {
  dataFrame,
  FRAME,
  FrameError,
  type FrameHandler,
  FrameReader,
  frame,
  messageFrame,
  resetFrame,
  WINDOW_BYTES,
  windowFrame,
} from "../../../src/network/gate/frames.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";

const MESSAGE_BYTES_MAX = 4096;

/** Everything that a reader tells, as one list. */
function recorder(): { readonly told: string[]; readonly reader: FrameReader } {
  const told: string[] = [];
  const handler: FrameHandler = {
    message: (payload) => told.push(`message ${Buffer.from(payload)}`),
    data: (bytes) => told.push(`data ${Buffer.from(bytes).toString("hex")}`),
    end: () => told.push("end"),
    reset: (reason) => told.push(`reset ${reason}`),
    window: (bytes) => told.push(`window ${bytes}`),
  };
  return { told, reader: new FrameReader(MESSAGE_BYTES_MAX, handler) };
}

const stream = Buffer.concat([
  messageFrame({ ok: true }),
  dataFrame(Buffer.from("abcdef")),
  windowFrame(70_000),
  frame(FRAME.end),
  resetFrame("denied_sni"),
]);

test("frames are read however they are split", () => {
  for (let at = 0; at <= stream.byteLength; at++) {
    const { told, reader } = recorder();
    reader.push(stream.subarray(0, at));
    reader.push(stream.subarray(at));
    const data = told.filter((each) => each.startsWith("data")).map((each) => each.slice(5));
    expect(data.join("")).toBe(Buffer.from("abcdef").toString("hex"));
    expect(told.filter((each) => !each.startsWith("data"))).toEqual([
      'message {"ok":true}',
      "window 70000",
      "end",
      "reset denied_sni",
    ]);
  }
});

test("what is no frame is refused", () => {
  const wrong = [
    [9, 0, 0, 0],
    [FRAME.data, 0, 0, 0],
    [FRAME.data, 4, 0, 1],
    [FRAME.window, 0, 0, 3],
    [FRAME.end, 0, 0, 1],
    [FRAME.reset, 0, 0, 2],
    [FRAME.message, 0, 0x10, 1],
  ];
  for (const bytes of wrong) expect(() => recorder().reader.push(Uint8Array.from(bytes))).toThrow(FrameError);
});

test("random bytes are frames or errors", () => {
  const random = seededRandom(seedOfTests());
  for (let round = 0; round < 2000; round++) {
    const { reader } = recorder();
    const bytes = Uint8Array.from({ length: random.below(64) }, () => random.below(random.below(2) === 0 ? 5 : 256));
    try {
      reader.push(bytes);
    } catch (error) {
      expect(error).toBeInstanceOf(FrameError);
    }
  }
});

test("a frame of data has at most a window", () => {
  const { told, reader } = recorder();
  reader.push(dataFrame(new Uint8Array(WINDOW_BYTES)));
  expect(told.map((each) => (each.length - 5) / 2)).toEqual([WINDOW_BYTES]);
});
