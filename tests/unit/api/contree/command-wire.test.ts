import { describe, expect, test } from "bun:test";
import { commandOf, spawnOf } from "../../../../src/api/contree/command-wire.ts";
import type { InstanceSpawn } from "../../../../src/api/contree/schema/instances.ts";
import { ARGUMENT_BYTES_MAX } from "../../../../src/domain/instance.ts";

const BOUNDS = { instanceTimeoutSecondsMax: 3600, diskBytesMax: 1000 };
const UUID = "0195f3a2-0000-7000-8000-000000000000";
const spawn = (request: Partial<InstanceSpawn>) => spawnOf({ image: "tag:x", command: "true", ...request }, BOUNDS);

describe("a request for an instance", () => {
  test("has the defaults of this dialect", () => {
    expect(spawn({})).toEqual({
      ...{ image: "tag:x", command: "true", args: [], shell: false, inherit: true, env: {}, unset: [] },
      ...{ cwd: undefined, uid: 0, gid: 0, hostname: "linuxkit", disposable: false, files: {} },
      ...{ preserveEnv: false, preserveCwd: false, stdin: undefined, stdinOpen: false, timeoutSeconds: 3600 },
      ...{ truncateOutputAtBytes: undefined, resources: undefined, network: "ceiling", timeoutFrom: "request" },
    });
  });

  test("with null in every field is the same", () => {
    const none = { args: null, shell: null, env: null, cwd: null, uid: null, gid: null, stdin: null, hostname: null };
    const more = { truncate_output_at: null, preserve_env: null, preserve_cwd: null, disposable: null, timeout: null };
    expect(spawn({ ...none, ...more, files: null, resources_limits: null, networking: null })).toEqual(spawn({}));
    expect(spawn({ cwd: "", hostname: "", networking: {}, resources_limits: {} })).toEqual(spawn({}));
    expect(spawn({ networking: { enabled: null }, resources_limits: { max_layer_bytes: null } })).toEqual(spawn({}));
    expect(spawn({ stdin: { value: "", close: null } })).toEqual(spawn({}));
  });

  test("is lowered to the limits of the operator", () => {
    expect(spawn({ timeout: 3601 }).timeoutSeconds).toBe(3600);
    expect(spawn({ timeout: 60 }).timeoutSeconds).toBe(60);
    expect(spawn({ resources_limits: { max_layer_bytes: 1001 } }).resources).toEqual({ diskBytes: 1000 });
    expect(spawn({ resources_limits: { max_layer_bytes: 5 } }).resources).toEqual({ diskBytes: 5 });
    expect(spawn({ networking: { enabled: false } }).network).toBeUndefined();
  });

  test("removes variables with null, or with an empty value when the result keeps them", () => {
    const env = { A: "1", B: "", C: null, __proto__x: "2" };
    expect(spawn({ env })).toMatchObject({ env: { A: "1", B: "", __proto__x: "2" }, unset: ["C"] });
    expect(spawn({ env, preserve_env: true })).toMatchObject({ env: { A: "1" }, unset: ["B", "C"], preserveEnv: true });
    const hostile = JSON.parse('{"__proto__": "x", "constructor": "y"}') as Record<string, string>;
    expect(Object.entries(spawn({ env: hostile }).env ?? {})).toEqual(Object.entries(hostile));
  });

  test.each([
    [null, undefined],
    ["0644", "0644"],
    ["644", "0644"],
    ["0", "0000"],
    ["0o755", "0755"],
    ["0o100644", "0644"],
    ["100600", "0600"],
    ["4755", "4755"],
    ["7777777", "7777"],
    [0o600, "0600"],
    [0o100755, "0755"],
  ] as const)("mode %p of a file is %p", (mode, expected) => {
    expect(spawn({ files: { "/x": { uuid: UUID, mode, uid: null, gid: 7 } } }).files).toEqual({
      "/x": { fileId: UUID, mode: expected, uid: 0, gid: 7 },
    } as never);
  });
});

describe("a command", () => {
  test("without a shell keeps its arguments", () => {
    expect(commandOf({ command: "ls", args: ["a b", "$x"] })).toMatchObject({ command: "ls", args: ["a b", "$x"] });
  });

  test.each([
    [["-s", "--", "a"], "/bin/sh -s -- a"],
    [["a b", "it's", "", "$x", "`", "\n", "é"], "/bin/sh 'a b' 'it'\\''s' '' '$x' '`' '\n' 'é'"],
    [["a/b.c-d_e=f,g:h@i%j+k"], "/bin/sh a/b.c-d_e=f,g:h@i%j+k"],
    [[], "/bin/sh"],
  ])("with a shell takes %j as words of its expression", (args, expected) => {
    expect(commandOf({ command: "/bin/sh", shell: true, args })).toMatchObject({ command: expected, args: [] });
  });

  test("stops quoting an expression that is too long to run", () => {
    const { command } = commandOf({ command: "x", shell: true, args: Array.from({ length: 1_000_000 }, () => "'") });
    expect(command.length).toBeGreaterThan(ARGUMENT_BYTES_MAX);
    expect(command.length).toBeLessThan(ARGUMENT_BYTES_MAX + 100);
  });

  test("that is empty is a shell", () => {
    expect(commandOf({ command: "" })).toMatchObject({ command: "/bin/sh", args: [], shell: false });
    expect(commandOf({ command: "", shell: true, args: ["-e"] })).toMatchObject({ command: "/bin/sh -e", args: [] });
  });

  test("keeps its standard input open only on request", () => {
    expect(commandOf({ command: "x", stdin: { value: "", close: false } })).toMatchObject({ stdinOpen: true });
    expect(commandOf({ command: "x", stdin: { value: "a", close: true } })).toMatchObject({
      stdin: "a",
      stdinOpen: false,
    });
  });
});
