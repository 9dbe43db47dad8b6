import { existsSync } from "node:fs";
import { mkdir, readdir, readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openCgroupTree } from "../../cgroup/cgroup.ts";
import type { Config } from "../../config/config.ts";
import { silentLog } from "../../log.ts";
import { dataLayout } from "../../storage/layout.ts";
import { machineCandidates } from "../../supervisor/machines/open-platform.ts";
import { scratchBytes } from "../../supervisor/machines/scratch-disks.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import { resolveAssets } from "../../vm/assets.ts";
import { UidPool } from "../../vm/jail/uid-pool.ts";
import { type CandidateVerdict, PROBE_MEMO_NAME, probe } from "../../vm/probe.ts";
import { templateShape } from "../../vm/templates.ts";

/** User ids that a trial may need at once: for the machine that it saves, and for the clone. */
const UIDS_COUNT = 4;

/**
 * Boots, saves and clones a machine as the appliance would, in a directory, control groups and under users of its own,
 * so that it does not disturb an appliance that runs here. Leaves nothing behind.
 * @returns the verdicts about the ways to run machines, the best first, up to the first that works
 * @throws Error if no trial is possible; the reason of `signal`
 */
export async function tryMachines(config: Config, signal: AbortSignal): Promise<readonly CandidateVerdict[]> {
  await using stack = new AsyncDisposableStack();
  const { path } = stack.use(await scratchDirectory(scratchParent(config.dataDir), "trial-"));
  const vmsDirectory = join(path, "vms");
  await mkdir(vmsDirectory);
  // The assets of an appliance here may be of another version, and each version removes those of the other.
  const assets = await resolveAssets(path);
  const cgroups = stack.use(await openCgroupTree({ namespace: `coppice-trial-${process.pid}` }));
  const common = {
    assets,
    vmsDirectory,
    runtimeDirectory: join(path, "runtime"),
    cgroups,
    uids: new UidPool(await unusedUids(config.vm), UIDS_COUNT),
    diskBytesMax: scratchBytes(config.vm.maxima.diskBytes),
    log: silentLog,
  };
  const { verdict, template } = await probe({
    candidates: machineCandidates(common, config.vm.emulation),
    shape: templateShape({ vcpus: config.vm.vcpusDefault, memoryBytes: config.vm.memoryBytesDefault }),
    memoPath: join(path, PROBE_MEMO_NAME),
    assetsHash: assets.hash,
    timeoutMs: config.vm.probeTimeoutMs,
    log: silentLog,
    signal,
  });
  if (template !== null) stack.use(template);
  return verdict.candidates;
}

/** The working directory of the appliance if it exists: another file system may be mounted noexec, or be small. */
function scratchParent(dataDirectory: string): string {
  const { tmp } = dataLayout(dataDirectory);
  return existsSync(tmp) ? tmp : tmpdir();
}

/** The first of {@link UIDS_COUNT} unused user ids near the end of the range; an appliance begins at its start. */
async function unusedUids({ uidBase, uidCount }: Config["vm"]): Promise<number> {
  const used = new Set<number>();
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    // The process may have ended since.
    const status = await readFile(join("/proc", name, "status"), "utf8").catch(() => "");
    used.add(Number(/^Uid:\s+(\d+)/m.exec(status)?.[1] ?? -1));
  }
  const isFree = (first: number): boolean =>
    Array.from({ length: UIDS_COUNT }, (_, index) => first + index).every((uid) => !used.has(uid));
  for (let first = uidBase + uidCount - UIDS_COUNT; first >= uidBase; first -= UIDS_COUNT) {
    if (isFree(first)) return first;
  }
  throw new Error(`none of the ${uidCount} user ids from ${uidBase} on is unused`);
}
