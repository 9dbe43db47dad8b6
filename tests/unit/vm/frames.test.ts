import { describe, expect, test } from "bun:test";
import { AgentProtocolError } from "../../../src/vm/agent/errors.ts";
import { encodeFrame, type Frame, FrameDecoder, packIntegers } from "../../../src/vm/agent/frames.ts";
import { AgentFrame, FRAME_PAYLOAD_BYTES_MAX } from "../../../src/vm/agent/protocol.ts";
import { seededRandom } from "../../support/random.ts";

const AGENT_TYPES = Object.values(AgentFrame);

function collect(chunks: Iterable<Uint8Array>): { type: number; session: number; payload: Buffer }[] {
  const decoder = new FrameDecoder();
  const frames: { type: number; session: number; payload: Buffer }[] = [];
  const take = ({ type, session, payload }: Frame) => frames.push({ type, session, payload: Buffer.from(payload) });
  for (const chunk of chunks) decoder.push(chunk, take);
  return frames;
}

function header(length: number, type: number, reserve: number, session: number): Uint8Array {
  return packIntegers([32, length], [16, type], [16, reserve], [32, session]);
}

describe("frame decoder", () => {
  test("decodes encoded frames, with cuts of the stream at any place", () => {
    for (let seed = 1; seed <= 60; seed++) {
      const random = seededRandom(seed);
      const sent = Array.from({ length: 1 + random.below(12) }, () => ({
        type: AGENT_TYPES[random.below(AGENT_TYPES.length)] ?? AgentFrame.log,
        session: random.below(0xffff_ffff),
        payload: Buffer.from(random.bytes(random.below(5) === 0 ? 20_000 : random.below(40))),
      }));
      const stream = Buffer.concat(sent.map(({ type, session, payload }) => encodeFrame(type, session, payload)));
      const chunks: Uint8Array[] = [];
      for (let offset = 0; offset < stream.byteLength; ) {
        const size = 1 + random.below(random.below(2) === 0 ? 16 : 9000);
        chunks.push(stream.subarray(offset, offset + size));
        offset += size;
      }
      expect({ seed, frames: collect(chunks) }).toEqual({ seed, frames: sent });
    }
  });

  test("decodes the longest frame, byte by byte", () => {
    const payload = Buffer.alloc(FRAME_PAYLOAD_BYTES_MAX, 7);
    const bytes = encodeFrame(AgentFrame.output, 3, payload);
    const single = Array.from(bytes, (_, index) => bytes.subarray(index, index + 1));
    expect(collect(single)).toEqual([{ type: AgentFrame.output, session: 3, payload }]);
  });

  test.each([
    ["over-long", header(FRAME_PAYLOAD_BYTES_MAX + 1, AgentFrame.log, 0, 0)],
    ["much too long", header(0xffff_ffff, AgentFrame.log, 0, 0)],
    ["of a type of the host", header(0, 1, 0, 0)],
    ["of type 0", header(0, 0, 0, 0)],
    ["with a reserve", header(0, AgentFrame.log, 1, 0)],
  ])("refuses a header that is %s, whole or in pieces", (_, bytes) => {
    expect(() => collect([bytes])).toThrow(AgentProtocolError);
    expect(() => collect([bytes.subarray(0, 5), bytes.subarray(5)])).toThrow(AgentProtocolError);
    expect(() => collect([encodeFrame(AgentFrame.log, 0, Buffer.from("x")), bytes])).toThrow(AgentProtocolError);
  });

  test("decodes random bytes to frames or an error", () => {
    let refused = 0;
    let accepted = 0;
    for (let seed = 1; seed <= 400; seed++) {
      const random = seededRandom(seed);
      const stream = Buffer.from(random.bytes(2000));
      // Half of the streams begin with a valid header, so that the inner code is reached.
      if (seed % 2 === 0) stream.set(header(random.below(3000), AGENT_TYPES[seed % AGENT_TYPES.length] ?? 0, 0, seed));
      try {
        const cut = random.below(2000);
        const decoder = new FrameDecoder();
        for (const chunk of [stream.subarray(0, cut), stream.subarray(cut)]) {
          decoder.push(chunk, ({ payload }) => {
            accepted += 1;
            expect(payload.byteLength).toBeLessThanOrEqual(stream.byteLength);
          });
        }
      } catch (error) {
        expect(error).toBeInstanceOf(AgentProtocolError);
        refused += 1;
      }
    }
    expect(refused).toBeGreaterThan(200);
    expect(accepted).toBeGreaterThan(50);
  });
});

test("refuses to encode a payload that is too long for a frame", () => {
  expect(() => encodeFrame(1, 1, Buffer.alloc(FRAME_PAYLOAD_BYTES_MAX), Buffer.alloc(1))).toThrow("fits no frame");
});
