import { describe, expect, test } from "bun:test";
import type { TObject } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import fc from "fast-check";
import { queryReader, rawQuery } from "../../../src/api/query.ts";
import { validationError } from "../../../src/api/schema.ts";
import { DownloadQuery, GrepQuery, ImagesQuery, OperationsQuery } from "../../../src/api/v1/schema/query.ts";
import { SandboxesQuery } from "../../../src/api/v1/schema/sandboxes.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import { type ByteString, byteStringToBytes } from "../../../src/domain/tree/guest-path.ts";

/** Parses and validates a query as a route does. */
function checkedReader(schema: TObject): (raw: string) => Record<string, unknown> {
  const read = queryReader(schema);
  return (raw) => {
    const query = read(raw);
    const first = Value.Errors(schema, query).First();
    if (first !== undefined) throw validationError(first);
    return query;
  };
}

const readImages = checkedReader(ImagesQuery);
const readDownload = checkedReader(DownloadQuery);

function refusal(read: () => unknown): ApiError {
  try {
    read();
  } catch (error) {
    expect(error).toBeInstanceOf(ApiError);
    return error as ApiError;
  }
  throw new Error("it was accepted");
}

test("the raw query is the text between ? and #", () => {
  expect(rawQuery("http://localhost/a?b=%ff&c=#d?e")).toBe("b=%ff&c=");
  expect(rawQuery("http://localhost/a")).toBe("");
});

describe("integers are decimal digits and nothing else", () => {
  test.each(["1", "100", "1000"])("limit=%s", (text) => {
    expect(readImages(`limit=${text}`)).toEqual({ limit: Number(text) });
  });

  test.each([
    "",
    "abc",
    "0",
    "-1",
    "1001",
    "1e2",
    "1.0",
    "0x10",
    "+5",
    "%205",
    "5%20",
    "05",
    "NaN",
    "Infinity",
    "99999999999999999999",
    "true",
    "%D9%A1",
  ])("limit=%s", (text) => {
    const error = refusal(() => readImages(`limit=${text}`));
    expect(error.code).toBe("validation_error");
    expect(error.message).toBe("limit must be an integer from 1 to 1000");
    expect(error.details["field"]).toBe("limit");
  });

  test("a repeated limit is refused", () => {
    expect(refusal(() => readImages("limit=1&limit=1")).message).toBe("limit must be given once");
  });
});

describe("other types", () => {
  test("repeatable parameters keep their values unchanged", () => {
    const readGrep = checkedReader(GrepQuery);
    const query = readGrep("pattern=a,b&pattern=[c]&path=/%ff&glob=*.{a,b}");
    expect(query).toEqual({ pattern: ["a,b", "[c]"], path: ["/\xff"], glob: ["*.{a,b}"] });
    const twice = refusal(() => readGrep("pattern=a".concat("&pattern=a".repeat(16))));
    expect(twice.message).toBe("pattern must be given at most 16 times");
    const long = refusal(() => readGrep(`pattern=a&pattern=${"a".repeat(1001)}`));
    expect(long.message).toContain("pattern must be a regular expression of 1 to 1000 characters");
    expect(refusal(() => readGrep("path=/")).message).toBe("pattern is required");
  });

  test("booleans are true or false", () => {
    expect(readImages("tagged=true")).toEqual({ tagged: true });
    expect(readImages("tagged=false")).toEqual({ tagged: false });
    for (const text of ["", "1", "0", "yes", "True", "TRUE", "null"]) {
      expect(refusal(() => readImages(`tagged=${text}`)).message).toBe("tagged must be true or false");
    }
  });

  test("enumerations list their values in errors, and an absent one is undefined", () => {
    const read = checkedReader(OperationsQuery);
    expect(read("")).toEqual({});
    expect(read("status=PENDING&kind=instance")).toEqual({ status: "PENDING", kind: "instance" });
    const error = refusal(() => read("status=pending"));
    expect(error.message).toBe("status must be one of PENDING, EXECUTING, SUCCESS, FAILED, CANCELLED");
    expect(error.details["allowed"]).toEqual(["PENDING", "EXECUTING", "SUCCESS", "FAILED", "CANCELLED"]);
  });

  test("text is UTF-8, a plus is a space, and unknown names are ignored", () => {
    expect(readImages("tag=a%2Bb+c&x=%zz&%ff=1")).toEqual({ tag: "a+b c" });
    expect(refusal(() => readImages("tag=%ff")).message).toBe("tag must be UTF-8");
    expect(refusal(() => readImages("tag=%zz")).message).toStartWith("tag must be percent-encoded");
  });
});

describe("paths are bytes", () => {
  test("accepts any bytes", () => {
    void fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => {
        const encoded = [...bytes].map((byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
        const { path } = readDownload(`path=${encoded}`) as { path: ByteString };
        expect(byteStringToBytes(path)).toEqual(Buffer.from(bytes));
      }),
    );
  });

  test("requires a path exactly once", () => {
    expect(refusal(() => readDownload("")).message).toBe("path is required");
    expect(refusal(() => readDownload("path=/a&path=/b")).message).toBe("path must be given once");
  });
});

test("every query has values or a validation error", () => {
  void fc.assert(
    fc.property(fc.oneof(fc.string(), fc.webQueryParameters()), (raw) => {
      for (const read of [readImages, readDownload]) {
        try {
          read(raw);
        } catch (error) {
          expect(error).toBeInstanceOf(ApiError);
        }
      }
    }),
  );
});

describe("parameters with a common prefix are a record", () => {
  const read = checkedReader(SandboxesQuery);

  test("by the rests of their names", () => {
    expect(read("metadata.a=1&limit=2&metadata.b.c=%C3%BC+x&other=3&metadata.%C3%BC=")).toEqual({
      limit: 2,
      metadata: { a: "1", "b.c": "ü x", ü: "" },
    });
    expect(read("")).toEqual({});
    expect(read("metadata=1")).toEqual({});
  });

  test("each once, in UTF-8, and not too many", () => {
    for (const query of ["metadata.a=1&metadata.a=2", "metadata.a=%ff", "metadata.%ff=a", "metadata.a=%"]) {
      expect(refusal(() => read(query)).code).toBe("validation_error");
    }
    const many = (count: number) => Array.from({ length: count }, (_, index) => `metadata.${index}=x`).join("&");
    expect(Object.keys(read(many(64))["metadata"] as object)).toHaveLength(64);
    expect(refusal(() => read(many(65))).details).toMatchObject({ field: "metadata" });
  });
});
