import { CgroupGoneError } from "../../../src/cgroup/stats.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, PROTOCOL_VERSION } from "../../../src/vm/agent/protocol.ts";
import { MachineEndedError, monitorExit } from "../../../src/vm/machine-end.ts";
import { QmpClosedError } from "../../../src/vm/qemu/qmp.ts";
import type { Acceleration, Machine, MachineExit, MachineShape, Template, Vmm } from "../../../src/vm/vmm.ts";
import { turns } from "../waiting.ts";
import { ScriptedAgent } from "./scripted-peer.ts";

/** The behaviour of a fake machine's guest. */
export interface GuestScript {
  /** never sends its greeting */
  readonly mute?: boolean;
  /** never answers */
  readonly deaf?: boolean;
  /** the detail of `stuck` */
  readonly stuck?: string;
  /** the guest's answer to MOUNT: an error number, 22 (EINVAL) by default */
  readonly mountErrno?: number;
}

/** The phase in which a VMM is killed. */
export type Phase = "start" | "hello" | "sync" | "save" | "attach" | "mount";

export interface FakeMachine {
  /** the VMM ends */
  die(): void;
  /** the VMM continues, but the guest does not answer */
  loseAgent(): void;
}

export class FakeTemplate implements Template {
  readonly shape: MachineShape;
  readonly createdAt: number;
  readonly memoryBytes: number;
  isInUse = false;
  disposed = false;

  constructor(shape: MachineShape, createdAt: number, memoryBytes = 0) {
    this.shape = shape;
    this.createdAt = createdAt;
    this.memoryBytes = memoryBytes;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.disposed = true;
  }
}

const KILLED: MachineExit = { reason: "killed", detail: "of a script" };

/** A VMM without machines: scripts replace guests. Records its calls. */
export class FakeVmm implements Vmm {
  readonly name = "qemu";
  version = "1";
  readonly acceleration: Acceleration;
  script: GuestScript = {};
  now = 0;
  isOutdated = false;
  /** of each saved template */
  templateBytes = 0;
  failing = new Set<"boot" | "bootForTemplate" | "clone">();
  /** Phases in which a VMM is killed, one for each; the first that any VMM reaches. */
  readonly killedAt: Phase[] = [];
  /** how the killed VMMs end */
  exitCode = 128 + 9;
  readonly calls: string[] = [];
  readonly templates: FakeTemplate[] = [];
  readonly live = new Set<Machine>();
  /** CPU shares of the machine, one after the other */
  readonly weights = new Map<Machine, number[]>();

  constructor(acceleration: Acceleration = "tcg") {
    this.acceleration = acceleration;
  }

  boot(shape: MachineShape): Promise<Machine> {
    return this.#machine("boot", shape, true);
  }

  bootForTemplate(shape: MachineShape): Promise<Machine> {
    return this.#machine("bootForTemplate", shape, true);
  }

  async save(machine: Machine): Promise<Template> {
    this.calls.push("save");
    if (this.#isKilled("save")) throw new MachineEndedError("the VMM ended while it saved", this.#exit);
    await machine[Symbol.asyncDispose]();
    this.isOutdated = false;
    const template = new FakeTemplate(machine.shape, this.now, this.templateBytes);
    this.templates.push(template);
    return template;
  }

  async clone(template: Template, cpuWeight = 100): Promise<Machine> {
    if ((template as FakeTemplate).disposed) throw new Error("a disposed template was cloned");
    const machine = await this.#machine("clone", template.shape, false);
    this.weights.get(machine)?.unshift(cpuWeight);
    return machine;
  }

  get #exit(): MachineExit {
    return monitorExit("QEMU", { code: this.exitCode, signal: null }, "");
  }

  #isKilled(phase: Phase): boolean {
    if (this.killedAt[0] !== phase) return false;
    this.killedAt.shift();
    return true;
  }

  async #machine(call: "boot" | "bootForTemplate" | "clone", shape: MachineShape, greets: boolean): Promise<Machine> {
    this.calls.push(call);
    await turns();
    if (this.failing.has(call)) throw new Error(`${call} fails`);
    if (this.#isKilled("start")) throw new MachineEndedError("QEMU did not start", this.#exit);
    const guest = new ScriptedAgent();
    const dies = (phase: Phase): boolean => {
      if (!this.#isKilled(phase)) return false;
      (machine as unknown as FakeMachine).die();
      return true;
    };
    if (!this.script.deaf) answer(guest, this.script, dies);
    const isMute = this.script.mute === true || (greets && this.#isKilled("hello"));
    if (isMute && this.script.mute !== true) void turns().then(() => (machine as unknown as FakeMachine).die());
    if (greets && !isMute) guest.send(AgentFrame.hello, 0, packIntegers([32, PROTOCOL_VERSION], [32, 0]));
    const exited = Promise.withResolvers<MachineExit>();
    const end = (exit: MachineExit) => {
      exited.resolve(exit);
      this.live.delete(machine);
      guest.channel.deliver(null);
      return exited.promise;
    };
    const weights: number[] = [];
    const machine: Machine & FakeMachine = {
      id: `m${this.calls.length}`,
      pid: 1,
      uid: 1,
      shape,
      directory: "/tmp",
      cgroup: {
        setCpuWeight: (weight: number) => void weights.push(weight),
        stats: async () => {
          if (!this.live.has(machine)) throw new CgroupGoneError("the machine has ended");
          return { cpuTimeMs: 1, memoryBytes: this.calls.length, memoryPeakBytes: 1, cacheBytes: 0, pids: 1 };
        },
      } as unknown as Machine["cgroup"],
      channel: guest.channel,
      exited: exited.promise,
      attach: async () => {
        if (dies("attach")) throw new QmpClosedError("the monitor closed");
      },
      copyDisk: async () => {
        throw new Error("a script has no disks");
      },
      pause: async () => undefined,
      resume: async () => undefined,
      console: async () => "a console",
      stuck: async () => this.script.stuck ?? null,
      failure: async () => null,
      kill: () => end(KILLED),
      die: () => void end(this.#exit),
      loseAgent: () => guest.channel.deliver(null),
      [Symbol.asyncDispose]: async () => void (await end(KILLED)),
    };
    this.live.add(machine);
    this.weights.set(machine, weights);
    return machine;
  }
}

function answer(guest: ScriptedAgent, script: GuestScript, dies: (phase: Phase) => boolean): void {
  const receive = guest.channel.onWrite;
  let answered = 0;
  guest.channel.onWrite = (bytes) => {
    receive(bytes);
    for (const { type, session, payload } of guest.frames.slice(answered)) {
      if (type === HostFrame.sync && !dies("sync")) guest.send(AgentFrame.synced, session, payload.subarray(8, 16));
      if (type === HostFrame.mount && !dies("mount"))
        guest.send(AgentFrame.error, session, packIntegers([32, script.mountErrno ?? 22], [32, 0]));
    }
    answered = guest.frames.length;
  };
}
