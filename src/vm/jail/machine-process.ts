import type { Cgroup } from "../../cgroup/cgroup.ts";
import type { ChildProcess, ExitStatus } from "../../system/exec.ts";
import { withinTime } from "../../system/waiting.ts";
import { monitorExit } from "../machine-end.ts";
import type { MachineExit } from "../vmm.ts";
import { printable } from "./machine-files.ts";

/** Part of the console that the detail of an exit shows, in `bytes`. */
const DETAIL_BYTES_MAX = 2048;
/** A VMM that hangs must not hold up the report of its guest's end. */
const CONSOLE_TIMEOUT_MS = 1000;
/** The kernel prints this before it resets. A guest that prints it without a panic misleads only the report. */
const PANIC_TEXT = "Kernel panic - not syncing";

/** The launcher of a VMM, whichever process started it. It ends after the VMM. */
export type VmmProcess = Pick<ChildProcess, "exited" | "kill" | "stderrTail">;

export interface MachineProcessParts {
  /** name of the program, for reports */
  readonly program: string;
  readonly process: VmmProcess;
  readonly cgroup: Cgroup;
  /** everything that the machine owns; disposed of when its processes are gone */
  readonly owned: AsyncDisposableStack;
  /** the last bytes of the guest's console; empty when the VMM has none to offer */
  readonly console: () => Promise<string>;
}

/** The process of one machine, and the reason of its end. */
export class MachineProcess implements AsyncDisposable {
  readonly exited: Promise<MachineExit>;
  readonly #parts: MachineProcessParts;
  /** The first reason counts: later ones are its consequences. */
  #ending: MachineExit | null = null;

  constructor(parts: MachineProcessParts) {
    this.#parts = parts;
    this.exited = parts.process.exited.then((status) => this.#ending ?? this.#diedBy(status));
  }

  /** Why the machine is about to end, or has ended; null while no reason is known. */
  get ending(): MachineExit | null {
    return this.#ending;
  }

  /** Ends the process because of something that the guest or its VMM did. The console is read first, for the report. */
  async end(
    reason: MachineExit["reason"],
    description: string,
    more: Pick<MachineExit, "monitor" | "by"> = {},
  ): Promise<void> {
    if (this.#ending !== null) return;
    this.#ending = { reason, detail: description, ...more };
    const console = await withinTime(this.#parts.console(), CONSOLE_TIMEOUT_MS, () => "");
    const panicked = reason === "guest_reset" && console.includes(PANIC_TEXT);
    const detail = console === "" ? description : `${description}; its console: ${excerpt(console)}`;
    this.#ending = { reason: panicked ? "guest_panic" : reason, detail, ...more };
    this.#parts.process.kill("SIGKILL");
  }

  /** Ends the process and every other process in its cgroup. */
  async kill(): Promise<MachineExit> {
    this.#ending ??= { reason: "killed", detail: "killed by the host" };
    this.#parts.process.kill("SIGKILL");
    await this.#parts.cgroup.kill();
    return await this.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    await this.#parts.owned.disposeAsync();
  }

  #diedBy(status: ExitStatus): MachineExit {
    return monitorExit(this.#parts.program, status, printable(this.#parts.process.stderrTail()));
  }
}

/** The part of a console that explains the end: from the last panic on, or the end of the console. */
export function excerpt(console: string): string {
  const panic = console.lastIndexOf(PANIC_TEXT);
  const text = panic < 0 ? console.slice(-DETAIL_BYTES_MAX) : console.slice(panic, panic + DETAIL_BYTES_MAX);
  return text.trim();
}
