import { VmmError } from "../machine-end.ts";
import type { DiskConfig, PciDeviceInfo, RestoreConfig, VmConfig, VmInfo, VmmPingResponse, VmState } from "./schema.ts";

/** Time limit of an ordinary call; most of them only change a state. */
const CALL_TIMEOUT_MS = 10_000;
/** Time limit of a call that creates devices and memory, and reads the kernel. */
const BOOT_TIMEOUT_MS = 20_000;
/** Lowest rate, in bytes per `millisecond`, at which a snapshot writes or reads memory. */
const MEMORY_BYTES_PER_MS = 50_000;
/** Longest answer, in `bytes`: `vm.info` of a machine with all its disks has some hundred KiB. */
const ANSWER_BYTES_MAX = 4_194_304;
/** Length of a refusal's reason in an error, in characters. */
const REASON_TEXT_MAX = 1000;

const VM_STATES: readonly string[] = ["Created", "Running", "Shutdown", "Paused", "BreakPoint"] satisfies VmState[];

/** The VMM refused a call. */
export class CloudHypervisorApiError extends VmmError {
  override readonly name = "CloudHypervisorApiError";
  readonly endpoint: string;
  readonly status: number;

  constructor(endpoint: string, status: number, reason: string) {
    super(`Cloud Hypervisor refused ${endpoint} (${status}): ${reason}`);
    this.endpoint = endpoint;
    this.status = status;
  }
}

/** The VMM did not answer in time, or its answer is invalid. Its state is unknown. */
export class CloudHypervisorLostError extends VmmError {
  override readonly name = "CloudHypervisorLostError";
}

/**
 * Client of one VMM's REST API. It makes one call at a time: the VMM handles calls one after another and accepts only ten
 * connections. A guest may have taken over its VMM, so answers are bounded and checked. Every method throws
 * CloudHypervisorApiError or CloudHypervisorLostError.
 */
export class CloudHypervisorApi {
  readonly #socket: string;
  #last: Promise<unknown> = Promise.resolve();

  /** @param socket path of at most 107 bytes */
  constructor(socket: string) {
    this.#socket = socket;
  }

