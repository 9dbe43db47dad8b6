import { existsSync } from "node:fs";
import { join } from "node:path";
import { eq } from "drizzle-orm";
import type { Config } from "../../config/config.ts";
import { openDatabase } from "../../db/database.ts";
import { layerChain } from "../../db/layers.ts";
import { images } from "../../db/schema.ts";
import type { ImageId } from "../../domain/ids.ts";
import { layerPath } from "../../storage/layers/layers.ts";
import { dataLayout, hasData } from "../../storage/layout.ts";
import { scratchBytes } from "../../supervisor/machines/scratch-disks.ts";
import { findProgram, run } from "../../system/exec.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import { resolveAssets } from "../../vm/assets.ts";
import { templateShape } from "../../vm/templates.ts";
import type { Acceleration } from "../../vm/vmm.ts";
import { type BareEcho, startBareEcho } from "./bare-echo.ts";
import { type BareMachine, coldRun } from "./cold-boot.ts";
import type { Crowd } from "./crowd.ts";
import type { Peer } from "./peer.ts";
import type { ThreadReply, ThreadRequest } from "./worker.ts";

/** In the executable all of the source is in one place, and entry points lie below it as they do in the source. */
const WORKER = new URL(Bun.isStandaloneExecutable ? "./cli/bench/worker.js" : "./worker.ts", import.meta.url);

const QEMU = "qemu-system-x86_64";
/** An image of more layers is run with some of them merged, which a bare machine cannot do. */
const LAYERS_COUNT_MAX = 16;
const TOOL_MS = 600_000;

/** What the machine that the appliance runs on lacks for a comparison; the message says it. */
export class NoComparisonError extends Error {
  override readonly name = "NoComparisonError";
}

/** Boots the disks of an image by bare QEMU, from its start to the exit of the command, in `milliseconds`. */
export interface ColdBoot extends AsyncDisposable {
  measure(argv: readonly string[]): Promise<number>;
}

