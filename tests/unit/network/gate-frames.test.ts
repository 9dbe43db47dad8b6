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

/** Everything that a reader reports, in one list. */
function recorder(): { readonly reports: string[]; readonly reader: FrameReader } {
  const reports: string[] = [];
  const handler: FrameHandler = {
    message: (payload) => reports.push(`message ${Buffer.from(payload)}`),
    data: (bytes) => reports.push(`data ${Buffer.from(bytes).toString("hex")}`),
    end: () => reports.push("end"),
    reset: (reason) => reports.push(`reset ${reason}`),
    window: (bytes) => reports.push(`window ${bytes}`),
  };
  return { reports, reader: new FrameReader(MESSAGE_BYTES_MAX, handler) };
}

const stream = Buffer.concat([
  messageFrame({ ok: true }),
  dataFrame(Buffer.from("abcdef")),
  windowFrame(70_000),
  frame(FRAME.end),
  resetFrame("denied_sni"),
]);

test("reads frames that are split anywhere", () => {
  for (let at = 0; at <= stream.byteLength; at++) {
    const { reports, reader } = recorder();
    reader.push(stream.subarray(0, at));
    reader.push(stream.subarray(at));
    const data = reports.filter((each) => each.startsWith("data")).map((each) => each.slice(5));
    expect(data.join("")).toBe(Buffer.from("abcdef").toString("hex"));
    expect(reports.filter((each) => !each.startsWith("data"))).toEqual([
      'message {"ok":true}',
      "window 70000",
      "end",
      "reset denied_sni",
    ]);
  }
});

test("refuses bytes that are not a frame", () => {
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

test("a data frame has at most a window", () => {
  const { reports, reader } = recorder();
  reader.push(dataFrame(new Uint8Array(WINDOW_BYTES)));
  expect(reports.map((each) => (each.length - 5) / 2)).toEqual([WINDOW_BYTES]);
});