  async ping(): Promise<VmmPingResponse> {
    const { version } = objectOf(await this.#call("GET", "vmm.ping", CALL_TIMEOUT_MS));
    if (typeof version !== "string") throw new CloudHypervisorLostError("vmm.ping: an answer without a version");
    return { version };
  }

  async create(config: VmConfig): Promise<void> {
    await this.#call("PUT", "vm.create", CALL_TIMEOUT_MS, config);
  }

  async boot(): Promise<void> {
    await this.#call("PUT", "vm.boot", BOOT_TIMEOUT_MS);
  }

  /**
   * Do not call it for a machine with dozens of disks. For an answer of some 50 KB, the allocator of a v53 that was built
   * with glibc reads a file in /proc, and the VMM's own filter of system calls kills it. Static builds do not do that.
   */
  async info(): Promise<VmInfo> {
    const { state } = objectOf(await this.#call("GET", "vm.info", CALL_TIMEOUT_MS));
    if (typeof state !== "string" || !VM_STATES.includes(state)) {
      throw new CloudHypervisorLostError("vm.info: an answer without a known state");
    }
    return { state: state as VmState };
  }

  async pause(): Promise<void> {
    await this.#call("PUT", "vm.pause", CALL_TIMEOUT_MS);
  }

  async resume(): Promise<void> {
    await this.#call("PUT", "vm.resume", CALL_TIMEOUT_MS);
  }

  /** Writes `memoryBytes` of memory and the device state to the directory of `url`. */
  async snapshot(url: string, memoryBytes: number): Promise<void> {
    await this.#call("PUT", "vm.snapshot", memoryTimeoutMs(memoryBytes), { destination_url: url });
  }

  /** Restores a saved machine, which is then paused. */
  async restore(config: RestoreConfig, memoryBytes: number): Promise<void> {
    await this.#call("PUT", "vm.restore", memoryTimeoutMs(memoryBytes), config);
  }

  async addDisk(config: DiskConfig): Promise<PciDeviceInfo> {
    const { id, bdf } = objectOf(await this.#call("PUT", "vm.add-disk", CALL_TIMEOUT_MS, config));
    if (typeof id !== "string" || typeof bdf !== "string") {
      throw new CloudHypervisorLostError("vm.add-disk: an answer without the device's place");
    }
    return { id, bdf };
  }

  /** Asks the guest to release a device, which disappears some time later. */
  async removeDevice(id: string): Promise<void> {
    await this.#call("PUT", "vm.remove-device", CALL_TIMEOUT_MS, { id });
  }

  /** Ends the machine, but not the VMM. */
  async shutdown(): Promise<void> {
    await this.#call("PUT", "vm.shutdown", CALL_TIMEOUT_MS);
  }

  /** Ends the VMM, which exits with 0 soon after its answer. */
  async shutdownVmm(): Promise<void> {
    await this.#call("PUT", "vmm.shutdown", CALL_TIMEOUT_MS);
  }

  #call(method: "GET" | "PUT", endpoint: string, timeoutMs: number, body?: object): Promise<unknown> {
    const call = this.#last.then(
      () => this.#fetch(method, endpoint, timeoutMs, body),
      () => this.#fetch(method, endpoint, timeoutMs, body),
    );
    this.#last = call;
    return call;
  }

  async #fetch(method: "GET" | "PUT", endpoint: string, timeoutMs: number, body?: object): Promise<unknown> {
    const signal = AbortSignal.timeout(timeoutMs);
    let status: number;
    let text: string;
    try {
      const response = await fetch(`http://localhost/api/v1/${endpoint}`, {
        unix: this.#socket,
        method,
        signal,
        // A kept connection would count against the VMM's limit of ten.
        keepalive: false,
        redirect: "manual",
        ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
      });
      status = response.status;
      text = await boundedText(response);
    } catch (error) {
      const why = signal.aborted ? `no answer within ${timeoutMs} ms` : String((error as Error).message);
      throw new CloudHypervisorLostError(`${endpoint}: ${why}`, { cause: error });
    }
    if (status < 200 || status > 299) throw new CloudHypervisorApiError(endpoint, status, reasonOf(text));
    if (status === 204 || text === "") return null;
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new CloudHypervisorLostError(`${endpoint}: the answer is not JSON`, { cause: error });
    }
  }
}

function memoryTimeoutMs(memoryBytes: number): number {
  return BOOT_TIMEOUT_MS + Math.ceil(memoryBytes / MEMORY_BYTES_PER_MS);
}

function objectOf(answer: unknown): Readonly<Record<string, unknown>> {
  return typeof answer === "object" && answer !== null ? (answer as Record<string, unknown>) : {};
}

async function boundedText(response: Response): Promise<string> {
  const chunks: Uint8Array[] = [];
  let totalBytes = 0;
  for await (const chunk of response.body ?? []) {
    totalBytes += chunk.byteLength;
    if (totalBytes > ANSWER_BYTES_MAX) throw new Error("the answer is too long");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

/** The body of an error is a list of messages, outermost first (vmm/src/api/http/mod.rs, `error_response`). */
function reasonOf(text: string): string {
  let reason = text;
  try {
    const chain: unknown = JSON.parse(text);
    if (Array.isArray(chain)) reason = chain.map(String).join(": ");
  } catch (error) {
    // A body that is not JSON is shown as it is.
    if (!(error instanceof SyntaxError)) throw error;
  }
  // Debug builds append a backtrace.
  return (reason.split("\n\nStack backtrace")[0] ?? "").replace(/\s+/g, " ").slice(0, REASON_TEXT_MAX).trim() || "-";
}
