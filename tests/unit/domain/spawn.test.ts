import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { ApiError } from "../../../src/domain/errors.ts";
import { ARGUMENT_BYTES_MAX, ENV_COUNT_MAX, STDIN_BYTES_MAX } from "../../../src/domain/instance.ts";
import { argvOf, checkSpawn, type SpawnInput, type SpawnLimits } from "../../../src/domain/spawn.ts";
import { decodeStdin, stdinBytes } from "../../../src/domain/stdin.ts";

const LIMITS: SpawnLimits = {
  instanceTimeoutSecondsMax: 3600,
  vcpusDefault: 1,
  vcpusMax: 4,
  memoryBytesDefault: 268_435_456,
  memoryBytesMax: 1_073_741_824,
  diskBytesDefault: 1_073_741_824,
  diskBytesMax: 4_294_967_296,
};
const UUID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const check = (fields: Partial<SpawnInput>) => checkSpawn({ image: "tag:base", command: "true", ...fields }, LIMITS);

function variables(count: number): Record<string, string> {
  return Object.fromEntries(Array.from({ length: count }, (_, index) => [`V${index}`, ""]));
}

function refusal(work: () => unknown): ApiError {
  try {
    work();
  } catch (error) {
    expect(error).toBeInstanceOf(ApiError);
    return error as ApiError;
  }
  throw new Error("it was accepted");
}

describe("defaults of the interface", () => {
  test("cwd /root, 1 MiB of output, 300 s, no input, not disposable", () => {
    expect(check({})).toEqual({
      image: { tag: "base" },
      argv: ["true"],
      ...{ env: {}, unset: [], shell: false, inherit: false, preserveEnv: false, preserveCwd: false },
      ...{ cwd: "/root", isCwdGiven: false },
      uid: 0,
      gid: 0,
      timeoutSeconds: 300,
      files: [],
      truncateOutputAtBytes: 1_048_576,
      stdin: null,
      stdinOpen: false,
      terminal: null,
      hostname: null,
      disposable: false,
      tag: null,
      resources: { vcpus: 1, memoryBytes: 268_435_456, diskBytes: 1_073_741_824 },
    });
  });

  test("a tag is kept; a disposable run leaves no image for one", () => {
    expect(check({ tag: "after" }).tag).toBe("after");
    expect(() => check({ tag: "after", disposable: true })).toThrow(
      "tag needs an image, and a disposable run makes none",
    );
  });

  test("a default above the operator's maximum is reduced to it", () => {
    const spawn = checkSpawn({ image: UUID, command: "true" }, { ...LIMITS, instanceTimeoutSecondsMax: 10 });
    expect(spawn.timeoutSeconds).toBe(10);
  });
});

describe("argv", () => {
  test("a shell takes the command as its expression, and args as $1 and so on", () => {
    expect(argvOf({ command: "echo $1", shell: true, args: ["a"] })).toEqual([
      "/bin/sh",
      "-c",
      "echo $1",
      "/bin/sh",
      "a",
    ]);
    expect(argvOf({ command: "echo", shell: true })).toEqual(["/bin/sh", "-c", "echo"]);
  });

  test("without a shell the command is one executable, blanks and all", () => {
    expect(argvOf({ command: "a b", args: ["", "c d"] })).toEqual(["a b", "", "c d"]);
  });
});

describe("stdin", () => {
  test("any bytes come back from base64, any ASCII from itself", () => {
    void fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        const encoded = `base64:${Buffer.from(bytes).toString("base64")}`;
        expect(Buffer.from(decodeStdin(encoded))).toEqual(Buffer.from(bytes));
        expect(stdinBytes(encoded)).toBe(bytes.byteLength);
      }),
    );
    void fc.assert(
      fc.property(fc.string({ unit: "binary-ascii" }), (text) => {
        fc.pre(!text.startsWith("base64:"));
        expect(Buffer.from(decodeStdin(text)).toString("latin1")).toBe(text);
        expect(stdinBytes(text)).toBe(text.length);
      }),
    );
  });

  test.each([
    "é",
    "base64:a",
    "base64:a===",
    "base64:YQ",
    "base64:YR==",
    "base64:YQ==\n",
    "base64:Y_-=",
    "base64: YQ==",
  ])("%j is refused", (text) => {
    expect(refusal(() => check({ stdin: text })).details["field"]).toBe("stdin");
  });

  test("it may have 10 MiB after decoding", () => {
    const encoded = (sizeBytes: number) => `base64:${Buffer.alloc(sizeBytes).toString("base64")}`;
    for (const text of ["x".repeat(STDIN_BYTES_MAX), encoded(STDIN_BYTES_MAX), encoded(STDIN_BYTES_MAX - 1)]) {
      expect(check({ stdin: text }).stdin).toBe(text);
    }
    expect(decodeStdin(encoded(STDIN_BYTES_MAX)).byteLength).toBe(STDIN_BYTES_MAX);
    for (const text of ["x".repeat(STDIN_BYTES_MAX + 1), encoded(STDIN_BYTES_MAX + 1)]) {
      expect(refusal(() => check({ stdin: text })).message).toContain(`${STDIN_BYTES_MAX}`);
    }
  });

  test.each(["", "base64:", "base64:YQ==", "base64:AP8=", "base64:AP8A"])("%j is accepted", (text) => {
    expect(check({ stdin: text }).stdin).toBe(text);
  });
});

