/**
 * A program that is replaced while it runs, as by an upgrade: it starts a connecting process afterwards, and prints the
 * verdict about a name that does not exist.
 */
import { copyFile, rename } from "node:fs/promises";
import { testGate } from "./gate.ts";

const other = `${process.execPath}.other`;
await copyFile("/bin/true", other);
await rename(other, process.execPath);
await using outside = await testGate();
const exists = await outside.gate.resolve("name.example", new AbortController().signal);
process.stdout.write(`${exists} ${outside.warnings.length}\n`);
