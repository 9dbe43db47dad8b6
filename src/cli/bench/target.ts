import { answerOf, type Client } from "../../client/client.ts";
import { ResponseError } from "../../client/errors.ts";
import { commandStart } from "../../client/operation-events.ts";
import { endSandbox, openSandbox, readSandbox, savedStates } from "../../client/sandboxes.ts";
import type { InstanceResult, Operation, Sandbox, SandboxRequest, SpawnRequest } from "../../client/types.ts";
import { isTerminal } from "../../domain/operation.ts";
import { CliError } from "../command.ts";
import { timed } from "./measure.ts";
import { sampleOf } from "./report.ts";

/** An appliance that is short of memory never fills its pool. */
const POOL_MS_MAX = 30_000;
const POLL_MS = 100;
const START_MS_MAX = 60_000;
const WAIT_SECONDS = 60;
const CANCEL_WAIT_SECONDS = 30;

export interface TargetOptions {
  readonly client: Client;
  readonly image: string;
  readonly quick: boolean;
  /** number of measurements, if the user set it */
  readonly rounds: number | undefined;
  /** longest wait of a spawn for a full pool, in `milliseconds`; default 30,000 */
  readonly poolMsMax?: number;
  readonly signal: AbortSignal;
}

/** The measured appliance. Disposal removes the images, instances and sandboxes of the benchmark. */
export class BenchTarget implements AsyncDisposable {
  readonly options: TargetOptions;
  readonly #images: string[] = [];
  readonly #running = new Set<string>();
  readonly #sandboxes = new Set<string>();

  constructor(options: TargetOptions) {
    this.options = options;
  }

  get client(): Client {
    return this.options.client;
  }

  get image(): string {
    return this.options.image;
  }

  /** Number of measurements of a figure. */
  rounds(full: number, quick: number): number {
    return this.options.rounds ?? (this.options.quick ? quick : full);
  }

  /** Time from the request to the answer that says SUCCESS, once machines wait, in `milliseconds`. */
  async spawn(image: string, command: string, more: Partial<SpawnRequest> = {}): Promise<number> {
    await this.poolFull();
    return await timed(() => this.run(image, command, more));
  }

  async run(image: string, command: string, more: Partial<SpawnRequest> = {}): Promise<InstanceResult> {
    const id = await this.start(image, command, more);
    const result = (await this.succeeded(id, image)) as InstanceResult;
    if (result.exit_code !== 0)
      throw new CliError(`${command} ended with exit code ${result.exit_code} in instance ${id}`);
    return result;
  }

  /**
   * Waits for the success of an operation. Its image is deleted by the disposal at the latest.
   * @param base the image that it started from, which is its result when nothing has changed
   */
  async succeeded(id: string, base: string): Promise<NonNullable<Operation["result"]>> {
    const { status, error, result } = await this.#ended(id, WAIT_SECONDS, this.options.signal);
    if (status !== "SUCCESS" || result == null)
      throw new CliError(`operation ${id} ended ${status}: ${error?.message ?? ""}`);
    if (result.image !== undefined && result.image !== base) this.#images.push(result.image);
    return result;
  }

  /** Starts an instance, which the disposal ends at the latest. */
  async start(image: string, command: string, more: Partial<SpawnRequest> = {}): Promise<string> {
    const { client, signal } = this.options;
    const request = { image, command, shell: true, ...more };
    const { uuid } = await answerOf(client.v1.instances.post(request, { fetch: { signal } }));
    this.#running.add(uuid);
    return uuid;
  }

  /** Waits until the command of an instance runs: an instance is EXECUTING before. */
  async untilRunning(id: string): Promise<void> {
    const signal = AbortSignal.any([AbortSignal.timeout(START_MS_MAX), this.options.signal]);
    if ((await commandStart(this.client, id, signal)) === null) throw new CliError(`instance ${id} has ended`);
  }

  async stop(id: string): Promise<void> {
    await answerOf(this.client.v1.operations({ id }).delete()).catch(unless(409));
    await this.#ended(id, CANCEL_WAIT_SECONDS, AbortSignal.timeout(CANCEL_WAIT_SECONDS * 1000));
  }

