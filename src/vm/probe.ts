import { readFileSync } from "node:fs";
import { readFile, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Log } from "../log.ts";
import { writeFileAtomic } from "../system/scratch.ts";
import { AgentError, AgentProtocolError } from "./agent/agent.ts";
import { signalled, tellingEnd, VmmError } from "./machine-end.ts";
import { buildTemplate, MachineUnresponsiveError, openAgent, syncAgent, templateShape } from "./templates.ts";
import type { Acceleration, MachineShape, Template, Vmm, VmmName } from "./vmm.ts";

/** File in the data directory that remembers verdicts, so that a restart does not try again what cannot work. */
export const PROBE_MEMO_NAME = "probe.json";

/** A way to run machines, in the order of preference. */
export interface ProbeCandidate {
  readonly vmm: VmmName;
  readonly acceleration: Acceleration;
  /** @throws Error with the reason why this host does not have it */
  open(): Promise<Vmm>;
}

export interface CandidateVerdict {
  readonly vmm: VmmName;
  readonly acceleration: Acceleration;
  readonly ok: boolean;
  /** why not; empty when ok */
  readonly reason: string;
  readonly durationMs: number;
}

export interface ProbeVerdict {
  /** null: no machine can run here */
  readonly acceleration: Acceleration | null;
  readonly candidates: readonly CandidateVerdict[];
  /** version of the chosen VMM; empty when none */
  readonly version: string;
}

export interface ProbeResult {
  readonly verdict: ProbeVerdict;
  readonly vmm: Vmm | null;
  /** what the trial saved, of which clones can be made; null when the verdict was remembered. The caller owns it. */
  readonly template: Template | null;
}

export interface ProbeOptions {
  readonly candidates: readonly ProbeCandidate[];
  /** shape of the trial and, rounded up, of the template that it leaves */
  readonly shape: MachineShape;
  /** JSON file that remembers verdicts */
  readonly memoPath: string;
  /** hash of kernel, initramfs and launcher */
  readonly assetsHash: string;
  /** bound of one trial, in `milliseconds`; a working one takes a second with KVM and three under emulation */
  readonly timeoutMs: number;
  /** default: the kernel's */
  readonly bootId?: string;
  readonly log: Log;
  readonly signal: AbortSignal;
}

const PROBE_DISK_BYTES = 1_048_576;
/** Verdicts of this many settings are kept; a host has few. */
const MEMOS_COUNT_MAX = 32;
const ENODEV = 19;
/**
 * Trials of one way in a row, as long as a signal cuts them off: who ends one VMM need not be after all of them, and a
 * crash may be one of the program's rare ones.
 */
const TRIALS_COUNT_MAX = { signal: 3, crash: 2 } as const;

/** Verdict as it is remembered; it holds for one VMM, one kernel and one boot of the host. */
interface Memo extends CandidateVerdict {
  readonly key: string;
}

/**
 * Finds the first candidate that really runs machines: it boots our kernel and agent, saves, clones and hot-plugs.
 * A device such as /dev/kvm may open and still not be able to.
 * @throws the reason of `signal`
 */
export async function probe(options: ProbeOptions): Promise<ProbeResult> {
  const memos = await readMemos(options.memoPath);
  const verdicts: CandidateVerdict[] = [];
  for (const candidate of options.candidates) {
    options.signal.throwIfAborted();
    const { vmm, template, verdict } = await judge(candidate, options, memos);
    verdicts.push(verdict);
    const { ok, reason, durationMs } = verdict;
    const fields = { vmm: candidate.vmm, acceleration: candidate.acceleration, ok, duration_ms: durationMs };
    options.log.info("acceleration probed", ok ? fields : { ...fields, reason });
    if (vmm === null) continue;
    // Refusals are remembered only beside a success: a host on which nothing works may just be too busy now.
    if (template !== null) await writeFileAtomic(options.memoPath, `${JSON.stringify(memos, null, 2)}\n`);
    return {
      verdict: { acceleration: candidate.acceleration, candidates: verdicts, version: vmm.version },
      vmm,
      template,
    };
  }
  return { verdict: { acceleration: null, candidates: verdicts, version: "" }, vmm: null, template: null };
}

interface Judgement {
  readonly verdict: CandidateVerdict;
  readonly vmm: Vmm | null;
  readonly template: Template | null;
}

/** Judges a way, and once more where a signal cut that off. */
async function judge(candidate: ProbeCandidate, options: ProbeOptions, memos: Memo[]): Promise<Judgement> {
  for (let trials = 1; ; trials++) {
    const { cutOffBy, memo, ...judgement } = await judgeOnce(candidate, options, memos);
    if (cutOffBy === null || trials >= TRIALS_COUNT_MAX[cutOffBy]) {
      if (memo !== null) memos.push(memo);
      return judgement;
    }
    const { vmm, acceleration, reason } = judgement.verdict;
    options.log.warn("the trial of a way to run machines was cut off, and is made again", {
      vmm,
      acceleration,
      reason,
    });
  }
}

