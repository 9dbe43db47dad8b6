import { expect, test } from "bun:test";
import { KEPT_CHARACTERS_MAX } from "../../../../src/db/requests.ts";
import type { FileId } from "../../../../src/domain/ids.ts";
import type { InstanceBody } from "../../../../src/domain/spawn.ts";
import { bodyToKeep, keptInstance } from "../../../../src/supervisor/kinds/instance.ts";
import { newId } from "../../../support/database.ts";

const body: InstanceBody = {
  imageId: newId(),
  argv: ["/bin/bash", "-c", "echo $1", "/bin/bash", "a", "b"],
  ...{ shell: true, inherit: true, unset: ["LANG"], envNames: ["TOKEN"], stdinBytes: 5 },
  ...{ cwd: "/work", isCwdGiven: true, preserveEnv: true, preserveCwd: false },
  ...{ uid: 1, gid: 2, hostname: "box", timeoutSeconds: 9, truncateOutputAtBytes: 7, disposable: true },
  ...{ stdinOpen: false, terminal: null, network: null, requestedAt: null, tag: null, isCut: false },
  files: [{ path: "/f", fileId: newId<FileId>(), sha256: "s", sizeBytes: 3, mode: 0o600, uid: 4, gid: 5 }],
};
const file = body.files[0] as InstanceBody["files"][number];

test("a kept request has the caller's terms", () => {
  const kept = keptInstance(body, null);
  expect(kept).toMatchObject({ kind: "instance", command: "echo $1", args: ["a", "b"], shell: true, isCut: false });
  expect(kept.files).toEqual([{ path: "/f", fileId: file.fileId, mode: 0o600, uid: 4, gid: 5 }]);
  expect(kept).toMatchObject({ envNames: ["TOKEN"], unset: ["LANG"], stdinBytes: 5, cwd: "/work", resources: null });
  expect(kept).not.toHaveProperty("argv");
  const plain = keptInstance({ ...body, argv: ["ls", "-l"], shell: false }, null);
  expect(plain).toMatchObject({ command: "ls", args: ["-l"] });
  expect(keptInstance({ ...body, argv: ["/bin/sh", "-c", "true"] }, null)).toMatchObject({ command: "true", args: [] });
});

test("a body that fits is kept unchanged", () => {
  expect(bodyToKeep(body)).toBe(body);
  expect(bodyToKeep({ ...body, argv: ["x".repeat(60_000)] })).toHaveProperty("isCut", false);
});

const WILD = "\u0001".repeat(130_000);
const rules = Array.from({ length: 256 }, (_, n) => ({ host: `${n}${"h".repeat(200)}`, ports: [1, 2, 3] }));
const LONG: Record<string, Partial<InstanceBody>> = {
  "a long expression": { argv: ["/bin/sh", "-c", WILD] },
  "a long shell": { argv: [WILD, "-c", "true", WILD, "a"] },
  "a long argument": { argv: ["/bin/sh", "-c", "true", "/bin/sh", "first", WILD, "last"] },
  "many arguments": { argv: ["/bin/sh", "-c", "true", "/bin/sh", ...Array.from({ length: 90_000 }, () => "")] },
  "pairs of characters": { argv: ["/bin/sh", "-c", `x${"🌱".repeat(65_000)}`] },
  "many files": { files: Array.from({ length: 1024 }, (_, n) => ({ ...file, path: `/${n}${"\u0001".repeat(4000)}` })) },
  "many variables": { envNames: Array.from({ length: 50_000 }, (_, n) => `V${n}`) },
  "a long name": { envNames: [WILD], unset: [WILD, WILD] },
  "many rules": { network: { allow: rules, tls: "sni", record: false }, envNames: [WILD] },
  "a long directory": { cwd: `/${"\u0001".repeat(4000)}`, argv: ["/bin/sh", "-c", WILD] },
};
test.each(Object.entries(LONG))("a body with %s is cut, and has its beginning", (_, long) => {
  const whole = { ...body, ...long };
  const cut = bodyToKeep(whole);
  expect(JSON.stringify(cut).length).toBeLessThanOrEqual(KEPT_CHARACTERS_MAX);
  expect(JSON.stringify(cut).isWellFormed()).toBe(true);
  const kept = keptInstance(cut, null);
  const all = keptInstance(whole, null);
  expect(kept.isCut).toBe(true);
  expect(all.command.startsWith(kept.command.slice(0, -1))).toBe(true);
  expect(kept.command.length).toBeGreaterThan(3);
  expect(all.args.length - kept.args.length).toBeGreaterThanOrEqual(0);
  expect(kept).toMatchObject({ uid: 1, hostname: "box", timeoutSeconds: 9, shell: true });
});

test("everything long at once is cut, too", () => {
  const all = Object.assign({}, body, ...Object.values(LONG), { hostname: WILD, argv: Array(9).fill(WILD) });
  const cut = bodyToKeep(all as InstanceBody);
  expect(JSON.stringify(cut).length).toBeLessThanOrEqual(KEPT_CHARACTERS_MAX);
  expect(cut.argv.length).toBeGreaterThan(0);
});
