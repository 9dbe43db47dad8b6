import type { Appliance } from "../appliance/appliance.ts";
import { until } from "../waiting.ts";

/** Kills the daemon, does `meanwhile`, and starts the next one. */
export async function replaceDaemon(
  appliance: Appliance,
  meanwhile: () => Promise<void> | void = () => undefined,
): Promise<void> {
  await appliance.down("SIGKILL");
  await meanwhile();
  await appliance.up();
}

/** An additional process of an instance or a sandbox. */
export class AddedProcess {
  readonly spid: number;
  readonly #appliance: Appliance;
  readonly #path: string;

  private constructor(appliance: Appliance, path: string, spid: number) {
    this.spid = spid;
    this.#appliance = appliance;
    this.#path = `${path}/${spid}`;
  }

  /**
   * Starts a process; it waits until a daemon that has just begun has the machine.
   * @param place path of the instance or sandbox below /v1
   */
  static async start(appliance: Appliance, place: string, request: object): Promise<AddedProcess> {
    const path = `${place}/processes`;
    let answer = { spid: 0 };
    await until("the process starts", async () => {
      const response = await appliance.post(path, request);
      if (response.status === 503) return false;
      answer = (await response.json()) as { spid: number };
      if (response.status !== 201) throw new Error(`a start answered ${response.status}: ${JSON.stringify(answer)}`);
      return true;
    });
    return new AddedProcess(appliance, path, answer.spid);
  }

  /** Path of the process below /v1. */
  get path(): string {
    return this.#path;
  }

  /** The status of a write to standard input, after that of a daemon that does not have the machine yet. */
  async write(content: string, { close = false } = {}): Promise<number> {
    let status = 503;
    await until("the write is answered", async () => {
      ({ status } = await this.#appliance.post(`${this.#path}/stdin`, { content, close }));
      return status !== 503;
    });
    return status;
  }

  /** Standard output so far, and the exit code; null: it runs. */
  async state(): Promise<{ readonly output: string; readonly exitCode: number | null }> {
    const response = await this.#appliance.fetch(this.#path);
    const body = (await response.json()) as { readonly exit_code: number | null; readonly stdout: { content: string } };
    return { output: body.stdout.content, exitCode: body.exit_code };
  }

  async prints(text: string): Promise<void> {
    await until(`it prints ${text}`, async () => (await this.state()).output.includes(text));
  }

  /** The whole output, once it has ended. */
  async ended(): Promise<{ readonly output: string; readonly exitCode: number }> {
    let last = await this.state();
    await until("the process ends", async () => {
      last = await this.state();
      return last.exitCode !== null;
    });
    return { output: last.output, exitCode: last.exitCode ?? 0 };
  }
}