interface Trial extends Judgement {
  /** by which kind of signal; null: it was not */
  readonly cutOffBy: ReturnType<typeof signalled>;
  /** what is new and will hold; null: nothing */
  readonly memo: Memo | null;
}

async function judgeOnce(candidate: ProbeCandidate, options: ProbeOptions, memos: readonly Memo[]): Promise<Trial> {
  const startedAt = performance.now();
  const found = (reason: string): CandidateVerdict => {
    const durationMs = Math.round(performance.now() - startedAt);
    return { vmm: candidate.vmm, acceleration: candidate.acceleration, ok: reason === "", reason, durationMs };
  };
  const failed = (error: unknown) => {
    const verdict = found(error instanceof Error ? error.message : String(error));
    return { verdict, vmm: null, template: null, cutOffBy: signalled(error), memo: null };
  };
  let vmm: Vmm;
  try {
    vmm = await candidate.open();
  } catch (error) {
    // Not remembered: looking again costs nothing, and the operator may install what is missing.
    return failed(error);
  }
  const key = [vmm.name, vmm.acceleration, vmm.version, options.assetsHash, options.bootId ?? hostBootId()].join("\n");
  const known = memos.find((memo) => memo.key === key);
  if (known !== undefined) {
    const { ok, reason, durationMs } = known;
    const verdict = { ...found(reason), ok, durationMs };
    return { verdict, vmm: ok ? vmm : null, template: null, cutOffBy: null, memo: null };
  }
  try {
    const { template } = await attempt(vmm, options);
    const verdict = found("");
    return { verdict, vmm, template, cutOffBy: null, memo: { key, ...verdict } };
  } catch (error) {
    options.signal.throwIfAborted();
    const failure = failed(error);
    return isOfTheWay(error) ? { ...failure, memo: { key, ...failure.verdict } } : failure;
  }
}

/** True for what will fail again in the same way: not what a signal or a shortage of the host did. */
function isOfTheWay(error: unknown): boolean {
  const isOfMachine = [VmmError, AgentError, AgentProtocolError].some((kind) => error instanceof kind);
  return isOfMachine && signalled(error) !== "signal";
}

/** The trial, bounded. @throws MachineUnresponsiveError that names the setting when the time was up */
async function attempt(vmm: Vmm, options: ProbeOptions): Promise<{ template: Template }> {
  const late = AbortSignal.timeout(options.timeoutMs);
  try {
    return await tryOut(vmm, options, late);
  } catch (error) {
    if (!late.aborted) throw error;
    // What failed then did so because its machine was given up.
    const seconds = options.timeoutMs / 1000;
    const detail = error instanceof MachineUnresponsiveError ? `: ${error.message}` : "";
    throw new MachineUnresponsiveError(`its trial did not end within ${seconds} s (vm.probe_timeout)${detail}`, {
      cause: error,
    });
  }
}

/** Does with a machine what every instance will need. */
async function tryOut(
  vmm: Vmm,
  { shape, log, signal, timeoutMs }: ProbeOptions,
  late: AbortSignal,
): Promise<{ template: Template }> {
  const both = AbortSignal.any([signal, late]);
  await using stack = new AsyncDisposableStack();
  const template = stack.use(
    await buildTemplate(vmm, templateShape(shape), { log, signal, helloTimeoutMs: timeoutMs }),
  );
  both.throwIfAborted();
  await using machine = await vmm.clone(template);
  // A clone that hangs is ended, which ends every wait for its agent.
  const onLate = () => void machine.kill().catch((error) => log.error("a machine was not ended", { error }));
  both.addEventListener("abort", onLate);
  using _listener = { [Symbol.dispose]: () => both.removeEventListener("abort", onLate) };
  const agent = openAgent(machine, log);
  const path = join(machine.directory, "L00");
  await tellingEnd(
    machine,
    async () => {
      await syncAgent(agent);
      await writeFile(path, "");
      await truncate(path, PROBE_DISK_BYTES);
      await machine.attach([{ serial: "L00", path, readOnly: false }]);
      await expectDisk(agent.mount({ layers: 1, scratch: false }));
    },
    both,
  );
  both.throwIfAborted();
  stack.move();
  return { template };
}

/** The disk is blank, so it cannot be mounted: any other error than its absence proves that the guest has it. */
async function expectDisk(mounted: Promise<void>): Promise<void> {
  try {
    await mounted;
  } catch (error) {
    if (!(error instanceof AgentError) || error.errno === ENODEV) throw error;
  }
}

function hostBootId(): string {
  return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
}

async function readMemos(path: string): Promise<Memo[]> {
  try {
    const memos: unknown = JSON.parse(await readFile(path, "utf8"));
    return Array.isArray(memos) ? memos.filter(isMemo).slice(-MEMOS_COUNT_MAX) : [];
  } catch (error) {
    // No file yet, or not ours: the probe then runs, and writes it anew.
    if (error instanceof SyntaxError || (error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}

function isMemo(value: unknown): value is Memo {
  const { key, ok, reason, durationMs } = (value ?? {}) as Partial<Memo>;
  const texts = typeof key === "string" && typeof reason === "string";
  return texts && typeof ok === "boolean" && typeof durationMs === "number";
}
