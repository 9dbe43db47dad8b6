/** Forms of parts, in chunks of any size, and malformed ones. */
import { describe, expect, test } from "bun:test";
import { boundaryOf, partsOf } from "../../../../../src/api/e2b/files/multipart.ts";
import { ApiError } from "../../../../../src/domain/errors.ts";
import { failureOf } from "../../../../support/failures.ts";
import { seededRandom, seedOfTests } from "../../../../support/random.ts";

const EDGE = "--edgE";

/** Chunks, each of which is valid only until the next one is requested. */
async function* chunked(bytes: Uint8Array, sizeOf: () => number): AsyncGenerator<Uint8Array, void, undefined> {
  for (let offset = 0; offset < bytes.byteLength; ) {
    const chunk = bytes.slice(offset, offset + Math.max(1, sizeOf()));
    offset += chunk.byteLength;
    yield chunk;
    chunk.fill(0x21);
  }
}

/** The parts of a form with their contents. */
async function read(
  body: string | Uint8Array,
  sizeOf = () => 7,
): Promise<(readonly [string, string | null, string])[]> {
  const parts: [string, string | null, string][] = [];
  for await (const { name, filename, content } of partsOf(chunked(Buffer.from(body), sizeOf), EDGE)) {
    const pieces: Buffer[] = [];
    for await (const piece of content) pieces.push(Buffer.from(piece));
    parts.push([name, filename, Buffer.concat(pieces).toString("latin1")]);
  }
  return parts;
}

const part = (head: string, content: string) =>
  `--${EDGE}\r\nContent-Disposition: form-data; ${head}\r\n\r\n${content}\r\n`;

describe("a form", () => {
  test("is the same in chunks of any size", async () => {
    const random = seededRandom(seedOfTests());
    const symbols = ["\r", "\n", "-", "--", `\r\n--${EDGE.slice(0, -1)}`, "\r\n--", "x", "\0", "\xff"];
    for (let round = 0; round < 40; round++) {
      const contents = Array.from({ length: 1 + random.below(4) }, () =>
        Array.from({ length: random.below(30) }, () => symbols[random.below(symbols.length)]).join(""),
      );
      const form = `preamble${contents.length > 1 ? "\r\n" : "\n\r\n"}${contents
        .map((content, index) => part(`name="file"; filename="/${index}"`, content))
        .join("")}--${EDGE}--epilogue`;
      const expected = contents.map((content, index) => ["file", `/${index}`, content] as const);
      const bytes = Buffer.from(form, "latin1");
      for (const size of [1, 2, 3, 1000]) expect(await read(bytes, () => size)).toEqual(expected);
      expect(await read(bytes, () => random.below(9))).toEqual(expected);
    }
  });

  test("has names in every spelling", async () => {
    const names: readonly (readonly [head: string, name: string, filename: string | null])[] = [
      ['name="file"; filename="/a/b c"', "file", "/a/b c"],
      ['NAME=file;filename="/a\\"b\\\\c"', "file", '/a"b\\c'],
      ['name="file"; filename="C:\\dir\\x"', "file", "C:\\dir\\x"],
      ['name="file"; filename="a;b"; filename="other"', "file", "a;b"],
      ["name=file; filename*=UTF-8'en'%2Fa%C3%BC; filename=\"plain\"", "file", "/aü"],
      ["name=file; filename*=UTF-8''%FF; filename=plain", "file", "plain"],
      ['name="file"; filename=""', "file", ""],
      ["filename", "", null],
    ];
    const form = `${names.map(([head]) => part(head, "")).join("")}--${EDGE}--`;
    expect((await read(form)).map(([name, filename]) => [name, filename] as const)).toEqual(
      names.map(([, name, filename]) => [name, filename]),
    );
    expect(await read(`--${EDGE} \t\r\nX: y\r\n\r\nz\r\n--${EDGE}\r\n\r\n\r\n--${EDGE}--`)).toEqual([
      ["", null, "z"],
      ["", null, ""],
    ]);
  });

  test("may be left in the middle of a part", async () => {
    const left: string[] = [];
    const body = async function* () {
      using _left = { [Symbol.dispose]: () => void left.push("body") };
      yield Buffer.from(part("name=file", "x".repeat(100)));
      yield Buffer.from("never");
    };
    for await (const { content } of partsOf(body(), EDGE)) {
      for await (const _piece of content) break;
      break;
    }
    expect(left).toEqual(["body"]);
  });

  test.each([
    ["without anything", ""],
    ["that ends in its preamble", "pre"],
    ["that ends behind a boundary", `--${EDGE}`],
    ["that ends in the fields", `--${EDGE}\r\nX: y\r\n`],
    ["that ends in the content", part("name=file", "x")],
    ["with text behind a boundary", `--${EDGE}x\r\n\r\n\r\n--${EDGE}--`],
    ["with endless fields", `--${EDGE}\r\n${"X: y\r\n".repeat(3000)}\r\n`],
  ])("%s is malformed", async (_name, form) => {
    for (const size of [1, 3, 100_000]) {
      const error = (await failureOf(read(form, () => size))) as ApiError;
      expect([error instanceof ApiError, error.code as string]).toEqual([true, "validation_error"]);
    }
  });
});

test("a boundary is in the content type", async () => {
  expect(boundaryOf("multipart/form-data; boundary=a")).toBe("a");
  expect(boundaryOf('Multipart/Form-Data; charset=x; Boundary="a b"')).toBe("a b");
  expect(boundaryOf("application/json")).toBeNull();
  for (const wrong of ["multipart/form-data", "multipart/form-data; boundary=", 'multipart/x; boundary="a "']) {
    expect((await failureOf(Promise.try(() => boundaryOf(wrong)))) as ApiError).toMatchObject({
      code: "validation_error",
    });
  }
});
