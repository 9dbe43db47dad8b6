import type { Cgroup } from "../../cgroup/cgroup.ts";
import type { MachineExit, MachineShape } from "../vmm.ts";
import { MachineProcess, type MachineProcessParts } from "./machine-process.ts";

/** What a machine is made of, whichever monitor runs it. */
export interface JailedMachineParts extends Omit<MachineProcessParts, "program" | "console"> {
  readonly id: string;
  readonly uid: number;
  readonly pid: number;
  readonly shape: MachineShape;
  readonly directory: string;
}

/** A machine whose monitor runs jailed, as far as that is the same for every monitor: its place on the host, and its end. */
export abstract class JailedMachine implements AsyncDisposable {
  readonly id: string;
  readonly uid: number;
  readonly pid: number;
  readonly shape: MachineShape;
  readonly directory: string;
  readonly cgroup: Cgroup;
  readonly exited: Promise<MachineExit>;
  protected readonly process: MachineProcess;

  /** @param program the monitor's name, for reports */
  constructor(parts: JailedMachineParts, program: string) {
    this.id = parts.id;
    this.uid = parts.uid;
    this.pid = parts.pid;
    this.shape = parts.shape;
    this.directory = parts.directory;
    this.cgroup = parts.cgroup;
    this.process = new MachineProcess({ ...parts, program, console: () => this.console() });
    this.exited = this.process.exited.then((exit) => {
      this.onExit();
      return exit;
    });
  }

  /** The last bytes of the guest's console; empty where the monitor does not answer. */
  abstract console(): Promise<string>;

  kill(): Promise<MachineExit> {
    return this.process.kill();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.process[Symbol.asyncDispose]();
  }

  /** Called once the processes are gone, before anybody learns of it. */
  protected onExit(): void {
    // Nothing, unless the monitor has something of its own to close.
  }
}
