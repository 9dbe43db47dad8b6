/** Records that a damaged disk, another version or an operator's editor has left. */
import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  FORMAT_NUMBER,
  type InstanceRecord,
  parseRecord,
  RECORD_BYTES_MAX,
} from "../../../../src/supervisor/survivors/instance-record.ts";
import { PROTOCOL_VERSION } from "../../../../src/vm/agent/protocol.ts";
import { BOOT_ID, instanceRecord } from "../../../support/survivors/record.ts";

const UNREADABLE = "the record of its machine cannot be read";
const RECORD = instanceRecord();
const TEXT = JSON.stringify(RECORD);

const parsed = (text: string | null) => parseRecord(text, BOOT_ID);
const problemOf = (value: unknown) => parsed(JSON.stringify(value));

/** Every path to a field that the record must have, with the objects of its arrays. */
function pathsOf(value: unknown, below: readonly (string | number)[] = []): (readonly (string | number)[])[] {
  if (typeof value !== "object" || value === null) return [];
  return Object.entries(value).flatMap(([name, child]) => {
    const path = [...below, Array.isArray(value) ? Number(name) : name];
    return [path, ...pathsOf(child, path)];
  });
}

/** The record with another value at a path; undefined: without the field. */
function changed(path: readonly (string | number)[], value: unknown): unknown {
  const copy = structuredClone(RECORD) as unknown as Record<string | number, unknown>;
  let at = copy;
  for (const name of path.slice(0, -1)) at = at[name] as Record<string | number, unknown>;
  at[path.at(-1) ?? ""] = value;
  return copy;
}

/** The fields that only readers of the audit use. */
const isFree = ([first, , third]: readonly (string | number)[]) => first === "network" && third !== undefined;

describe("a record", () => {
  test("is read as it was written, also with fields of a later version of the same format", () => {
    expect(parsed(TEXT)).toEqual({ record: RECORD, problem: null });
    expect(problemOf({ ...RECORD, later: { field: 1 } })).toMatchObject({ problem: null });
  });

  test("is missing", () => {
    expect(parsed(null)).toEqual({ operationId: null, problem: "its machine has no record" });
  });

  test("that was cut off anywhere cannot be read, and nothing is believed of it", () => {
    for (let length = 0; length < TEXT.length; length++) {
      expect(parsed(TEXT.slice(0, length))).toEqual({ operationId: null, problem: UNREADABLE });
    }
  });

  test("without any one of its fields, or with one of another type, cannot be read", () => {
    const paths = pathsOf(RECORD).filter((path) => !isFree(path) && typeof path.at(-1) === "string");
    expect(paths.length).toBeGreaterThan(30);
    for (const path of paths) {
      for (const value of [undefined, {}, "", 0.5]) {
        // Its own checks come first, and name the operation.
        const { problem } = problemOf(changed(path, value));
        expect({ path, value, problem }).toEqual({ path, value, problem: expect.any(String) });
      }
    }
  });

  test.each<[string, Partial<InstanceRecord["machine"]>]>([
    ["a process without a number", { launcher: { pid: 0, startTicks: 1 } }],
    ["the first process of the host", { monitor: { pid: 1, startTicks: 1 } }],
    ["a negative process: a group", { monitor: { pid: -5, startTicks: 1 } }],
    ["a fraction of a process", { launcher: { pid: 2.5, startTicks: 1 } }],
    ["the superuser", { uid: 0 }],
    ["an id that is a path", { id: "../../etc" }],
    ["a root that is not absolute", { root: "run/coppice" }],
    ["no disk", { disks: [] }],
    ["too many disks", { disks: Array.from({ length: 1025 }, () => ({ serial: "a", node: "b" })) }],
    ["a name of 4097 characters", { version: "v".repeat(4097) }],
    ["no processor", { shape: { vcpus: 0, memoryBytes: 1 } }],
    ["an unknown monitor", { vmm: "vmware" as "qemu" }],
  ])("with %s cannot be read, but names its operation", (_what, machine) => {
    const value = { ...RECORD, machine: { ...RECORD.machine, ...machine } };
    expect(problemOf(value)).toEqual({ operationId: RECORD.operationId, problem: UNREADABLE });
  });

  test("with layers that are paths, none, or too many cannot be read", () => {
    const [layer] = RECORD.layers;
    for (const layers of [["../secret"], [`${layer}\n`], [], Array.from({ length: 1025 }, () => layer)]) {
      expect(problemOf({ ...RECORD, layers })).toEqual({ operationId: RECORD.operationId, problem: UNREADABLE });
    }
  });

  test("of an operation whose id is a path names no operation", () => {
    for (const operationId of ["../../x", "", null, 7, `${RECORD.operationId}/..`, RECORD.operationId.toUpperCase()]) {
      expect(problemOf({ ...RECORD, operationId })).toEqual({ operationId: null, problem: UNREADABLE });
    }
  });

  test("of another format, boot or protocol is refused with that reason, whatever else it has", () => {
    const { operationId } = RECORD;
    const unless = (change: object, problem: string) =>
      expect(
        problemOf({ operationId, format: FORMAT_NUMBER, bootId: BOOT_ID, protocol: PROTOCOL_VERSION, ...change }),
      ).toEqual({
        operationId,
        problem,
      });
    unless({ format: FORMAT_NUMBER + 1 }, "the record of its machine has another format");
    unless({ format: FORMAT_NUMBER + 1, bootId: "other" }, "the record of its machine has another format");
    unless({ bootId: "other" }, "its machine is of another boot of the host");
    for (const protocol of [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1]) {
      const problem = `its agent speaks protocol version ${protocol}, and this service ${PROTOCOL_VERSION}`;
      unless({ protocol }, problem);
    }
    unless({}, UNREADABLE);
  });

  test("of more than 8 MiB is not parsed", () => {
    expect(parsed(`${TEXT}${" ".repeat(RECORD_BYTES_MAX)}`)).toEqual({ operationId: null, problem: UNREADABLE });
  });

  test("that is any other JSON, or none, is refused without an error", () => {
    const deep = "[".repeat(100_000);
    for (const text of ["", "null", "7", '"text"', "[]", "{}", deep, `{"__proto__":${TEXT}}`, "\0", TEXT + TEXT]) {
      expect(parsed(text)).toEqual({ operationId: null, problem: UNREADABLE });
    }
    const paths = pathsOf(RECORD).filter((path) => !isFree(path));
    const at = fc.integer({ min: 0, max: paths.length - 1 });
    const isHandled = fc.property(fc.anything(), at, (value, index) => {
      const { operationId, ...problem } = { operationId: null, ...problemOf(changed(paths[index] ?? [], value)) };
      return problem.problem === null || operationId === RECORD.operationId || paths[index]?.[0] === "operationId";
    });
    expect(fc.check(isHandled).failed).toBe(false);
  });
});
