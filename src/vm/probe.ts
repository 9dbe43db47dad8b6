import { readFileSync } from "node:fs";
import { readFile, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Log } from "../log.ts";
import { writeFileAtomic } from "../system/scratch.ts";
import { AgentError, AgentProtocolError } from "./agent/agent.ts";
import { signalKindOf, VmmError, withExitReason } from "./machine-end.ts";
import { buildTemplate, MachineUnresponsiveError, openAgent, syncAgent, templateShape } from "./templates.ts";
import type { Acceleration, MachineShape, Template, Vmm, VmmName } from "./vmm.ts";

/** File in the data directory that stores verdicts, so that a restart does not try a way again that cannot work. */
export const PROBE_MEMO_NAME = "probe.json";

/** One way to run machines. The order of candidates is the order of preference. */
export interface ProbeCandidate {
  readonly vmm: VmmName;
  readonly acceleration: Acceleration;
  /** @throws Error with the reason why this host cannot use it */
  open(): Promise<Vmm>;
}

export interface CandidateVerdict {
  readonly vmm: VmmName;
  readonly acceleration: Acceleration;
  readonly ok: boolean;
  /** why it does not work; empty when it works */
  readonly reason: string;
  readonly durationMs: number;
}

export interface ProbeVerdict {
  /** null: no machine can run on this host */
  readonly acceleration: Acceleration | null;
  readonly candidates: readonly CandidateVerdict[];
  /** version of the chosen VMM; empty when there is none */
  readonly version: string;
}

export interface ProbeResult {
  readonly verdict: ProbeVerdict;
  readonly vmm: Vmm | null;
  /** the template that the trial saved; null when the verdict was remembered. The caller owns it. */
  readonly template: Template | null;
}

export interface ProbeOptions {
  readonly candidates: readonly ProbeCandidate[];
  /** shape of the trial's machine, and, rounded up, of the template that it saves */
  readonly shape: MachineShape;
  /** JSON file that remembers verdicts */
  readonly memoPath: string;
  /** hash of kernel, initramfs and launcher */
  readonly assetsHash: string;
  /** longest duration of one trial, in `milliseconds`; a trial takes a second with KVM and three under emulation */
  readonly timeoutMs: number;
  /** default: the boot id that the kernel reports */
  readonly bootId?: string;
  readonly log: Log;
  readonly signal: AbortSignal;
}

const PROBE_DISK_BYTES = 1_048_576;
/** Number of verdicts that the file keeps; a host needs few. */
const MEMOS_COUNT_MAX = 32;
const ENODEV = 19;
/**
 * Trials of one candidate in a row while signals end its VMM: another process may have ended only this one, and a crash
 * may be rare.
 */
const TRIALS_COUNT_MAX = { signal: 3, crash: 2 } as const;

/** A remembered verdict. It is valid for one VMM, one kernel and one boot of the host. */
interface Memo extends CandidateVerdict {
  readonly key: string;
}

/**
 * Finds the first candidate that really runs machines: boots Coppice's kernel and agent, saves the machine, clones it and
 * hot-plugs a disk. A device such as /dev/kvm may open on hosts where none of that works.
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
    // Failures are stored only together with a success: a host on which nothing works may just be overloaded.
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

/** Tries a candidate, again when a signal interrupted the trial. */
async function judge(candidate: ProbeCandidate, options: ProbeOptions, memos: Memo[]): Promise<Judgement> {
  for (let trials = 1; ; trials++) {
    const { cutOffBy, memo, ...judgement } = await judgeOnce(candidate, options, memos);
    if (cutOffBy === null || trials >= TRIALS_COUNT_MAX[cutOffBy]) {
      if (memo !== null) memos.push(memo);
      return judgement;
    }
    const { vmm, acceleration, reason } = judgement.verdict;
    options.log.warn("a signal interrupted the trial of a way to run machines; it is repeated", {
      vmm,
      acceleration,
      reason,
    });
  }
}

interface Trial extends Judgement {
  /** kind of the signal that ended the trial; null when none did */
  readonly cutOffBy: ReturnType<typeof signalKindOf>;
  /** the verdict to remember; null when it may change */
  readonly memo: Memo | null;
}