describe("arguments and environment", () => {
  test.each([
    ["command with NUL", { command: "a\0" }, "command"],
    ["command that is not Unicode", { command: "\ud800" }, "command"],
    ["argument with NUL", { args: ["a\0"] }, "args"],
    ["env without a name", { env: { "": "x" } }, "env"],
    ["env name with =", { env: { "A=B": "x" } }, "env"],
    ["env value with NUL", { env: { A: "\0" } }, "env"],
    ["command too long", { command: "x".repeat(ARGUMENT_BYTES_MAX + 1) }, "command"],
    ["argument too long in bytes", { args: ["é".repeat(ARGUMENT_BYTES_MAX / 2 + 1)] }, "args"],
    ["env string too long", { env: { A: "x".repeat(ARGUMENT_BYTES_MAX - 1) } }, "env"],
    ["too much in all", { args: Array.from({ length: 20 }, () => "x".repeat(ARGUMENT_BYTES_MAX)) }, "command"],
    ["too many variables", { env: variables(ENV_COUNT_MAX + 1) }, "env"],
    ["too many variables, of which one is taken away", { env: variables(ENV_COUNT_MAX), unset: ["A"] }, "env"],
    ["too many in all", { args: Array.from({ length: 250_000 }, () => "") }, "command"],
  ] as const)("%s", (_name, fields, field) => {
    const error = refusal(() => check(fields as Partial<SpawnInput>));
    expect(error.code).toBe("validation_error");
    expect(error.details["field"]).toBe(field);
  });

  test("the longest allowed ones are accepted", () => {
    expect(check({ command: "x".repeat(ARGUMENT_BYTES_MAX) }).argv).toHaveLength(1);
    expect(check({ env: { A: "x".repeat(ARGUMENT_BYTES_MAX - 2) } }).env).toHaveProperty("A");
    expect(Object.keys(check({ env: variables(ENV_COUNT_MAX) }).env)).toHaveLength(ENV_COUNT_MAX);
  });
});

describe("paths", () => {
  test.each(["", "relative", "/a/../b", "/a\0", `/${"a/".repeat(2100)}`, "\ud800", `/${"x".repeat(256)}`])(
    "cwd %j is an invalid path",
    (cwd) => {
      const error = refusal(() => check({ cwd }));
      expect(error.code).toBe("invalid_path");
      expect(error.message).toStartWith("cwd");
    },
  );

  test.each(["", "relative", "/", "//", "/a/..", "/a\0b"])("file path %j is an invalid path", (path) => {
    expect(refusal(() => check({ files: { [path]: { fileId: UUID } } })).code).toBe("invalid_path");
  });

  test("files are normalised, with mode 0644 and root as the owner by default", () => {
    expect(
      check({
        files: { "/a//b/./c": { fileId: UUID.toUpperCase() }, "/d": { fileId: UUID, mode: "4755", uid: 1, gid: 2 } },
      }).files,
    ).toEqual([
      { path: "/a/b/c", fileId: UUID as never, mode: 0o644, uid: 0, gid: 0 },
      { path: "/d", fileId: UUID as never, mode: 0o4755, uid: 1, gid: 2 },
    ]);
  });

  test("two spellings of one path are refused", () => {
    const files = { "/a/b": { fileId: UUID }, "/a//b": { fileId: UUID } };
    expect(refusal(() => check({ files })).code).toBe("validation_error");
  });

  test("at most 1024 files", () => {
    const files = Object.fromEntries(Array.from({ length: 1025 }, (_, index) => [`/${index}`, { fileId: UUID }]));
    expect(refusal(() => check({ files })).details["field"]).toBe("files");
  });
});

describe("bounds of the operator", () => {
  test.each([
    [{ timeoutSeconds: 3601 }, "timeout", 3600],
    [{ resources: { vcpus: 5 } }, "resources.vcpus", 4],
    [{ resources: { memoryBytes: 2_000_000_000 } }, "resources.memory_bytes", 1_073_741_824],
    [{ resources: { diskBytes: 5_000_000_000 } }, "resources.disk_bytes", 4_294_967_296],
  ])("%j", (fields, field, maximum) => {
    const error = refusal(() => check(fields));
    expect(error.details).toEqual({ field, minimum: 1, maximum });
    expect(error.message).toBe(`${field} must be an integer from 1 to ${maximum}`);
  });
});
