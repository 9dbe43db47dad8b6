import type { Cgroup } from "../../cgroup/cgroup.ts";
import type { MachineExit, MachineShape } from "../vmm.ts";
import { MachineProcess, type MachineProcessParts } from "./machine-process.ts";

/** The parts of a machine that do not depend on its VMM. */
export interface JailedMachineParts extends Omit<MachineProcessParts, "program" | "console"> {
  readonly id: string;
  readonly uid: number;
  readonly pid: number;
  readonly shape: MachineShape;
  /** host directory of the machine, which contains `directory` */
  readonly home: string;
  readonly directory: string;
}

/** The base of every machine: the host resources of a jailed VMM, and its end. */
export abstract class JailedMachine implements AsyncDisposable {
  readonly id: string;
  readonly uid: number;
  readonly pid: number;
  readonly shape: MachineShape;
  readonly home: string;
  readonly directory: string;
  readonly cgroup: Cgroup;
  readonly exited: Promise<MachineExit>;
  protected readonly process: MachineProcess;

  /** @param program name of the VMM, for reports */
  constructor(parts: JailedMachineParts, program: string) {
    this.id = parts.id;
    this.uid = parts.uid;
    this.pid = parts.pid;
    this.shape = parts.shape;
    this.home = parts.home;
    this.directory = parts.directory;
    this.cgroup = parts.cgroup;
    this.process = new MachineProcess({ ...parts, program, console: () => this.console() });
    this.exited = this.process.exited.then((exit) => {
      this.onExit();
      return exit;
    });
  }

  /** The last bytes of the guest's console; empty when the VMM does not answer. */
  abstract console(): Promise<string>;

  kill(): Promise<MachineExit> {
    return this.process.kill();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.process[Symbol.asyncDispose]();
  }

  /** Called when the processes are gone, before `exited` resolves. */
  protected onExit(): void {
    // For VMMs with resources of their own to close.
  }
}
