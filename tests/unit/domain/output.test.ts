import { heapStats } from "bun:jsc";
import { expect, test } from "bun:test";
import { OutputCapture } from "../../../src/domain/output.ts";

test("a stream is kept up to its limit, however it is cut, and counted behind that", () => {
  const bytes = Buffer.from(Array.from({ length: 20_000 }, (_, index) => index % 251));
  for (const limit of [0, 1, 4095, 4096, 4097, 12_288, 19_999, 20_000, 30_000]) {
    for (const pieceBytes of [1, 7, 4096, 30_000]) {
      const capture = new OutputCapture(limit);
      for (let at = 0; at < bytes.length; at += pieceBytes)
        capture.push(Buffer.from(bytes.subarray(at, at + pieceBytes)));
      expect(Buffer.concat(capture.blocks()).equals(bytes.subarray(0, limit))).toBe(true);
      expect([capture.totalBytes, capture.truncated, capture.isEmpty]).toEqual([20_000, limit < 20_000, limit === 0]);
    }
  }
});

test("a piece may be used again", () => {
  const capture = new OutputCapture(100);
  const piece = Buffer.from("first");
  capture.push(piece);
  piece.fill("x");
  expect(Buffer.concat(capture.blocks()).toString()).toBe("first");
});

test("a million pieces of a byte become few blocks", () => {
  const capture = new OutputCapture(10_485_760);
  const before = heapStats().objectTypeCounts["Uint8Array"] ?? 0;
  const byte = Uint8Array.of(65);
  for (let count = 0; count < 1_000_000; count++) capture.push(byte);
  Bun.gc(true);
  expect((heapStats().objectTypeCounts["Uint8Array"] ?? 0) - before).toBeLessThan(100);
  const blocks = capture.blocks();
  expect(blocks.length).toBeLessThan(20);
  expect(new Set(blocks.map(({ buffer }) => buffer)).size).toBe(blocks.length);
  expect(blocks.reduce((bytes, { buffer }) => bytes + buffer.byteLength, 0)).toBeLessThan(1_500_000);
});
