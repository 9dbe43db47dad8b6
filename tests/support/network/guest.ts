import type { NetworkAudit, NetworkEntry } from "../../../src/domain/network.ts";
import { text } from "../appliance/appliance.ts";
import { type Body, operationOf, resultOf, running } from "../runs.ts";
import { until } from "../waiting.ts";
import { PROBES } from "./guest-image.ts";
import { ring } from "./ring.ts";

const SECONDS_MAX = 900;
const PROCESS_MS_MAX = 120_000;

/** The outcome of a process in a guest. */
export interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

export interface GuestOptions {
  /** the request's `network`; default: all that the operator permits */
  readonly network?: object | "none";
  /** further fields of the request */
  readonly more?: Body;
}

/** All that the operator permits, as rules of a request. */
export const ALL = {
  allow: [
    { host: "*.test", ports: "*" },
    { host: "20.0.0.0/16", ports: "*" },
    { host: "2600:7::/32", ports: "*" },
  ],
} as const;

/** An instance whose command waits, so that additional processes use its network. */
export class Guest implements AsyncDisposable {
  readonly id: string;
  #isEnded = false;

  private constructor(id: string) {
    this.id = id;
  }

  static async start({ network = ALL, more = {} }: GuestOptions = {}): Promise<Guest> {
    const { appliance, image } = ring();
    const own = { command: "read line", stdin_open: true, disposable: true, timeout: SECONDS_MAX };
    const guest = new Guest(await appliance.spawn({ image, shell: true, network, ...own, ...more }));
    await running(appliance, guest.id);
    await until("the command runs", async () => {
      const operation = await operationOf(appliance, guest.id);
      if (operation["status"] !== "EXECUTING") throw new Error(`no instance: ${JSON.stringify(operation)}`);
      return ((await (await appliance.fetch(`/instances/${guest.id}/processes`)).json()) as Body[]).length > 0;
    });
    return guest;
  }

  /** Starts a shell command in an additional process, and returns its number. */
  async begin(command: string, more: Body = {}): Promise<number> {
    const body = { command, shell: true, timeout: SECONDS_MAX, ...more };
    const answer = await ring().appliance.post(`/instances/${this.id}/processes`, body);
    if (answer.status !== 201) throw new Error(`a process: ${answer.status} ${await answer.text()}`);
    return ((await answer.json()) as { spid: number }).spid;
  }

  /** The output of a process until now. */
  async written(spid: number): Promise<Ran & { readonly state: string }> {
    const answer = await ring().appliance.fetch(`/instances/${this.id}/processes/${spid}`);
    const {
      state,
      exit_code: code,
      stdout,
      stderr,
    } = (await answer.json()) as Body & { state: string; exit_code: number };
    return { state, code, out: text(stdout), err: text(stderr) };
  }

  /** Waits for the end of a process. */
  async ended(spid: number): Promise<Ran> {
    await until(
      `the end of process ${spid}`,
      async () => (await this.written(spid)).state !== "running",
      PROCESS_MS_MAX,
    );
    return await this.written(spid);
  }

  /** Runs a shell command to its end. */
  async run(command: string): Promise<Ran> {
    return await this.ended(await this.begin(command));
  }

  /** The output of a command, without the last newline. @throws Error when it fails */
  async output(command: string): Promise<string> {
    const { code, out, err } = await this.run(command);
    if (code !== 0) throw new Error(`${command} ended with ${code}: ${out}${err}`);
    return out.trimEnd();
  }

  /** The output of the probe, whose exit code says nothing. */
  async probe(args: string, probe: keyof typeof PROBES = "glibc"): Promise<string> {
    return (await this.run(`${PROBES[probe]} ${args}`)).out.trimEnd();
  }

  /** Ends the instance; returns its result and the audit of its network. */
  async end(): Promise<{ result: Body; audit: NetworkAudit }> {
    const { appliance } = ring();
    this.#isEnded = true;
    await appliance.post(`/instances/${this.id}/processes/1/stdin`, { content: "end\n", close: true });
    const result = resultOf(await appliance.finished(this.id));
    return { result, audit: result["network"] as NetworkAudit };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isEnded) return;
    const { appliance } = ring();
    await appliance.fetch(`/operations/${this.id}`, { method: "DELETE" });
    await appliance.finished(this.id);
  }
}

/** The verdicts of a host, by port, with the number of connections: `443 allowed 2`; null is the port of a query. */
export function verdicts(audit: NetworkAudit, host: string): string[] {
  const own = audit.entries.filter((entry) => entry.host === host);
  return own.map(({ port, verdict, connections }) => `${port} ${verdict} ${connections}`).sort();
}

/** The entry of a host with this verdict. @throws Error when it is missing */
export function entryOf(audit: NetworkAudit, host: string, verdict: NetworkEntry["verdict"]): NetworkEntry {
  const match = audit.entries.find((entry) => entry.host === host && entry.verdict === verdict);
  if (match === undefined) throw new Error(`no ${verdict} of ${host}: ${JSON.stringify(audit)}`);
  return match;
}
