import { expect, test } from "bun:test";
import fc from "fast-check";
import { inputBytes, inputText, isPlain, type SentStream, streamOf } from "../../../../src/api/contree/streams.ts";
import { ApiError } from "../../../../src/domain/errors.ts";
import { checkProcess } from "../../../../src/domain/spawn.ts";
import { decodeStdin } from "../../../../src/domain/stdin.ts";

const decoded = ({ value, encoding }: SentStream) =>
  Buffer.from(value as string, encoding === "ascii" ? "latin1" : "base64");

test("bytes are plain exactly when they are printable, tabs or line ends", () => {
  for (let byte = 0; byte < 256; byte++) {
    expect([byte, isPlain(Uint8Array.of(byte))]).toEqual([
      byte,
      (byte >= 0x20 && byte <= 0x7e) || byte === 0x09 || byte === 0x0a || byte === 0x0d,
    ]);
  }
  expect(isPlain(new Uint8Array())).toBe(true);
});

test("captured bytes of any value are returned, also from a part of a buffer", () => {
  void fc.assert(
    fc.property(fc.uint8Array({ maxLength: 500 }), fc.nat(20), fc.boolean(), (bytes, start, truncated) => {
      const whole = Buffer.concat([Buffer.alloc(start, "x"), bytes, Buffer.from("tail")]);
      const stream = streamOf(whole.subarray(start, start + bytes.byteLength), truncated);
      expect([decoded(stream), stream.truncated]).toEqual([Buffer.from(bytes), truncated]);
      expect(stream.encoding === "ascii").toBe(isPlain(bytes));
    }),
  );
});

test("standard input has the same bytes in either form, and a command accepts them", () => {
  const hostile = [
    "",
    "a\n",
    "base64:",
    "base64:aGk=",
    "base64:!",
    "\0",
    "\x7f",
    "é",
    "\u{1f600}",
    "\u2028",
    "x".repeat(9999),
  ];
  for (const value of hostile) {
    for (const encoding of [undefined, null, "ascii"] as const) {
      const stdin = inputText({ value, encoding });
      expect(Buffer.from(inputBytes({ value, encoding }, "value")).toString()).toBe(value);
      expect(Buffer.from(decodeStdin(checkProcess({ command: "x", stdin }).stdin ?? "")).toString()).toBe(value);
    }
  }
  void fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
      const input = { value: Buffer.from(bytes).toString("base64"), encoding: "base64" } as const;
      expect(Buffer.from(inputBytes(input, "value"))).toEqual(Buffer.from(bytes));
      const { stdin } = checkProcess({ command: "x", stdin: inputText(input) });
      expect(Buffer.from(decodeStdin(stdin ?? ""))).toEqual(Buffer.from(bytes));
    }),
  );
});

test.each([
  [{ value: "\ud800" }],
  [{ value: "a\udc00b", encoding: "ascii" }],
  [{ value: "a", encoding: "base64" }],
  [{ value: "YQ", encoding: "base64" }],
  [{ value: "Y Q==", encoding: "base64" }],
  [{ value: "_-==", encoding: "base64" }],
] as const)("%j is refused", (input) => {
  expect(() => inputBytes(input, "value")).toThrow(ApiError);
  expect(() => checkProcess({ command: "x", stdin: inputText(input) })).toThrow(ApiError);
});