/** @throws NoComparisonError when this is not the appliance's machine, or lacks QEMU */
export async function openColdBoot(config: Config, image: ImageId, acceleration: Acceleration): Promise<ColdBoot> {
  await using stack = new AsyncDisposableStack();
  const machine = await bareMachine(config, { image, acceleration }, stack);
  const owned = stack.move();
  return { measure: (argv) => coldRun(machine, argv), [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/**
 * Boots an image by bare QEMU, for lines through a virtio-serial port.
 * @throws NoComparisonError as `openColdBoot` does, and when the image lacks the programs
 */
export async function openBareEcho(config: Config, image: ImageId, acceleration: Acceleration): Promise<BareEcho> {
  await using stack = new AsyncDisposableStack();
  const echo = stack.use(await startBareEcho(await bareMachine(config, { image, acceleration }, stack)));
  if (!(await echo.isReady)) throw new NoComparisonError("the image lacks mknod or cat");
  const owned = stack.move();
  return { roundTrip: echo.roundTrip, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

async function bareMachine(
  config: Config,
  { image, acceleration }: { readonly image: ImageId; readonly acceleration: Acceleration },
  stack: AsyncDisposableStack,
): Promise<BareMachine> {
  const layout = requireData(config);
  if (findProgram(QEMU) === null) throw new NoComparisonError(`${QEMU} is not installed here`);
  const layers = layerPaths(config, image);
  const scratchTemplate = join(layout.scratch, `${scratchBytes(config.vm.diskBytesDefault)}.ext4`);
  if (!existsSync(scratchTemplate)) throw new NoComparisonError(`${scratchTemplate} is missing`);
  const { path } = stack.use(await scratchDirectory("/tmp", "coppice-bench-"));
  // Not the files of the appliance, which may be of another version.
  const { kernel, initramfs } = await resolveAssets(path);
  const { memoryBytes } = templateShape({ vcpus: config.vm.vcpusDefault, memoryBytes: config.vm.memoryBytesDefault });
  return { kernel, initramfs, layers, scratchTemplate, memoryBytes, acceleration };
}

function layerPaths(config: Config, image: ImageId): string[] {
  const layout = dataLayout(config.dataDir);
  using db = openDatabase(layout.database);
  const row = db.orm.select({ layerId: images.layerId }).from(images).where(eq(images.id, image)).get();
  if (row === undefined) throw new NoComparisonError(`${layout.root} is not the data of the appliance that answers`);
  const chain = layerChain(db, row.layerId);
  if (chain.length > LAYERS_COUNT_MAX) {
    throw new NoComparisonError(`the image has ${chain.length} layers, and a bare machine takes ${LAYERS_COUNT_MAX}`);
  }
  return chain.map(({ id }) => layerPath(layout, id));
}

/** @throws NoComparisonError when the data directory is not here, or not for this user */
function requireData(config: Config) {
  const layout = dataLayout(config.dataDir);
  try {
    if (hasData(layout)) return layout;
  } catch (error) {
    throw new NoComparisonError((error as Error).message, { cause: error });
  }
  throw new NoComparisonError(`there is no appliance's data in ${layout.root}: run this on its machine`);
}

export interface PeerServer extends Disposable {
  readonly url: string;
}

/** The bare route with the tokens of the appliance. @throws NoComparisonError when its data is not here */
export async function startRoutePeer(config: Config, operation: unknown): Promise<PeerServer> {
  return await startPeer({ kind: "route", dataDir: requireData(config).root, operation });
}

export async function startFilePeer(path: string): Promise<PeerServer> {
  return await startPeer({ kind: "file", path });
}

/** In a thread of its own, as the appliance has one. */
async function startPeer(peer: Peer): Promise<PeerServer> {
  const thread = startThread(peer);
  const answer = await thread.reply();
  if ("url" in answer) return { url: answer.url, [Symbol.dispose]: () => thread[Symbol.dispose]() };
  thread[Symbol.dispose]();
  throw new NoComparisonError("problem" in answer ? answer.problem : "no address");
}

/** Followers of an operation's events that all read what comes. Disposal ends them. */
export interface FollowerCrowd extends Disposable {
  /** Bytes that each of them received; resolves when all have seen the end of the operation. @throws Error */
  readonly receivedBytes: Promise<readonly number[]>;
}

/** Resolves when all of them have seen the start of the command. They have a thread of their own. @throws Error */
export async function startCrowd(crowd: Omit<Crowd, "kind">): Promise<FollowerCrowd> {
  const thread = startThread({ kind: "crowd", ...crowd });
  const first = await thread.reply();
  if ("isFollowing" in first) {
    const receivedBytes = thread.reply().then((answer) => {
      if ("receivedBytes" in answer) return answer.receivedBytes;
      throw new Error("problem" in answer ? answer.problem : "no figures");
    });
    receivedBytes.catch(() => undefined);
    return { receivedBytes, [Symbol.dispose]: () => thread[Symbol.dispose]() };
  }
  thread[Symbol.dispose]();
  throw new Error("problem" in first ? first.problem : "nobody follows");
}

/** A thread with a request. Disposal ends it. */
function startThread(request: ThreadRequest): Disposable & { reply(): Promise<ThreadReply> } {
  const worker = new Worker(WORKER.href);
  const replies: ThreadReply[] = [];
  let wanted: ((reply: ThreadReply) => void) | null = null;
  const give = (reply: ThreadReply): void => {
    if (wanted === null) replies.push(reply);
    else wanted(reply);
    wanted = null;
  };
  worker.onmessage = ({ data }: MessageEvent<ThreadReply>) => give(data);
  worker.onerror = ({ message }) => give({ problem: `a thread failed: ${message}` });
  worker.postMessage(request);
  const reply = async (): Promise<ThreadReply> =>
    replies.shift() ??
    (await new Promise((resolve) => {
      wanted = resolve;
    }));
  return { reply, [Symbol.dispose]: () => worker.terminate() };
}

/** A directory for files that are compared with, and what makes and reads them. */
export interface LocalFiles extends AsyncDisposable {
  /** Zeros, but for `head`, as a file of its own. */
  make(name: string, sizeMib: number, head: string): Promise<string>;
  /** Hashes the file and writes a synced copy of it. */
  hashAndCopy(path: string): Promise<void>;
}

export async function openLocalFiles(): Promise<LocalFiles> {
  const directory = await scratchDirectory("/tmp", "coppice-bench-");
  const tool = (argv: readonly string[]) => run({ argv, timeoutMs: TOOL_MS });
  return {
    async make(name, sizeMib, head) {
      const path = join(directory.path, name);
      await Bun.write(path, head);
      const zeros = ["dd", "if=/dev/zero", `of=${path}`, "bs=1M", `count=${sizeMib}`, "oflag=append"];
      await tool([...zeros, "conv=notrunc,fsync"]);
      return path;
    },
    async hashAndCopy(path) {
      await tool(["sha256sum", path]);
      await tool(["dd", `if=${path}`, `of=${path}.copy`, "bs=1M", "conv=fsync"]);
    },
    [Symbol.asyncDispose]: () => directory[Symbol.asyncDispose](),
  };
}
