import { expect, test } from "bun:test";
import { importFields, instanceFields } from "../../../../src/api/contree/metadata.ts";
import { resultOf, summaryOf } from "../../../../src/api/contree/operation-wire.ts";
import { exitOfResult, resourcesOf, stateOf } from "../../../../src/api/contree/process-wire.ts";
import type { FileId, ImageId, OperationId } from "../../../../src/domain/ids.ts";
import type { Operation } from "../../../../src/service/operations.ts";

const IMAGE = "0195f3a2-0000-7000-8000-000000000001" as ImageId;
const OTHER = "0195f3a2-0000-7000-8000-000000000002" as ImageId;
const OPERATION: Operation = {
  ...{ id: "0195f3a2-0000-7000-8000-000000000003" as OperationId, kind: "instance", status: "EXECUTING" },
  ...{ createdAt: 1_800_000_000_000, startedAt: 1_800_000_001_000, finishedAt: null, imageId: IMAGE },
  ...{ result: null, error: null, parentId: null, forkedAtEvent: null },
};
const PARTS = { imageSizes: new Map([[OTHER, 86_016]]), nowMs: 1_800_000_003_500 };

test("an operation without a stored request has the defaults, without null where clients refuse it", () => {
  const fields = instanceFields({ imageId: null }, null);
  expect(fields).toMatchObject({ command: "", args: [], env: {}, files: {}, cwd: "", timeout: 300, disposable: false });
  expect(Object.values(fields)).not.toContain(null);
  expect(fields.image).toMatch(/^[0-9a-f-]{36}$/);
  expect(instanceFields(OPERATION, null).image).toBe(IMAGE);
  expect(importFields(null)).toEqual({ registry: { url: "" }, tag: null, timeout: 300 });
});

test("shows names of variables without their values, and directories and files as in the request", () => {
  const kept = {
    kind: "instance",
    ...{ imageId: OTHER, command: "x", args: ["y"], shell: false, envNames: ["A", "__proto__"] },
    ...{
      unset: ["B"],
      inherit: true,
      preserveEnv: true,
      preserveCwd: false,
      cwd: "/w",
      isCwdGiven: true,
      uid: 1,
      gid: 2,
    },
    ...{
      hostname: null,
      timeoutSeconds: 5,
      truncateOutputAtBytes: 6,
      disposable: true,
      tag: null,
      stdinBytes: 7,
      stdinOpen: true,
    },
    ...{ terminal: null, resources: { vcpus: 1, memoryBytes: 2, diskBytes: 3 }, network: null, isCut: false },
    files: [{ path: "/f", fileId: "0195f3a2-0000-7000-8000-000000000004" as FileId, mode: 0o40, uid: 8, gid: 9 }],
  } as const;
  const fields = instanceFields(OPERATION, kept);
  expect(Object.entries(fields.env)).toEqual([
    ["B", ""],
    ["A", "<MASKED>"],
    ["__proto__", "<MASKED>"],
  ]);
  expect(fields).toMatchObject({
    ...{ image: OTHER, cwd: "/w", stdin: { value: "", encoding: "ascii", close: false }, preserve_env: true },
    ...{ files: { "/f": { uuid: "0195f3a2-0000-7000-8000-000000000004", mode: "0040", uid: 8, gid: 9 } } },
    ...{ resources_limits: { max_layer_bytes: 3 }, networking: { enabled: false } },
  });
  expect(instanceFields(OPERATION, { ...kept, isCwdGiven: false }).cwd).toBe("");
});

test("credentials of an import are masked", () => {
  const kept = { kind: "image_import", tag: "t", timeoutSeconds: 9, hadCredentials: true } as const;
  const source = { kind: "registry", reference: "host:5000/a/b:c" } as const;
  expect(importFields({ ...kept, source })).toEqual({
    registry: { url: "docker://host:5000/a/b:c", credentials: { username: "<MASKED>", password: "<MASKED>" } },
    ...{ tag: "t", timeout: 9 },
  });
  const archive = { kind: "archive", fileId: "f" as FileId, sha256: "" } as const;
  expect(importFields({ ...kept, source: archive, hadCredentials: false }).registry).toEqual({ url: "file:f" });
});

test("the duration is never null, and grows until the end", () => {
  const duration = (times: Partial<Operation>) => summaryOf({ ...OPERATION, ...times }, PARTS).duration;
  expect(duration({})).toBe(2.5);
  expect(duration({ startedAt: null })).toBe(0);
  expect(duration({ finishedAt: 1_800_000_001_321 })).toBe(0.321);
  expect(duration({ finishedAt: 1_800_000_000_000 })).toBe(0);
});

test("only a successful operation has an image, with a size while the image exists", () => {
  const ended = {
    ...OPERATION,
    status: "SUCCESS",
    result: { image: OTHER, cpu_time_ms: 15, memory_bytes: 4097 },
  } as const;
  expect(summaryOf(ended, PARTS)).toMatchObject({
    ...{ image_uuid: IMAGE, result_image_uuid: OTHER, image_size: 86_016, consumed_cpu: 0.015, consumed_memory: 5 },
  });
  expect(resultOf(ended)).toEqual({ image: OTHER, tag: null });
  expect(summaryOf(ended, { ...PARTS, imageSizes: new Map() }).image_size).toBeNull();
  expect(resultOf(OPERATION)).toBeNull();
  const error = { error: "unavailable", message: "the machine failed", details: { cpu_time_ms: 7 } } as const;
  const failed = { ...OPERATION, status: "FAILED", error } as const;
  expect(summaryOf(failed, PARTS)).toMatchObject({
    error: "the machine failed",
    consumed_cpu: 0.007,
    consumed_memory: null,
  });
  expect(resultOf(failed)).toEqual({ image: null, tag: null });
  const imported = { ...ended, kind: "image_import", imageId: OTHER, result: { image: OTHER, tag: "t" } } as const;
  expect(summaryOf(imported, PARTS)).toMatchObject({ kind: "image_import", image_uuid: null, consumed_cpu: null });
  expect(resultOf(imported)).toEqual({ image: OTHER, tag: "t" });
  expect(summaryOf({ ...OPERATION, kind: "checkpoint" }, PARTS).kind).toBe("instance");
});

test("the end of a command without a log comes from the result", () => {
  const result = {
    ...{ exit_code: 137, cpu_time_ms: 1500, memory_bytes: 2048 },
    isolation: "vm",
    ...{ stdout: { truncated: false, bytes: 0 }, stderr: { truncated: false, bytes: 0 } },
  } as const;
  const late = exitOfResult({ ...result, timed_out: true }, 2500);
  expect(stateOf(0, late)).toMatchObject({ exit_code: -1, signal: 9, timed_out: true });
  expect(resourcesOf(late)).toMatchObject({ elapsed_time: 2.5, user_cpu_time: 1.5, max_rss: 2 });
  expect(stateOf(0, exitOfResult({ ...result, timed_out: false }, 0))).toMatchObject({ exit_code: 137, signal: -1 });
  expect(stateOf(4, null)).toMatchObject({ exit_code: -1, signal: -1, pid: 4, timed_out: false });
  expect(Object.values(resourcesOf(null))).toEqual(Array.from({ length: 16 }, () => 0));
});
