import type { Database } from "../db/database.ts";
import { probeDatabase } from "../db/totals.ts";
import type { Check, Readiness } from "../domain/readiness.ts";
import { requireSpace } from "../storage/free-space.ts";
import type { DataLayout } from "../storage/layout.ts";
import { findProgram } from "../system/exec.ts";
import type { MachineProvider } from "./machines/machine-provider.ts";

/** Programs that imports need, and that create file systems. */
const TOOLS = ["skopeo", "umoci", "mkfs.erofs", "mke2fs"] as const;

export interface ReadinessOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly machines: MachineProvider;
  readonly diskReserveBytes: number;
}

/** Checks everything that an instance or an import needs; cheap enough to be called every second. */
export function readinessOf({ db, layout, machines, diskReserveBytes }: ReadinessOptions): Readiness {
  const { isolation, acceleration, template } = machines.state();
  const checks: Check[] = [
    { name: "acceleration", ...verdict(acceleration) },
    { name: "template", ...verdict(template) },
    { name: "disk", ...verdict(reasonOf(() => requireSpace(layout.root, diskReserveBytes))) },
    { name: "database", ...verdict(reasonOf(() => probeDatabase(db))) },
    { name: "registry_tools", ...verdict(missingTools()) },
  ];
  // Without acceleration there is no template; one reason is enough.
  const bad = checks.filter(({ ok, name }) => !ok && (name !== "template" || acceleration === ""));
  return { ready: bad.length === 0, isolation, reason: bad.map(({ reason }) => reason).join("; "), checks };
}

/** An empty reason means success. */
function verdict(reason: string): Omit<Check, "name"> {
  return { ok: reason === "", reason };
}

function reasonOf(check: () => void): string {
  try {
    check();
    return "";
  } catch (error) {
    return (error as Error).message;
  }
}

function missingTools(): string {
  const missing = TOOLS.filter((name) => findProgram(name) === null);
  return missing.length === 0 ? "" : `missing: ${missing.join(", ")}`;
}
