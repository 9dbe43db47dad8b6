import { join } from "node:path";
import { createScratch } from "../../../src/oci/scratch-disk.ts";
import { DIE_WITH_PARENT, start } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { Agent, type ExecHandle } from "../../../src/vm/agent/agent.ts";
import { SocketChannel } from "../../../src/vm/agent/channel.ts";
import { SYNC_ENTROPY_BYTES } from "../../../src/vm/agent/protocol.ts";
import type { Acceleration } from "../../../src/vm/vmm.ts";

export interface BareMachine {
  readonly kernel: string;
  readonly initramfs: string;
  /** disks of the image, the lowest first */
  readonly layers: readonly string[];
  /** formatted, empty disk, of which the run gets a copy */
  readonly scratchTemplate: string;
  readonly memoryBytes: number;
  readonly acceleration: Acceleration;
}

/** Name of the port that the command of a bare machine may use. */
export const PORT_NAME = "second";
const BOOT_MS_MAX = 120_000;

/**
 * The cost of a spawn without any of the appliance: QEMU with the same kernel, guest and disks, all of them on its
 * command line, no jail, no control group, from its start to the exit of the command, in `milliseconds`.
 */
export async function coldRun(machine: BareMachine, argv: readonly string[]): Promise<number> {
  await using stack = new AsyncDisposableStack();
  const scratch = await copyScratch(machine, stack);
  const startedAt = performance.now();
  const { handle } = await boot(machine, { scratch, argv, timeoutMs: BOOT_MS_MAX }, stack);
  const { exitCode } = await handle.exit;
  const durationMs = performance.now() - startedAt;
  if (exitCode !== 0) throw new Error(`the command of the bare machine ended with ${exitCode}`);
  return durationMs;
}

/** A bare machine whose command runs. Disposal ends it. */
export interface BareRun extends AsyncDisposable {
  /** the command; see `Agent.exec` */
  readonly handle: ExecHandle;
  /** the host's end of the machine's second virtio-serial port, which is named `PORT_NAME` */
  readonly port: SocketChannel;
}

/** Boots the machine, which needs what `coldRun` needs, and starts a command with a time limit in `milliseconds`. */
export async function startBare(machine: BareMachine, argv: readonly string[], timeoutMs: number): Promise<BareRun> {
  await using stack = new AsyncDisposableStack();
  const scratch = await copyScratch(machine, stack);
  const run = await boot(machine, { scratch, argv, timeoutMs }, stack);
  const owned = stack.move();
  return { ...run, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

async function copyScratch({ scratchTemplate }: BareMachine, stack: AsyncDisposableStack): Promise<string> {
  const directory = stack.use(await scratchDirectory("/tmp", "coppice-bare-"));
  const scratch = join(directory.path, "S");
  await createScratch(scratchTemplate, scratch);
  return scratch;
}

async function boot(
  machine: BareMachine,
  {
    scratch,
    argv,
    timeoutMs,
  }: { readonly scratch: string; readonly argv: readonly string[]; readonly timeoutMs: number },
  stack: AsyncDisposableStack,
): Promise<Pick<BareRun, "handle" | "port">> {
  const child = start({
    argv: [...DIE_WITH_PARENT, ...bareArgs(machine, scratch)],
    extraFds: ["socket", "socket"],
    stderr: "tail",
  });
  stack.defer(async () => {
    child.kill("SIGKILL");
    await child.exited;
  });
  const [channel, port] = await Promise.all([0, 1].map((n) => SocketChannel.open(child.fds[n] ?? -1)));
  if (channel === undefined || port === undefined) throw new Error("a machine without its two ports");
  stack.use(channel);
  stack.use(port);
  const agent = Agent.open(channel);
  await agent.hello(AbortSignal.timeout(BOOT_MS_MAX));
  const entropy = crypto.getRandomValues(new Uint8Array(SYNC_ENTROPY_BYTES));
  const prepared = [
    agent.sync({ realtimeNs: BigInt(Date.now()) * 1_000_000n, entropy }),
    agent.mount({ layers: machine.layers.length, scratch: true }),
  ];
  const handle = agent.exec(
    { argv, env: { PATH: "/bin:/usr/bin" }, cwd: "/", hostname: "bare", timeoutMs },
    () => undefined,
  );
  await Promise.all(prepared);
  return { handle, port };
}

function bareArgs({ kernel, initramfs, layers, memoryBytes, acceleration }: BareMachine, scratch: string): string[] {
  const accelerator = acceleration === "kvm" ? ["-accel", "kvm", "-cpu", "host"] : ["-accel", "tcg", "-cpu", "max"];
  const disks = [
    ...layers.map((path, index) => ({ path, serial: `L${String(index).padStart(2, "0")}`, readOnly: true })),
    { path: scratch, serial: "S", readOnly: false },
  ];
  return [
    ...["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
    ...accelerator,
    ...["-machine", "q35,smm=off,sata=off,usb=off,vmport=off,i8042=off,smbus=off"],
    ...["-m", String(memoryBytes / 1_048_576), "-kernel", kernel, "-initrd", initramfs],
    ...["-append", "quiet panic=-1 cryptomgr.notests init_on_alloc=0"],
    ...["-chardev", "socket,id=agent,fd=3"],
    ...["-device", "virtio-serial-pci,id=serial0", "-device", "virtserialport,chardev=agent,name=agent"],
    ...["-chardev", "socket,id=second,fd=4", "-device", `virtserialport,chardev=second,name=${PORT_NAME}`],
    ...["-device", "virtio-scsi-pci,id=scsi0"],
    ...disks.flatMap(({ path, serial, readOnly }, lun) => [
      ...[
        "-blockdev",
        `driver=raw,node-name=d${lun},read-only=${readOnly ? "on" : "off"},file.driver=file,file.filename=${path}`,
      ],
      ...["-device", `scsi-hd,bus=scsi0.0,channel=0,scsi-id=0,lun=${lun},drive=d${lun},serial=${serial}`],
    ]),
  ];
}
