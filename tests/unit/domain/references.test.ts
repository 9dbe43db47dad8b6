import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { ApiError } from "../../../src/domain/errors.ts";
import { parseUuid } from "../../../src/domain/ids.ts";
import { isTag, parseImageReference } from "../../../src/domain/image.ts";
import {
  byteStringToBytes,
  bytesToByteString,
  displayName,
  GUEST_NAME_BYTES_MAX,
  GUEST_PATH_BYTES_MAX,
  isUtf8,
  parseGuestPath,
  parseGuestPathText,
  textToByteString,
} from "../../../src/domain/tree/guest-path.ts";

function codeOf(work: () => unknown): string {
  try {
    work();
  } catch (error) {
    expect(error).toBeInstanceOf(ApiError);
    return (error as ApiError).code;
  }
  return "accepted";
}

/** Names of directory entries, in bytes, without "." and "..". */
const nameBytes = fc
  .uint8Array({ minLength: 1, maxLength: 40 })
  .map((bytes) => bytes.map((byte) => (byte === 0 || byte === 0x2f ? 0x61 : byte)))
  .filter((bytes) => ![".", ".."].includes(Buffer.from(bytes).toString("latin1")));

describe("guest paths", () => {
  test("any names with any slashes and dots between them are parsed into these names", () => {
    void fc.assert(
      fc.property(
        fc.array(fc.tuple(nameBytes, fc.constantFrom("/", "//", "/./", "/././/")), { maxLength: 8 }),
        (parts) => {
          const spelled = `/${parts.map(([name, slash]) => Buffer.from(name).toString("latin1") + slash).join("")}`;
          const expected = `/${parts.map(([name]) => Buffer.from(name).toString("latin1")).join("/")}`;
          expect(parseGuestPath(bytesToByteString(Buffer.from(spelled, "latin1")))).toBe(expected as never);
        },
      ),
    );
  });

  test("parsing a parsed path does not change it", () => {
    void fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        if (codeOf(() => parseGuestPathText(`/${text}`)) !== "accepted") return;
        const path = parseGuestPathText(`/${text}`);
        expect(parseGuestPath(path)).toBe(path);
      }),
    );
  });

  test("every text gives a path inside the image, or invalid_path", () => {
    void fc.assert(
      fc.property(fc.oneof(fc.uint8Array(), nameBytes), (bytes) => {
        const value = bytesToByteString(bytes);
        const code = codeOf(() => {
          const path = parseGuestPath(value);
          expect(path).toStartWith("/");
          expect(path.split("/")).not.toContain("..");
          expect(path).not.toContain("\0");
        });
        expect(["accepted", "invalid_path"]).toContain(code);
      }),
    );
  });

  test("the limits are exact", () => {
    expect(codeOf(() => parseGuestPathText(`/${"x".repeat(GUEST_NAME_BYTES_MAX)}`))).toBe("accepted");
    expect(codeOf(() => parseGuestPathText(`/${"x".repeat(GUEST_NAME_BYTES_MAX + 1)}`))).toBe("invalid_path");
    expect(codeOf(() => parseGuestPathText(`/${"é".repeat(128)}`))).toBe("invalid_path");
    expect(codeOf(() => parseGuestPathText(`/${"a/".repeat(GUEST_PATH_BYTES_MAX / 2 - 1)}b`))).toBe("accepted");
    expect(codeOf(() => parseGuestPathText(`/${"a/".repeat(GUEST_PATH_BYTES_MAX / 2)}`))).toBe("invalid_path");
  });

  test("bytes and text survive the conversion in both directions", () => {
    void fc.assert(
      fc.property(fc.uint8Array(), (bytes) => {
        expect(byteStringToBytes(bytesToByteString(bytes))).toEqual(Buffer.from(bytes));
      }),
    );
    void fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        expect(displayName(textToByteString(text))).toBe(text);
        expect(isUtf8(textToByteString(text))).toBe(true);
      }),
    );
    expect(isUtf8(bytesToByteString(Uint8Array.of(0xff)))).toBe(false);
  });
});

describe("tags and image references", () => {
  const tag = fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$/);

  test("every tag that follows the rule is valid, and tag:<name> refers to it", () => {
    void fc.assert(
      fc.property(tag, (name) => {
        expect(isTag(name)).toBe(true);
        expect(parseImageReference(`tag:${name}`)).toEqual({ tag: name });
      }),
    );
  });

  test("a tag with one forbidden character is invalid", () => {
    void fc.assert(
      fc.property(tag, fc.string({ unit: "binary", minLength: 1, maxLength: 1 }), fc.nat(), (name, char, at) => {
        fc.pre(!/^[A-Za-z0-9._:/-]$/.test(char));
        const place = at % (name.length + 1);
        const changed = name.slice(0, place) + char + name.slice(place);
        expect(isTag(changed)).toBe(false);
        expect(codeOf(() => parseImageReference(`tag:${changed}`))).toBe("validation_error");
      }),
    );
  });

  test("a uuid in upper and lower case is the same reference", () => {
    void fc.assert(
      fc.property(fc.uuid(), (uuid) => {
        expect(parseImageReference(uuid.toUpperCase())).toEqual({ uuid: uuid as never });
        expect(parseUuid(` ${uuid}`)).toBeNull();
        expect(parseUuid(`${uuid}\n`)).toBeNull();
      }),
    );
  });

  test("anything else is a validation error", () => {
    void fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        expect(["accepted", "validation_error"]).toContain(codeOf(() => parseImageReference(text)));
      }),
    );
  });
});
