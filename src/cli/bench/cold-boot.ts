import { join } from "node:path";
import { createScratch } from "../../oci/scratch-disk.ts";
import { start } from "../../system/exec.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import { Agent } from "../../vm/agent/agent.ts";
import { SocketChannel } from "../../vm/agent/channel.ts";
import { SYNC_ENTROPY_BYTES } from "../../vm/agent/protocol.ts";
import type { Acceleration } from "../../vm/vmm.ts";

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

const BOOT_MS_MAX = 120_000;

/**
 * What a spawn would cost without any of the appliance: QEMU with the same kernel, guest and disks, all of them on its
 * command line, no jail, no control group, from its start to the exit of the command, in `milliseconds`.
 */
export async function coldRun(machine: BareMachine, argv: readonly string[]): Promise<number> {
  await using directory = await scratchDirectory("/tmp", "coppice-bare-");
  const scratch = join(directory.path, "S");
  await createScratch(machine.scratchTemplate, scratch);
  const startedAt = performance.now();
  await using stack = new AsyncDisposableStack();
  const child = start({ argv: bareArgs(machine, scratch), extraFds: ["socket"], stderr: "tail" });
  stack.defer(async () => {
    child.kill("SIGKILL");
    await child.exited;
  });
  const channel = stack.use(await SocketChannel.open(child.fds[0] ?? -1));
  const agent = Agent.open(channel);
  await agent.hello(AbortSignal.timeout(BOOT_MS_MAX));
  const entropy = crypto.getRandomValues(new Uint8Array(SYNC_ENTROPY_BYTES));
  const prepared = [
    agent.sync({ realtimeNs: BigInt(Date.now()) * 1_000_000n, entropy }),
    agent.mount({ layers: machine.layers.length, scratch: true }),
  ];
  const handle = agent.exec(
    { argv, env: { PATH: "/bin:/usr/bin" }, cwd: "/", hostname: "bare", timeoutMs: BOOT_MS_MAX },
    () => undefined,
  );
  await Promise.all(prepared);
  const { exitCode } = await handle.exit;
  const durationMs = performance.now() - startedAt;
  if (exitCode !== 0) throw new Error(`the command of the bare machine ended with ${exitCode}`);
  return durationMs;
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
