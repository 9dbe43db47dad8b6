/**
 * Writes the guest's initramfs, an uncompressed newc archive that depends only on its inputs:
 * `bun build.ts AGENT MODULE_DIRECTORY MODULE_LIST OUTPUT`. It contains the agent as /init, the modules, and the lists
 * /modules/early, /modules/vsock and /modules/late, which give the order of loading.
 */
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** Lists of modules. The agent loads a list completely, or not at all. */
const PHASES: readonly string[] = ["early", "vsock", "late"];
const MODE_DIRECTORY = 0o040755;
const MODE_EXECUTABLE = 0o100755;
const MODE_FILE = 0o100644;
const MODE_CHARACTER = 0o020600;

interface Entry {
  readonly name: string;
  readonly mode: number;
  readonly data: Uint8Array;
  readonly device?: readonly [major: number, minor: number];
}

function padded(bytes: Uint8Array): Uint8Array {
  const result = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
  result.set(bytes);
  return result;
}

/** One member of the archive; owner, times and checksum are zero. */
function member(entry: Entry, inode: number): Uint8Array[] {
  const name = new TextEncoder().encode(`${entry.name}\0`);
  const [major, minor] = entry.device ?? [0, 0];
  const fields = [inode, entry.mode, 0, 0, 1, 0, entry.data.length, 0, 0, major, minor, name.length, 0];
  const header = `070701${fields.map((field) => field.toString(16).toUpperCase().padStart(8, "0")).join("")}`;
  return [padded(Buffer.concat([new TextEncoder().encode(header), name])), padded(entry.data)];
}

function readModules(directory: string, list: string): { phase: string; name: string; data: Uint8Array }[] {
  const modules = [];
  for (const line of readFileSync(list, "utf8").split("\n")) {
    const [name, phase] = line.trim().split(/\s+/);
    if (name === undefined || name === "" || name.startsWith("#")) continue;
    if (phase === undefined || !PHASES.includes(phase)) throw new Error(`${list}: ${name} has no phase`);
    const path = join(directory, `${name}.ko`);
    if (existsSync(path)) modules.push({ phase, name: `${name}.ko`, data: readFileSync(path) });
  }
  return modules;
}

function build(agent: string, directory: string, list: string): Uint8Array {
  const none = new Uint8Array();
  const modules = readModules(directory, list);
  const entries: Entry[] = [
    { name: "dev", mode: MODE_DIRECTORY, data: none },
    // The kernel opens it for init before devtmpfs is mounted.
    { name: "dev/console", mode: MODE_CHARACTER, data: none, device: [5, 1] },
    { name: "init", mode: MODE_EXECUTABLE, data: readFileSync(agent) },
    { name: "modules", mode: MODE_DIRECTORY, data: none },
  ];
  for (const phase of PHASES) {
    const names = modules.filter((module) => module.phase === phase).map((module) => `${module.name}\n`);
    entries.push({ name: `modules/${phase}`, mode: MODE_FILE, data: new TextEncoder().encode(names.join("")) });
  }
  for (const { name, data } of modules) entries.push({ name: `modules/${name}`, mode: MODE_FILE, data });
  const parts = entries.flatMap((entry, index) => member(entry, index + 1));
  parts.push(...member({ name: "TRAILER!!!", mode: 0, data: none }, 0));
  return Buffer.concat(parts);
}

const [agent, directory, list, output] = Bun.argv.slice(2);
if (agent === undefined || directory === undefined || list === undefined || output === undefined) {
  throw new Error("usage: build.ts AGENT MODULE_DIRECTORY MODULE_LIST OUTPUT");
}
writeFileSync(`${output}.new`, build(agent, directory, list));
renameSync(`${output}.new`, output);