async function judgeOnce(candidate: ProbeCandidate, options: ProbeOptions, memos: readonly Memo[]): Promise<Trial> {
  const startedAt = performance.now();
  const verdictOf = (reason: string): CandidateVerdict => {
    const durationMs = Math.round(performance.now() - startedAt);
    return { vmm: candidate.vmm, acceleration: candidate.acceleration, ok: reason === "", reason, durationMs };
  };
  const failed = (error: unknown) => {
    const verdict = verdictOf(error instanceof Error ? error.message : String(error));
    return { verdict, vmm: null, template: null, cutOffBy: signalKindOf(error), memo: null };
  };
  let vmm: Vmm;
  try {
    vmm = await candidate.open();
  } catch (error) {
    // Not remembered: opening again is cheap, and the operator may install what is missing.
    return failed(error);
  }
  const key = [vmm.name, vmm.acceleration, vmm.version, options.assetsHash, options.bootId ?? hostBootId()].join("\n");
  const memo = memos.find((each) => each.key === key);
  if (memo !== undefined) {
    const { ok, reason, durationMs } = memo;
    const verdict = { ...verdictOf(reason), ok, durationMs };
    return { verdict, vmm: ok ? vmm : null, template: null, cutOffBy: null, memo: null };
  }
  try {
    const { template } = await runTrial(vmm, options);
    const verdict = verdictOf("");
    return { verdict, vmm, template, cutOffBy: null, memo: { key, ...verdict } };
  } catch (error) {
    options.signal.throwIfAborted();
    const failure = failed(error);
    return isLastingFailure(error) ? { ...failure, memo: { key, ...failure.verdict } } : failure;
  }
}

/** True for a failure that would repeat itself, false for one that a signal or a shortage on the host caused. */
function isLastingFailure(error: unknown): boolean {
  const isOfMachine = [VmmError, AgentError, AgentProtocolError].some((kind) => error instanceof kind);
  return isOfMachine && signalKindOf(error) !== "signal";
}

/** Runs the trial within its time limit. @throws MachineUnresponsiveError that names the setting when time is up */
async function runTrial(vmm: Vmm, options: ProbeOptions): Promise<{ template: Template }> {
  const timeout = AbortSignal.timeout(options.timeoutMs);
  try {
    return await tryMachine(vmm, options, timeout);
  } catch (error) {
    if (!timeout.aborted) throw error;
    // The abort ended the machine, which caused the error.
    const seconds = options.timeoutMs / 1000;
    const detail = error instanceof MachineUnresponsiveError ? `: ${error.message}` : "";
    throw new MachineUnresponsiveError(`the trial did not finish within ${seconds} s (vm.probe_timeout)${detail}`, {
      cause: error,
    });
  }
}

/** Uses everything of a machine that an instance needs. */
async function tryMachine(
  vmm: Vmm,
  { shape, log, signal, timeoutMs }: ProbeOptions,
  timeout: AbortSignal,
): Promise<{ template: Template }> {
  const either = AbortSignal.any([signal, timeout]);
  await using stack = new AsyncDisposableStack();
  const template = stack.use(
    await buildTemplate(vmm, templateShape(shape), { log, signal, helloTimeoutMs: timeoutMs }),
  );
  either.throwIfAborted();
  await using machine = await vmm.clone(template);
  // Ending the clone ends every wait for its agent.
  const onAbort = () => void machine.kill().catch((error) => log.error("a machine was not ended", { error }));
  either.addEventListener("abort", onAbort);
  using _listener = { [Symbol.dispose]: () => either.removeEventListener("abort", onAbort) };
  const agent = openAgent(machine, log);
  const path = join(machine.directory, "L00");
  await withExitReason(
    machine,
    async () => {
      await syncAgent(agent);
      await writeFile(path, "");
      await truncate(path, PROBE_DISK_BYTES);
      await machine.attach([{ serial: "L00", path, readOnly: false }]);
      await expectDisk(agent.mount({ layers: 1, scratch: false }));
    },
    either,
  );
  either.throwIfAborted();
  stack.move();
  return { template };
}

/** The disk is blank, so mounting must fail. Any error but ENODEV proves that the guest has found the disk. */
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
    // There is no file yet, or it is not the probe's: all candidates are tried, and the file is written.
    if (error instanceof SyntaxError || (error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}

function isMemo(value: unknown): value is Memo {
  const { key, ok, reason, durationMs } = (value ?? {}) as Partial<Memo>;
  const texts = typeof key === "string" && typeof reason === "string";
  return texts && typeof ok === "boolean" && typeof durationMs === "number";
}
