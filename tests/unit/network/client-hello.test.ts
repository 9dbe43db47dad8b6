import { describe, expect, spyOn, test } from "bun:test";
import { HELLO_BYTES_MAX, type Hello, HelloReader } from "../../../src/network/gate/client-hello.ts";
import { clientHello, extension, helloTo, named, records, u8, u24, v16 } from "../../support/network/client-hello.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";

const ENCRYPTED_HELLO = 0xfe0d;
const readClientHello = (bytes: Uint8Array): Hello => new HelloReader().push(bytes);
const whole = helloTo("www.example.com");

/** The answer to bytes in pieces of `size`, the number of bytes read, and the bytes held then. */
function pushed(bytes: Buffer, size: number): { hello: Hello; bytes: number; held: Buffer } {
  const reader = new HelloReader();
  for (let at = 0; at < bytes.byteLength; at += size) {
    const hello = reader.push(bytes.subarray(at, at + size));
    if (hello !== "more") return { hello, bytes: at + size, held: Buffer.from(reader.held) };
  }
  return { hello: "more", bytes: bytes.byteLength, held: Buffer.from(reader.held) };
}

describe("a ClientHello", () => {
  test("names its server, with GREASE and other extensions around it", () => {
    expect(readClientHello(whole)).toEqual({ serverName: "www.example.com" });
    expect(readClientHello(helloTo("WWW.Example.COM"))).toEqual({ serverName: "www.example.com" });
  });

  test("may arrive in pieces and in records of any size", () => {
    for (let length = 0; length < whole.byteLength; length++) {
      expect(readClientHello(whole.subarray(0, length))).toBe("more");
    }
    for (const size of [1, 3, 5, 40, 100]) {
      expect(readClientHello(records(clientHello([named("www.example.com")]), size))).toEqual({
        serverName: "www.example.com",
      });
    }
  });

  test("is read at its last byte, for all sizes of pieces and records", () => {
    const name = { serverName: "www.example.com" };
    const message = clientHello([named("www.example.com")]);
    for (const bytes of [whole, ...[1, 2, 7, 99].map((size) => records(message, size))]) {
      const { hello, bytes: read, held } = pushed(bytes, 1);
      expect({ hello, read }).toEqual({ hello: name, read: bytes.byteLength });
      expect(held).toEqual(bytes.subarray(0, -1));
      for (const size of [2, 3, 50]) expect(pushed(bytes, size).hello).toEqual(name);
    }
  });

  test("has a bounded number of records", () => {
    const message = clientHello([extension(21, Buffer.alloc(HELLO_BYTES_MAX / 2))]);
    expect(readClientHello(records(message, 1).subarray(0, 6 * 256))).toBe("more");
    expect(readClientHello(records(message, 1).subarray(0, 6 * 257))).toBe("malformed");
  });

  test("is parsed seldom, even when the pieces are small", () => {
    const bytes = records(clientHello([extension(21, Buffer.alloc(HELLO_BYTES_MAX / 2))]), 40);
    const concat = spyOn(Buffer, "concat");
    const { hello } = pushed(bytes, 1);
    const lookCount = concat.mock.calls.length;
    concat.mockRestore();
    expect(hello).toBe("none");
    expect(lookCount).toBeLessThan(200);
  });

  test("may be followed by any bytes", () => {
    const early = Buffer.concat([whole, Buffer.of(23, 3, 3, 0, 4, 1, 2, 3, 4), Buffer.of(99)]);
    expect(readClientHello(early)).toEqual({ serverName: "www.example.com" });
  });

  test("with an encrypted ClientHello inside has the outer name", () => {
    const outer = clientHello([extension(ENCRYPTED_HELLO, Buffer.alloc(200, 3)), named("front.example")]);
    expect(readClientHello(records(outer))).toEqual({ serverName: "front.example" });
  });

  test("without a name has none", () => {
    expect(readClientHello(records(clientHello([extension(16, Buffer.from("h2"))])))).toBe("none");
    expect(readClientHello(records(clientHello([])))).toBe("none");
    expect(readClientHello(records(clientHello(null)))).toBe("none");
  });

  test.each([
    ["two names in two extensions", clientHello([named("a.example"), named("b.example")])],
    [
      "two names in one list",
      clientHello([extension(0, v16(Buffer.concat([u8(0), v16(Buffer.from("a")), u8(0), v16(Buffer.from("b"))])))]),
    ],
    ["a name of another type", clientHello([named("a.example", 1)])],
    ["an empty name", clientHello([named("")])],
    ["a name with NUL", clientHello([named("a.example\0b")])],
    ["a name with a space", clientHello([named("a b")])],
    ["an endless name", clientHello([named("a".repeat(254))])],
    ["an empty list", clientHello([extension(0, v16(Buffer.alloc(0)))])],
    [
      "bytes after the list",
      clientHello([extension(0, Buffer.concat([v16(Buffer.concat([u8(0), v16(Buffer.from("a"))])), u8(0)]))]),
    ],
    ["a length beyond the end", Buffer.concat([u8(1), u24(4), Buffer.alloc(4)])],
    ["a server's message", Buffer.concat([u8(2), u24(4), Buffer.alloc(4)])],
    ["more than the reader holds", Buffer.concat([u8(1), u24(HELLO_BYTES_MAX + 1), Buffer.alloc(10)])],
  ])("with %s is malformed", (_, message) => {
    expect(readClientHello(records(message))).toBe("malformed");
  });

  test.each([
    ["plain HTTP", Buffer.from("GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n")],
    ["SSH", Buffer.from("SSH-2.0-OpenSSH_9.2\r\n")],
    ["SSL 2", Buffer.of(0x80, 0x2e, 1, 3, 1)],
    ["application data", Buffer.of(23, 3, 3, 0, 1, 0)],
    ["an empty record", Buffer.of(22, 3, 1, 0, 0)],
    ["another version", Buffer.of(22, 9, 1, 0, 4)],
  ])("is not %s", (_, bytes) => {
    expect(readClientHello(bytes)).toBe("malformed");
  });
});

test("any bytes have one of four answers, and more of the same bytes do not change a name", () => {
  const random = seededRandom(seedOfTests());
  const sound = (result: Hello): boolean =>
    result === "more" || result === "none" || result === "malformed" || /^[a-z0-9._-]{1,253}$/.test(result.serverName);
  for (let round = 0; round < 20_000; round++) {
    const bytes = random.below(4) === 0 ? Buffer.from(random.bytes(random.below(200))) : Buffer.from(whole);
    for (let change = random.below(4); change > 0 && bytes.byteLength > 0; change--) {
      bytes[random.below(bytes.byteLength)] = random.below(256);
    }
    const result = readClientHello(bytes);
    expect(sound(result)).toBeTrue();
    const more = readClientHello(Buffer.concat([bytes, random.bytes(random.below(40))]));
    expect(sound(more)).toBeTrue();
    if (typeof result === "object") expect(more).toEqual(result);
  }
});

test("holds a bounded number of bytes", () => {
  // Records that never become a whole ClientHello.
  const start = Buffer.concat([u8(1), u24(HELLO_BYTES_MAX), Buffer.alloc(HELLO_BYTES_MAX - 4)]);
  const bytes = records(start, 1000).subarray(0, HELLO_BYTES_MAX);
  expect(readClientHello(bytes.subarray(0, HELLO_BYTES_MAX - 1))).toBe("more");
  expect(readClientHello(bytes)).toBe("malformed");
});
