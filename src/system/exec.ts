import { CONFINEMENT_FAILED_EXIT, type Confinement, confinedSignal, confinementWrapper } from "./confine.ts";

/** Length of the kept end of a program's standard error, in `bytes`. */
export const STDERR_TAIL_BYTES_MAX = 4096;
/** Default limit of a program's standard output, in `bytes`. */
const STDOUT_BYTES_DEFAULT = 1_048_576;
/**
 * How long a pipe may stay open after all processes of its group are dead: a descendant in another session may hold it.
 */
const DRAIN_MS = 1000;

/** The base of every child's environment; the daemon's own environment is not inherited. */
const BASE_ENVIRONMENT = { PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", LANG: "C" } as const;

/** Start of an argument vector. Bun has no such option. Without it, a program would outlive a killed parent. */
export const DIE_WITH_PARENT = ["/usr/bin/setpriv", "--pdeathsig", "KILL", "--"] as const;

export interface CommandErrorFields {
  readonly argv: readonly string[];
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly timedOut: boolean;
  readonly stderrTail: string;
}

/** A program could not be started, failed, took too long or wrote too much. */
export class CommandError extends Error {
  override readonly name = "CommandError";
  readonly program: string;
  /** Contains no secret: every local user can read argument vectors, so secrets are never passed there. */
  readonly argv: readonly string[];
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly timedOut: boolean;
  /** The last STDERR_TAIL_BYTES_MAX `bytes` at most. */
  readonly stderrTail: string;

  constructor(message: string, fields: CommandErrorFields) {
    super(message);
    this.program = fields.argv[0] ?? "";
    this.argv = fields.argv;
    this.exitCode = fields.exitCode;
    this.signal = fields.signal;
    this.timedOut = fields.timedOut;
    this.stderrTail = fields.stderrTail;
  }
}

/** Path at which children find a program; null when it is not installed. */
export function findProgram(name: string): string | null {
  return Bun.which(name, { PATH: BASE_ENVIRONMENT.PATH });
}

export interface RunOptions {
  /** program and arguments; must not contain a secret */
  readonly argv: readonly string[];
  /** added to PATH and LANG=C, the only other variables */
  readonly env?: Readonly<Record<string, string>>;
  /** default "/" */
  readonly cwd?: string;
  /** time limit; 0 or less fails at once */
  readonly timeoutMs: number;
  readonly signal?: AbortSignal;
  /** limit of standard output, in `bytes`; more is an error; default 1 MiB */
  readonly stdoutBytesMax?: number;
  readonly stdin?: Uint8Array;
  readonly uid?: number;
  readonly gid?: number;
  /** default: the program has all access of this process */
  readonly confinement?: Confinement;
}

/**
 * Runs a program to its end in a session of its own. Its process group is killed at the time limit, on abort and when the
 * program exits, and dies with this process.
 * @throws CommandError when the program is not installed, exits with a code other than 0, takes too long or writes too much
 * @throws the signal's reason on abort, when the group is dead
 */
export async function run(options: RunOptions): Promise<{ stdout: Uint8Array; stderr: string }> {
  options.signal?.throwIfAborted();
  const argv = [...options.argv];
  const ended = { timedOut: options.timeoutMs <= 0, overflow: false };
  const fail = (message: string, exitCode: number | null, signal: string | null, stderrTail: string): never => {
    const fields = { argv, exitCode, signal, timedOut: ended.timedOut, stderrTail };
    throw new CommandError(`${argv[0]} ${message}`, fields);
  };
  if (ended.timedOut) fail("had no time left", null, null, "");
  if (findProgram(argv[0] ?? "") === null) fail("is not installed", null, null, "");

  const { confinement, cwd = "/" } = options;
  const wrapper =
    confinement === undefined ? DIE_WITH_PARENT : confinementWrapper(confinement, { cwd, parent: process.pid });
  const child = Bun.spawn([...wrapper, ...argv], {
    env: { ...BASE_ENVIRONMENT, ...options.env },
    cwd,
    detached: true,
    stdin: options.stdin ?? "ignore",
    stdout: "pipe",
    stderr: "pipe",
    ...ids(options),
  });
  const killGroup = (): void => killProcessGroup(child.pid, "SIGKILL");

  using cleanup = new DisposableStack();
  const deadline = setTimeout(() => {
    ended.timedOut = true;
    killGroup();
  }, options.timeoutMs);
  cleanup.defer(() => clearTimeout(deadline));
  options.signal?.addEventListener("abort", killGroup);
  cleanup.defer(() => options.signal?.removeEventListener("abort", killGroup));

  const stdout = readAll(child.stdout, options.stdoutBytesMax ?? STDOUT_BYTES_DEFAULT, () => {
    ended.overflow = true;
    killGroup();
  });
  const stderr = readTail(child.stderr);
  await child.exited;
  // Processes that the program left running would hold the pipes open, and must not outlive it.
  killGroup();
  await Promise.all([stdout.drained(DRAIN_MS), stderr.drained(DRAIN_MS)]);

  const text = stderr.text();
  const exitCode = child.exitCode;
  const signal = signalName(child.signalCode) ?? (confinement === undefined ? null : confinedSignal(exitCode));
  if (options.signal?.aborted) throw options.signal.reason;
  if (ended.timedOut) fail(`did not end within ${options.timeoutMs} ms`, exitCode, signal, text);
  if (ended.overflow) fail("wrote more output than expected", exitCode, signal, text);
  if (confinement !== undefined && exitCode === CONFINEMENT_FAILED_EXIT) {
    throw new Error(`${argv[0]} cannot be confined: ${text}`);
  }
  if (signal !== null) fail(`was ended by ${signal}`, exitCode, signal, text);
  if (exitCode !== 0) fail(`failed with exit code ${exitCode}`, exitCode, signal, text);
  return { stdout: stdout.bytes(), stderr: text };
}

export interface StartOptions {
  readonly argv: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** default "/" */
  readonly cwd?: string;
  /** the child's descriptors from 3 on; "socket" makes a socket pair, whose other end is in `fds` of the result */
  readonly extraFds: readonly (number | "socket")[];
  readonly stderr: "tail" | "ignore";
}

/** How a process ended: its exit code, or the signal that killed it. */
export interface ExitStatus {
  readonly code: number | null;
  readonly signal: string | null;
}

/** A long-lived child in a session of its own. */
export interface ChildProcess {
  readonly pid: number;
  readonly exited: Promise<ExitStatus>;
  /** the daemon's ends of the "socket" entries, in order; the caller owns them and closes them */
  readonly fds: readonly number[];
  /** Signals the whole process group, if it still exists. */
  kill(signal: NodeJS.Signals): void;
  /** The last STDERR_TAIL_BYTES_MAX bytes of standard error; complete when `exited` has resolved. */
  stderrTail(): string;
}

/**
 * Starts a program that runs until it ends or is killed. Its standard input and output are /dev/null. It does not end with
 * this process by itself: programs such as the launcher request a parent-death signal.
 * @throws Error with code ENOENT when the program does not exist
 */
export function start(options: StartOptions): ChildProcess {
  const child = Bun.spawn([...options.argv], {
    env: { ...BASE_ENVIRONMENT, ...options.env },
    cwd: options.cwd ?? "/",
    detached: true,
    stdio: [
      "ignore",
      "ignore",
      options.stderr === "tail" ? "pipe" : "ignore",
      ...options.extraFds.map((entry) => (entry === "socket" ? "socket-fd" : entry)),
    ],
  });
  const tail = child.stderr instanceof ReadableStream ? readTail(child.stderr) : null;
  const sockets = options.extraFds.flatMap((entry, index) => (entry === "socket" ? [child.stdio[3 + index]] : []));
  const fds = sockets.filter((fd): fd is number => typeof fd === "number");
  if (fds.length !== sockets.length) throw new Error("a socket pair was requested, but the runtime returned none");
  return {
    pid: child.pid,
    fds,
    exited: (async () => {
      await child.exited;
      await tail?.drained(DRAIN_MS);
      return { code: child.exitCode, signal: signalName(child.signalCode) };
    })(),
    kill: (signal) => killProcessGroup(child.pid, signal),
    stderrTail: () => tail?.text() ?? "",
  };
}

function killProcessGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal);
  } catch (error) {
    // ESRCH: all processes of the group are dead already.
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** Bun's type for a signal without a name is a number. */
function signalName(signal: string | number | null): string | null {
  return signal === null ? null : String(signal);
}

function ids(options: RunOptions): { uid?: number; gid?: number } {
  return {
    ...(options.uid === undefined ? {} : { uid: options.uid }),
    ...(options.gid === undefined ? {} : { gid: options.gid }),
  };
}

/** Passes the chunks of a pipe to `take`. `drained` waits for the end of the pipe, at most `limitMs`. */
function readPipe(
  stream: ReadableStream<Uint8Array>,
  take: (chunk: Uint8Array) => void,
): { drained(limitMs: number): Promise<void> } {
  const reader = stream.getReader();
  const end = (async () => {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      take(value);
    }
  })();
  return {
    async drained(limitMs) {
      const timer = setTimeout(() => void reader.cancel(), limitMs);
      await end;
      clearTimeout(timer);
    },
  };
}

/** Keeps the last STDERR_TAIL_BYTES_MAX bytes of a pipe. */
function readTail(stream: ReadableStream<Uint8Array>) {
  let kept: Uint8Array = new Uint8Array(0);
  const pipe = readPipe(stream, (chunk) => {
    kept = Buffer.concat([kept, chunk]).subarray(-STDERR_TAIL_BYTES_MAX);
  });
  return { drained: pipe.drained, text: () => Buffer.from(kept).toString("utf8").trimEnd() };
}

/** Keeps the bytes of a pipe up to a limit, and calls `onOverflow` beyond it. */
function readAll(stream: ReadableStream<Uint8Array>, limitBytes: number, onOverflow: () => void) {
  const chunks: Uint8Array[] = [];
  let totalBytes = 0;
  const pipe = readPipe(stream, (chunk) => {
    totalBytes += chunk.byteLength;
    if (totalBytes <= limitBytes) chunks.push(chunk);
    else onOverflow();
  });
  return { drained: pipe.drained, bytes: (): Uint8Array => Buffer.concat(chunks) };
}
