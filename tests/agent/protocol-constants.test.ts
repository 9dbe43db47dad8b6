import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import * as indexStream from "../../src/domain/tree/index-stream.ts";
import * as protocol from "../../src/vm/agent/protocol.ts";

const header = readFileSync(join(import.meta.dir, "../../vm-assets/agent/protocol.h"), "utf8");

/** `putOpen` is PUT_OPEN in C. */
const upper = (name: string): string => name.replace(/[A-Z]/g, "_$&").toUpperCase();

/** The constants of the header that are numbers: macros and enumerators. */
function constantsOfHeader(): Record<string, number> {
  const macros = [...header.matchAll(/^#define ([A-Z]\w*) (0x[0-9a-f]+|\d+)$/gim)];
  const enumerators = [...header.matchAll(/\b([A-Z][A-Z0-9_]*) = (0x[0-9a-f]+|\d+)/g)];
  return Object.fromEntries([...macros, ...enumerators].map(([, name = "", value = ""]) => [name, Number(value)]));
}

/** The same of the TypeScript modules, named as the header would. */
function constantsOfModules(): Record<string, number> {
  const prefixes: Record<string, string> = { HostFrame: "HOST", AgentFrame: "AGENT" };
  const result: Record<string, number> = {};
  for (const [name, value] of Object.entries({ ...indexStream, ...protocol })) {
    if (typeof value === "number") result[name] = value;
    else {
      const prefix = prefixes[name] ?? upper(name).slice(1);
      for (const [key, number] of Object.entries(value)) result[`${prefix}_${upper(key)}`] = number;
    }
  }
  return result;
}

test("index-stream.ts and protocol.ts together have the same constants as protocol.h", () => {
  const ofModules = constantsOfModules();
  expect(Object.keys(ofModules).length).toBeGreaterThan(40);
  expect(constantsOfHeader()).toEqual(ofModules);
});