  /** Opens a sandbox, which the disposal ends at the latest. @param wait longest time until it runs, in `seconds` */
  async open(request: Omit<SandboxRequest, "image"> = {}, wait = WAIT_SECONDS): Promise<Sandbox> {
    const sandbox = await openSandbox(this.client, { image: this.image, ...request }, wait);
    this.#sandboxes.add(sandbox.uuid);
    return requireState(sandbox, wait === 0 ? "starting" : "running");
  }

  /** Ends a sandbox and its machine. */
  async end(id: string): Promise<void> {
    await endSandbox(this.client, id);
    this.#sandboxes.delete(id);
  }

  /** Ends a sandbox; the images of its saved states are deleted by the disposal at the latest. */
  async endWithStates(id: string): Promise<void> {
    const images = (await savedStates(this.client, id)).map(({ image }) => image);
    const { instance } = await readSandbox(this.client, id);
    await this.end(id);
    // Its machine uses the head until it has ended.
    if (instance !== null) await this.#ended(instance, WAIT_SECONDS, this.options.signal);
    this.#images.push(...new Set(images.reverse().filter((image) => image !== this.image)));
  }

  /** Deletes images that were made here, the latest first. */
  async deleteMade(): Promise<void> {
    for (let id = this.#images.pop(); id !== undefined; id = this.#images.pop()) {
      await answerOf(this.client.v1.images({ uuid: id }).delete()).catch(unless(404));
    }
  }

  /** Waits until a machine is ready for a spawn, if the appliance shows that. */
  async poolFull(): Promise<void> {
    await this.#until(
      (value) => value("coppice_pool_ready") === value("coppice_pool_size"),
      this.options.poolMsMax ?? POOL_MS_MAX,
    );
  }

  /** Waits until no machine computes, and no layers wait to be merged. */
  async settled(msMax: number): Promise<void> {
    let quiet = 0;
    await this.#until((value) => {
      const busy = (value('coppice_vms{state="in_use"}') ?? 0) + (value("coppice_layer_merges_waiting") ?? 0);
      quiet = busy === 0 ? quiet + 1 : 0;
      return quiet >= 10;
    }, msMax);
  }

  /** Resident memory of the daemon in `MiB`; null behind a proxy that hides the metrics. */
  async residentMib(): Promise<number | null> {
    const bytes = sampleOf(await this.client.metrics(), "process_resident_memory_bytes");
    return bytes === null ? null : bytes / 1_048_576;
  }

  /** Resident memory of the process that connects to the outside, in `MiB`; null while it does not run. */
  async gateMib(): Promise<number | null> {
    const bytes = sampleOf(await this.client.metrics(), "coppice_gate_resident_memory_bytes");
    return bytes === null || bytes === 0 ? null : bytes / 1_048_576;
  }

  /** Processor time of the daemon so far, in `microseconds`; null as for `residentMib`. */
  async cpuTimeUs(): Promise<number | null> {
    const seconds = sampleOf(await this.client.metrics(), "process_cpu_seconds_total");
    return seconds === null ? null : seconds * 1e6;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const id of this.#running) await this.stop(id);
    for (const id of this.#sandboxes) await this.end(id);
    await this.deleteMade();
  }

  async #ended(id: string, wait: number, signal: AbortSignal): Promise<Operation> {
    const route = this.client.v1.operations({ id });
    for (;;) {
      const operation = await answerOf(route.get({ query: { wait }, fetch: { signal } }));
      if (!isTerminal(operation.status)) continue;
      this.#running.delete(id);
      return operation;
    }
  }

  async #until(holds: (value: (sample: string) => number | null) => boolean, msMax: number): Promise<void> {
    const deadline = performance.now() + msMax;
    while (performance.now() < deadline) {
      this.options.signal.throwIfAborted();
      const text = await this.client.metrics();
      if (text === "" || holds((sample) => sampleOf(text, sample))) return;
      await Bun.sleep(POLL_MS);
    }
  }
}

/** Returns the sandbox. @throws CliError when it is in another state */
export function requireState(sandbox: Sandbox, state: Sandbox["state"]): Sandbox {
  if (sandbox.state === state) return sandbox;
  throw new CliError(`sandbox ${sandbox.uuid} is ${sandbox.state}: ${sandbox.error?.message ?? `not ${state}`}`);
}

/** Ignores failures of work that may be done already. */
function unless(status: number): (error: unknown) => void {
  return (error) => {
    if (!(error instanceof ResponseError && error.status === status)) throw error;
  };
}
