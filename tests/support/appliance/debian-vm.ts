import { existsSync } from "node:fs";
import { copyFile, readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { type ChildProcess, DIE_WITH_PARENT, run, start } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { deadline, until } from "../waiting.ts";
import type { CommandResult } from "./booted-system.ts";

const KERNEL = resolve(import.meta.dir, "../../../build/assets/vmlinux");
const PROCESSORS_COUNT = 2;
const MEMORY_MIB = 3072;
/** Enough for an emulated machine under load. */
const BOOT_MS_MAX = 600_000;
const COMMAND_MS_MAX = 900_000;
/** Ends a machine that a test forgot. */
const LIFE_MS_MAX = 4_800_000;
const PAYLOAD_MS_MAX = 60_000;
const CONSOLE_BYTES_MAX = 3000;

/** A complete emulated Debian machine with systemd, on a throw-away copy of its disk. It has no network. */
export class DebianVm implements AsyncDisposable {
  readonly #directory: string;
  readonly #process: ChildProcess;
  readonly #owned: AsyncDisposableStack;
  readonly #answers = new Map<string, (result: CommandResult) => void>();
  readonly #boots: string[] = [];
  #port: Bun.Socket | null = null;
  #ended: string | null = null;
  #nextId = 1;
  #line = "";

  private constructor(directory: string, process: ChildProcess, owned: AsyncDisposableStack) {
    this.#directory = directory;
    this.#process = process;
    this.#owned = owned;
    void process.exited.then(({ code, signal }) => {
      this.#ended = `QEMU ended with ${signal ?? code}: ${process.stderrTail()}`;
    });
  }

  /**
   * Resolves when the machine is up.
   * @param disk root file system of `debianDisk`
   * @param payload files by their name in `/media/payload`
   */
  static async boot(disk: string, payload: Readonly<Record<string, string>>): Promise<DebianVm> {
    if (!existsSync(KERNEL)) throw new Error(`${KERNEL} is missing: make assets`);
    await using stack = new AsyncDisposableStack();
    const { path } = stack.use(await scratchDirectory(tmpdir(), "coppice-debian-"));
    await makePayload(join(path, "payload"), payload);
    const process = start({
      argv: [...DIE_WITH_PARENT, "nice", "-n", "1", ...qemu(path, disk)],
      // The output of the machine is written to a file there.
      env: { TMPDIR: path },
      extraFds: [],
      stderr: "tail",
    });
    stack.defer(async () => {
      process.kill("SIGKILL");
      await process.exited;
    });
    stack.use(deadline(LIFE_MS_MAX, () => process.kill("SIGKILL")));
    const vm = new DebianVm(path, process, stack.move());
    try {
      await vm.#connect();
      await vm.#up(1);
      return vm;
    } catch (error) {
      await vm[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Runs a command line of the shell as root. @throws Error when there is no answer in time */
  async run(command: string, limitMs = COMMAND_MS_MAX): Promise<CommandResult> {
    const id = `c${this.#nextId++}`;
    const { promise, resolve: answered } = Promise.withResolvers<CommandResult | null>();
    this.#answers.set(id, answered);
    this.#port?.write(`${id} ${Buffer.from(command).toString("base64")}\n`);
    using _late = deadline(limitMs, () => answered(null));
    const result = await Promise.race([promise, this.#process.exited.then(() => null)]);
    this.#answers.delete(id);
    if (result === null) throw new Error(`${command}: no answer in ${limitMs} ms; ${await this.#state()}`);
    return result;
  }

  /** Standard output of a command that must succeed. */
  async output(command: string, limitMs?: number): Promise<string> {
    const { code, stdout, stderr } = await this.run(command, limitMs);
    if (code !== 0) throw new Error(`${command} failed with ${code}: ${stderr}${stdout}`);
    return stdout.trimEnd();
  }

  /** A property of the service, from systemd. */
  async property(name: string): Promise<string> {
    return await this.output(`systemctl show coppice --value -p ${name}`);
  }

  /** Restarts the machine as an operator would, and waits until it is up again. */
  async reboot(): Promise<void> {
    const boots = this.#boots.length;
    await this.output("systemctl reboot --no-block");
    await this.#up(boots + 1);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#port?.end();
    await this.#owned.disposeAsync();
  }

  async #connect(): Promise<void> {
    const unix = join(this.#directory, "control");
    await until("QEMU listens", () => existsSync(unix) || this.#ended !== null);
    if (this.#ended !== null) throw new Error(this.#ended);
    const decoder = new TextDecoder();
    this.#port = await Bun.connect({
      unix,
      socket: { data: (_, chunk) => this.#onText(decoder.decode(chunk, { stream: true })) },
    });
  }

  #onText(text: string): void {
    const lines = (this.#line + text).split("\n");
    this.#line = lines.pop() ?? "";
    for (const line of lines) {
      const [id = "", first = "", stdout = "", stderr = ""] = line.split(" ");
      if (id === "up") this.#boots.push(first);
      this.#answers.get(id)?.({ code: Number(first), stdout: decoded(stdout), stderr: decoded(stderr) });
    }
  }

  /** Waits for the greeting of the machine's `count`th boot. */
  async #up(count: number): Promise<void> {
    const up = () => this.#boots.length >= count || this.#ended !== null;
    await until("Debian is up", up, BOOT_MS_MAX).catch(async (error: unknown) => {
      throw new Error(`Debian did not come up: ${await this.#state()}`, { cause: error });
    });
    if (this.#ended !== null) throw new Error(await this.#state());
  }

  async #state(): Promise<string> {
    const console = await readFile(join(this.#directory, "console"), "utf8");
    return `${this.#ended ?? "the machine runs"}; its console ends: ${console.slice(-CONSOLE_BYTES_MAX)}`;
  }
}

function qemu(directory: string, disk: string): string[] {
  const kernel = "root=/dev/nvme0n1 rw console=ttyS0 cryptomgr.notests init_on_alloc=0 panic=-1";
  const drive = (id: string, file: string, more: string): string[] => [
    ...["-drive", `if=none,id=${id},file=${file},format=raw,cache=unsafe,${more}`],
    ...["-device", `nvme-ns,drive=${id},bus=nvme0`],
  ];
  return [
    ...["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"],
    // The same on all hardware: software that is installed in the machine has to emulate as well.
    ...["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"],
    ...["-machine", "q35,sata=off,usb=off,vmport=off,smbus=off", "-smp", `${PROCESSORS_COUNT}`, "-m", `${MEMORY_MIB}`],
    ...["-kernel", KERNEL, "-append", kernel],
    ...["-chardev", `file,id=console,path=${join(directory, "console")}`, "-device", "isa-serial,chardev=console"],
    ...["-chardev", `socket,id=control,path=${join(directory, "control")},server=on,wait=off`],
    ...["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=control"],
    ...["-device", "virtio-rng-pci", "-device", "nvme,id=nvme0,serial=disks"],
    ...drive("root", disk, "snapshot=on"),
    ...drive("payload", join(directory, "payload"), "read-only=on"),
    ...["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
  ];
}

/** A disk with a few files. */
async function makePayload(path: string, files: Readonly<Record<string, string>>): Promise<void> {
  await using staging = await scratchDirectory(tmpdir(), "coppice-payload-");
  for (const [name, file] of Object.entries(files)) await copyFile(file, join(staging.path, name));
  const make = "mke2fs -q -F -t ext4 -O ^has_journal -d";
  const argv = [...make.split(" "), staging.path, path, "1G"];
  await run({ argv, timeoutMs: PAYLOAD_MS_MAX });
}

function decoded(field: string): string {
  return Buffer.from(field.slice(1), "base64").toString("utf8");
}
