import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

/** Fields of /proc/cpuinfo that a guest with KVM can see. */
const PROCESSOR_FIELDS = ["vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"];

/** A hash that differs for two processors where saved memory of a guest with KVM may. */
export function hostProcessor(): string {
  const [first = ""] = readFileSync("/proc/cpuinfo", "utf8").split("\n\n");
  return hashOf(first.split("\n").filter((line) => PROCESSOR_FIELDS.includes(line.split("\t")[0] ?? "")));
}

/** The SHA-256 of lines, in hexadecimal. */
export function hashOf(lines: readonly string[]): string {
  return createHash("sha256").update(lines.join("\n")).digest("hex");
}
